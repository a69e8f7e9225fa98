"""The desk: what callers ask of one lease pool while the last answers are being committed is recorded and decided in
one transaction under the pool's lock, and answered after its commit. So a commit, and the lock of a busy pool, are paid
for once for all who wait for it.

It also knows who stays for a grant, here, in this process. They are woken by decisions of this process at once, and by
those of other replicas through looks at what was granted since (wakes.py). Whoever goes away costs nothing more: the
request waits in the database, not here.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_common.events.lease import LeaseCancelRequested, LeaseRequested
from slipway_common.postgres import Connection, Pool, is_infrastructure
from slipway_common.problem import Problem
from slipway_common.telemetry import logger
from slipway_lease_broker.admission import ask_gang, count, leave_to_the_loop, load, save_and_decide, tell
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.domain.facts import Ledger
from slipway_lease_broker.domain.ledger import Gang, Lease, State
from slipway_lease_broker.http.errands import Answer, Errand, overtaken, record, refusal, unknown_lease_pool
from slipway_lease_broker.store import answers, pools

LOG = logger(__name__)

BATCH_MAX: Final = 500
# Of the process's connections: its loops and consumers need the others.
BATCHES_MAX: Final = 4
REMEMBERED_LEASES: Final = 100_000

Outcome = Answer | Problem
Decide = Callable[[Connection, Ledger, datetime, Container[str]], Awaitable[list[Decision]]]


class Desk:
    """One per process. `caught_up(lease_pool_id)` says whether it may let deadlines pass. After a commit it calls
    `published(more)`, which has its events sent, and a decision made if there is `more` to decide, and for grants
    `wakes(lease_pool_id)`, which tells the other replicas."""

    def __init__(
        self,
        *,
        lost_linger_seconds: float,
        waiter_ttl_seconds: float,
        caught_up: Callable[[str], bool],
        published: Callable[[bool], None],
        wakes: Callable[[str], None],
    ) -> None:
        self._lost_linger_seconds = lost_linger_seconds
        self._waiter_ttl_seconds = waiter_ttl_seconds
        self._caught_up = caught_up
        self._published = published
        self._wakes = wakes
        self._queues: dict[str, list[tuple[Errand, asyncio.Future[Outcome]]]] = {}
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._batches = asyncio.Semaphore(BATCHES_MAX)
        self._staying: dict[tuple[str, str], list[asyncio.Future[Lease | None]]] = {}
        self._confirming: Counter[tuple[str, str]] = Counter()  # those of them whose grant is to be confirmed
        self._stayers: Counter[str] = Counter()  # by lease pool
        self._seen: dict[str, int] = {}  # lease pool that somebody stays for → token up to which grants were looked at
        self._pool_of: dict[str, str] = {}

    @property
    def staying(self) -> int:
        """How many callers wait here for a grant."""
        return self._stayers.total()

    async def settle(self, database: Pool, errand: Errand) -> Answer:
        """Record the errand, decide, commit. Raises the Problem it is refused with; then it changed nothing."""
        lease_pool_id = errand.fact.lease_pool_id
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(lease_pool_id, []).append((errand, future))
        if lease_pool_id not in self._serving:
            self._serving[lease_pool_id] = asyncio.create_task(self._serve(database, lease_pool_id))
        outcome = await future
        if isinstance(outcome, Problem):
            raise outcome
        return outcome

    async def pool_of(self, database: Pool, lease_id: str) -> str | None:
        """The lease pool of a lease, which never changes; None for an unknown one."""
        if (known := self._pool_of.get(lease_id)) is not None:
            return known
        if (found := await answers.pool_of(database, lease_id)) is not None:
            self._remember(lease_id, found)
        return found

    def stays(self, answer: Answer, *, confirm: bool = False) -> None:
        """Before its caller runs on: of what commits after the answer no grant to it is missed."""
        assert answer.request is not None
        key = answer.pool.id, answer.request.id
        answer.woken = asyncio.get_running_loop().create_future()
        answer.confirm = confirm
        self._staying.setdefault(key, []).append(answer.woken)
        self._confirming[key] += confirm
        self._seen.setdefault(answer.pool.id, answer.pool.last_token)
        self._stayers[answer.pool.id] += 1

    async def stay(self, answer: Answer, seconds: float, left: Awaitable[object]) -> bool:
        """Wait until the request may have been granted; False after `seconds`, or once the caller has `left`."""
        assert answer.request is not None
        gone = asyncio.ensure_future(left)
        try:
            done, _ = await asyncio.wait({answer.woken, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return answer.woken in done and gone not in done
        finally:
            gone.cancel()
            self._leave(answer)

    async def ask_gang(self, db: Connection, gang: Gang, ledger: Ledger, now: datetime) -> list[Decision]:
        """What a gang asks for, in the caller's transaction: see admission.py."""
        return await ask_gang(
            db,
            gang,
            ledger,
            now,
            expire=self._caught_up,
            lost_linger_seconds=self._lost_linger_seconds,
            waiter_ttl_seconds=self._waiter_ttl_seconds,
        )

    def decided(self, decision: Decision) -> None:
        """Call after the commit of any decision of this process: counts it, wakes who stays here, tells the others."""
        tell(decision)
        pool_id = decision.pool.id
        unheard = {lease.request_id for lease in decision.granted if not self._wake(pool_id, lease.request_id, lease)}
        if not unheard.isdisjoint(decision.awaited):  # for what was granted as it was asked nobody stays
            self._wakes(pool_id)

    async def look(self, database: Pool, lease_pool_ids: Collection[str] | None = None) -> None:
        """Wake whoever stays here and was granted something since the last look, in these lease pools or in all."""
        seen = {name: token for name, token in self._seen.items() if lease_pool_ids is None or name in lease_pool_ids}
        while seen:
            found = await answers.granted_since(database, seen)
            for name, request_id, token in found:
                self._wake(name, request_id)
                seen[name] = max(seen[name], token)
            for name in seen:
                if name in self._seen:
                    self._seen[name] = max(self._seen[name], seen[name])
            if len(found) < answers.SINCE_MAX:
                return

    async def _serve(self, database: Pool, lease_pool_id: str) -> None:
        try:
            while queue := self._queues.pop(lease_pool_id, None):
                for start in range(0, len(queue), BATCH_MAX):
                    await self._answer(database, lease_pool_id, queue[start : start + BATCH_MAX])
        finally:
            del self._serving[lease_pool_id]

    async def _answer(
        self,
        database: Pool,
        lease_pool_id: str,
        waiting: Sequence[tuple[Errand, asyncio.Future[Outcome]]],
        decide: Decide | None = None,
    ) -> None:
        """What is said must not fail because no decision can be made: then it is recorded, and left to the loop."""
        try:
            outcomes = await self._commit(
                database, lease_pool_id, [errand for errand, _ in waiting], decide or self._decide
            )
        except Exception as error:
            if decide is None and not is_infrastructure(error):
                LOG.warning("a batch is redone one by one", lease_pool=lease_pool_id, error=repr(error))
                for one in waiting:
                    await self._answer(database, lease_pool_id, [one], _left_to_the_loop)
                return
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            return
        for (errand, future), outcome in zip(waiting, outcomes, strict=True):
            if future.done():
                continue
            if errand.wait and isinstance(outcome, Answer) and outcome.lease is None and outcome.waits:
                self.stays(outcome, confirm=errand.confirm)
            future.set_result(outcome)

    async def _decide(self, tx: Connection, ledger: Ledger, now: datetime, here: Container[str]) -> list[Decision]:
        return await save_and_decide(
            tx,
            ledger,
            now,
            expire=self._caught_up,
            lost_linger_seconds=self._lost_linger_seconds,
            waiter_ttl_seconds=self._waiter_ttl_seconds,
            here=here,
        )

    async def _commit(
        self, database: Pool, lease_pool_id: str, errands: Sequence[Errand], decide: Decide
    ) -> list[Outcome]:
        """One transaction for all; what is refused in it is as if it had not been said."""
        async with self._batches, database.acquire() as db, db.transaction():
            locked = await pools.lock(db, [lease_pool_id])
            if not locked:
                return [unknown_lease_pool(lease_pool_id) for _ in errands]
            now = await pools.clock(db)
            ledger = await load(db, locked, [errand.fact for errand in errands])
            known = {request_id for _, request_id in ledger.requests}
            for lease in await answers.of_requests(db, lease_pool_id, known):
                ledger.leases[lease_pool_id, lease.id] = lease
            outcomes = [refusal(errand, ledger) or record(errand, ledger, now) for errand in errands]
            for outcome in outcomes:  # a later errand of the batch may be about the same request
                if isinstance(outcome, Answer) and outcome.request is not None:
                    outcome.request = ledger.requests[lease_pool_id, outcome.request.id]
            decisions = await decide(db, ledger, now, Here(lease_pool_id, asking(errands, outcomes), self._confirming))
        count(ledger)
        decision = decisions[0] if decisions else None
        if decision is not None:
            outcomes = completed(errands, outcomes, decision)
            self.decided(decision)
        for errand, outcome in zip(errands, outcomes, strict=True):
            if isinstance(outcome, Answer) and outcome.lease is not None:
                self._remember(outcome.lease.id, lease_pool_id)
            if isinstance(outcome, Answer) and isinstance(errand.fact, LeaseCancelRequested):
                self._wake(lease_pool_id, errand.fact.request_id)  # who stays for it is told that it is cancelled
        self._published(bool(ledger.dirty) if decision is None else decision.again)
        return outcomes

    def _leave(self, answer: Answer) -> None:
        """Nobody stays for this answer any more."""
        assert answer.request is not None
        key = answer.pool.id, answer.request.id
        self._staying[key].remove(answer.woken)
        self._confirming[key] -= answer.confirm
        if not self._staying[key]:
            del self._staying[key], self._confirming[key]
        self._stayers[answer.pool.id] -= 1
        if not self._stayers[answer.pool.id]:
            del self._stayers[answer.pool.id], self._seen[answer.pool.id]

    def _wake(self, lease_pool_id: str, request_id: str, granted: Lease | None = None) -> bool:
        """Whether somebody stays here for it. Whoever would confirm what is not yet confirmed has to ask again."""
        key = lease_pool_id, request_id
        staying = self._staying.get(key, ())
        if granted is not None and granted.state is State.RESERVED and self._confirming[key]:
            granted = None
        if staying and granted is not None:
            self._remember(granted.id, lease_pool_id)
        for woken in staying:
            if not woken.done():
                woken.set_result(granted)
        return bool(staying)

    def _remember(self, lease_id: str, lease_pool_id: str) -> None:
        if len(self._pool_of) >= REMEMBERED_LEASES:
            self._pool_of.clear()
        self._pool_of[lease_id] = lease_pool_id


