"""Group commit for lease commands over HTTP: commands that arrive while a batch commits form the next batch.

A batch is the commands of one lease pool. It is applied and decided in one transaction under the pool's lock, and
answered after the commit, so that the commit and the lock of a busy pool are paid for once per batch.

The same object keeps the callers of this process that wait for a grant. Decisions of this process wake them at once;
decisions of other replicas wake them through `check_grants` (see grant_notifier.py). A disconnected caller holds no
memory here: its request waits in the database.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final

import msgspec

from slipway_common.database.postgres import Database, is_infrastructure
from slipway_common.events.lease import LeaseCancelRequested, LeaseRequested
from slipway_common.observability.telemetry import logger
from slipway_common.web.problem import Problem
from slipway_lease_broker.admission import Begin
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.domain.ledger import Lease, State
from slipway_lease_broker.http.lease_commands import Answer, Submission, apply, overtaken, refusal, unknown_lease_pool
from slipway_lease_broker.store import answers

LOG = logger(__name__)

BATCH_MAX: Final = 500
# Connections that batches may use at once: the loops and consumers of the process need the others.
BATCHES_MAX: Final = 4
REMEMBERED_LEASES: Final = 100_000

Outcome = Answer | Problem


class GroupCommit:
    """Batches of lease commands and the callers that wait for grants; one per process.

    After the commit of a batch `published(more)` is called, to publish the events and notify the decide loop if there
    is `more` to decide; and after any commit, for each grant to a queued request that nobody here waits for,
    `notify_replicas(lease_pool_id)`.
    """

    def __init__(
        self,
        begin: Begin,
        *,
        published: Callable[[bool], None],
        notify_replicas: Callable[[str], None],
    ) -> None:
        self._begin = begin
        self._published = published
        self._notify_replicas = notify_replicas
        self._queues: dict[str, list[tuple[Submission, asyncio.Future[Outcome]]]] = {}
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._batches = asyncio.Semaphore(BATCHES_MAX)
        self._grant_waiters: dict[tuple[str, str], list[asyncio.Future[Lease | None]]] = {}
        self._confirming: Counter[tuple[str, str]] = Counter()  # waiters per request that confirm on receipt
        self._waiters_of_pool: Counter[str] = Counter()  # by lease pool
        self._seen: dict[str, int] = {}  # lease pool with waiters → fencing token up to which grants were checked
        self._pool_of: dict[str, str] = {}

    @property
    def waiting_callers(self) -> int:
        """Number of callers in this process that wait for a grant."""
        return self._waiters_of_pool.total()

    async def submit(self, database: Database, submission: Submission) -> Answer:
        """Apply the command, decide and commit. A refused command changes nothing and raises its Problem."""
        lease_pool_id = submission.command.lease_pool_id
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(lease_pool_id, []).append((submission, future))
        if lease_pool_id not in self._serving:
            self._serving[lease_pool_id] = asyncio.create_task(self._serve(database, lease_pool_id))
        outcome = await future
        if isinstance(outcome, Problem):
            raise outcome
        return outcome

    async def pool_of(self, database: Database, lease_id: str) -> str | None:
        """The lease pool of a lease, cached because it never changes; None for an unknown lease."""
        if (known := self._pool_of.get(lease_id)) is not None:
            return known
        if (found := await answers.pool_of(database, lease_id)) is not None:
            self._remember(lease_id, found)
        return found

    def expect_grant(self, answer: Answer, *, confirm: bool = False) -> None:
        """Register a caller that waits for a grant. Call it before control returns to the event loop: then no grant
        that commits after the answer is missed."""
        assert answer.request is not None
        key = answer.pool.id, answer.request.id
        answer.woken = asyncio.get_running_loop().create_future()
        answer.confirm = confirm
        self._grant_waiters.setdefault(key, []).append(answer.woken)
        self._confirming[key] += confirm
        self._seen.setdefault(answer.pool.id, answer.pool.last_token)
        self._waiters_of_pool[answer.pool.id] += 1

    async def wait_for_grant(self, answer: Answer, seconds: float, disconnected: Awaitable[object]) -> bool:
        """Wait until the request may have been granted; False after `seconds`, or once the caller `disconnected`."""
        assert answer.request is not None
        gone = asyncio.ensure_future(disconnected)
        try:
            done, _ = await asyncio.wait({answer.woken, gone}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return answer.woken in done and gone not in done
        finally:
            gone.cancel()
            self._remove_waiter(answer)

    def decided(self, decision: Decision) -> None:
        """Wake the callers that a decision granted to, and notify the other replicas. Called after the commit of every
        decision of this process."""
        pool_id = decision.pool.id
        elsewhere = {lease.request_id for lease in decision.granted if not self._wake(pool_id, lease.request_id, lease)}
        if not elsewhere.isdisjoint(decision.awaited):  # nobody waits for a request that was granted on arrival
            self._notify_replicas(pool_id)

    async def check_grants(self, database: Database, lease_pool_ids: Collection[str] | None = None) -> None:
        """Wake the callers of this process that were granted something since the last check, in these lease pools or,
        for None, in all."""
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

    async def _serve(self, database: Database, lease_pool_id: str) -> None:
        try:
            while queue := self._queues.pop(lease_pool_id, None):
                for start in range(0, len(queue), BATCH_MAX):
                    await self._answer(database, lease_pool_id, queue[start : start + BATCH_MAX])
        finally:
            del self._serving[lease_pool_id]

    async def _answer(
        self,
        database: Database,
        lease_pool_id: str,
        waiting: Sequence[tuple[Submission, asyncio.Future[Outcome]]],
        *,
        at_once: bool = True,
    ) -> None:
        """Commit a batch and answer its callers. Where a decision fails, each command is applied alone and the decision
        is left to the loop, because a command must not fail for that."""
        try:
            outcomes = await self._commit(
                database, lease_pool_id, [submission for submission, _ in waiting], at_once=at_once
            )
        except Exception as error:
            if at_once and not is_infrastructure(error):
                LOG.warning(
                    "batch failed, applying its commands one by one", lease_pool=lease_pool_id, error=repr(error)
                )
                for one in waiting:
                    await self._answer(database, lease_pool_id, [one], at_once=False)
                return
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            return
        for (submission, future), outcome in zip(waiting, outcomes, strict=True):
            if future.done():
                continue
            if submission.wait and isinstance(outcome, Answer) and outcome.lease is None and outcome.waits:
                self.expect_grant(outcome, confirm=submission.confirm)
            future.set_result(outcome)

    async def _commit(
        self, database: Database, lease_pool_id: str, submissions: Sequence[Submission], *, at_once: bool
    ) -> list[Outcome]:
        """Apply a batch in one transaction; a refused command changes nothing in it."""
        async with self._batches, database.acquire() as db, db.transaction():
            admission = self._begin(db)
            await admission.lock([lease_pool_id])
            if not admission.pools:
                return [unknown_lease_pool(lease_pool_id) for _ in submissions]
            now = admission.now
            ledger = await admission.load([submission.command for submission in submissions], granted=True)
            outcomes = [refusal(submission, ledger) or apply(submission, ledger, now) for submission in submissions]
            for outcome in outcomes:  # a later submission of the batch may be about the same request
                if isinstance(outcome, Answer) and outcome.request is not None:
                    outcome.request = ledger.requests[lease_pool_id, outcome.request.id]
            if at_once:
                receiving = ReceivingCallers(lease_pool_id, requesting(submissions, outcomes), self._confirming)
                await admission.decide(receiving=receiving)
            else:
                await admission.leave_to_the_loop()
        for decision in admission.decisions:
            outcomes = completed(submissions, outcomes, decision)
        admission.committed()
        for submission, outcome in zip(submissions, outcomes, strict=True):
            if isinstance(outcome, Answer) and outcome.lease is not None:
                self._remember(outcome.lease.id, lease_pool_id)
            if isinstance(outcome, Answer) and isinstance(submission.command, LeaseCancelRequested):
                self._wake(lease_pool_id, submission.command.request_id)  # its waiters learn that it is cancelled
        self._published(admission.more)
        return outcomes

    def _remove_waiter(self, answer: Answer) -> None:
        """Undo `expect_grant`."""
        assert answer.request is not None
        key = answer.pool.id, answer.request.id
        self._grant_waiters[key].remove(answer.woken)
        self._confirming[key] -= answer.confirm
        if not self._grant_waiters[key]:
            del self._grant_waiters[key], self._confirming[key]
        self._waiters_of_pool[answer.pool.id] -= 1
        if not self._waiters_of_pool[answer.pool.id]:
            del self._waiters_of_pool[answer.pool.id], self._seen[answer.pool.id]

    def _wake(self, lease_pool_id: str, request_id: str, granted: Lease | None = None) -> bool:
        """Wake the waiters of a request; True if there are any. A waiter that confirms on receipt is woken without the
        lease while it is reserved, so that it submits its request again."""
        key = lease_pool_id, request_id
        waiters = self._grant_waiters.get(key, ())
        if granted is not None and granted.state is State.RESERVED and self._confirming[key]:
            granted = None
        if waiters and granted is not None:
            self._remember(granted.id, lease_pool_id)
        for woken in waiters:
            if not woken.done():
                woken.set_result(granted)
        return bool(waiters)

    def _remember(self, lease_id: str, lease_pool_id: str) -> None:
        if len(self._pool_of) >= REMEMBERED_LEASES:
            self._pool_of.clear()
        self._pool_of[lease_id] = lease_pool_id


class ReceivingCallers(msgspec.Struct, frozen=True):
    """Request ids whose grant reaches the caller in the answer to a call that is open now."""

    lease_pool_id: str
    requesting: set[str]
    confirming: Mapping[tuple[str, str], int]  # waiters per request that confirm on receipt

    def __contains__(self, request_id: object) -> bool:
        return request_id in self.requesting or self.confirming.get((self.lease_pool_id, str(request_id)), 0) > 0


def requesting(submissions: Sequence[Submission], outcomes: Sequence[Outcome]) -> set[str]:
    """Request ids of this batch whose answer confirms a grant; refused ones are left out."""
    return {
        submission.command.request_id
        for submission, outcome in zip(submissions, outcomes, strict=True)
        if submission.confirm and isinstance(submission.command, LeaseRequested) and isinstance(outcome, Answer)
    }


def completed(submissions: Sequence[Submission], outcomes: Sequence[Outcome], decision: Decision) -> list[Outcome]:
    """The outcomes of a batch after the decision that was made in the same transaction."""
    granted = {lease.request_id: lease for lease in decision.granted}
    ended = {lease.id: lease for lease in decision.ended}
    found: list[Outcome] = []
    for submission, outcome in zip(submissions, outcomes, strict=True):
        if isinstance(outcome, Answer):
            outcome.pool = decision.pool
            if outcome.request is not None and outcome.lease is None:
                outcome.lease = granted.get(outcome.request.id)
            elif outcome.lease is not None and (then := ended.get(outcome.lease.id)) is not None:
                outcome.lease = then
                outcome = overtaken(submission, then) or outcome
        found.append(outcome)
    return found