async def _left_to_the_loop(tx: Connection, ledger: Ledger, now: datetime, here: Container[str]) -> list[Decision]:
    return await leave_to_the_loop(tx, ledger, now)


class Here(msgspec.Struct, frozen=True):
    """Requests whose callers hear of a grant by the answer to a call that is open now."""

    lease_pool_id: str
    asking: set[str]
    confirming: Mapping[tuple[str, str], int]  # of those that stay

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.asking or self.confirming.get((self.lease_pool_id, str(request_id)), 0) > 0


def asking(errands: Sequence[Errand], outcomes: Sequence[Outcome]) -> set[str]:
    """Requests whose callers are told of a grant in this very call. Whoever was refused hears of none."""
    return {
        errand.fact.request_id
        for errand, outcome in zip(errands, outcomes, strict=True)
        if errand.confirm and isinstance(errand.fact, LeaseRequested) and isinstance(outcome, Answer)
    }


def completed(errands: Sequence[Errand], outcomes: Sequence[Outcome], decision: Decision) -> list[Outcome]:
    """What the decision made of errands that were recorded just before it."""
    granted = {lease.request_id: lease for lease in decision.granted}
    ended = {lease.id: lease for lease in decision.ended}
    found: list[Outcome] = []
    for errand, outcome in zip(errands, outcomes, strict=True):
        if isinstance(outcome, Answer):
            outcome.pool = decision.pool
            if outcome.request is not None and outcome.lease is None:
                outcome.lease = granted.get(outcome.request.id)
            elif outcome.lease is not None and (then := ended.get(outcome.lease.id)) is not None:
                outcome.lease = then
                outcome = overtaken(errand, then) or outcome
        found.append(outcome)
    return found
