"""Callers of this process that wait for a grant. Decisions of this process wake them after the commit; decisions of
other replicas wake them through `check_grants` (see grant_notifier.py)."""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeAlias

from slipway_api.events.lease import LeaseCancelRequested
from slipway_common.database.postgres import Database
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.domain.exchange import Answer, Exchange
from slipway_lease_broker.domain.ledger import Lease, State
from slipway_lease_broker.store import answers

Woken: TypeAlias = asyncio.Future[Lease | None]
CALLS_MAX: Final = 1_000
"""Calls of one owner that wait at a time, a quarter of the connections of a process: all others need some."""


class GrantWaiters:
    """Waiting callers, one future each; one object per process. A future counts until it is done or cancelled, and is
    removed in the next turn of the event loop. After a commit, `notify_replicas(lease_pool_id)` is called for each
    grant to a queued request without a waiter here."""

    def __init__(self, notify_replicas: Callable[[str], None]) -> None:
        self._notify_replicas = notify_replicas
        self._waiters: dict[tuple[str, str], dict[Woken, bool]] = {}  # pool, request → whether each confirms on receipt
        self._waiters_of_pool: Counter[str] = Counter()  # by lease pool
        self._waiters_of_owner: Counter[str] = Counter()  # by owner of the request
        self._seen: dict[str, int] = {}  # lease pool with waiters → fencing token up to which grants were checked

    @property
    def waiting_callers(self) -> int:
        """Number of callers in this process that wait for a grant."""
        return self._waiters_of_pool.total()

    def has_room(self, owner: str) -> bool:
        """True if another call of this owner may wait. Otherwise it is answered at once, and the caller repeats it."""
        return self._waiters_of_owner[owner] < CALLS_MAX

    def confirms(self, lease_pool_id: str, request_id: str) -> bool:
        """True if a caller that waits for a request confirms its grant on receipt."""
        waiters = self._waiters.get((lease_pool_id, request_id), {})
        return any(confirm and not woken.done() for woken, confirm in waiters.items())

    def committed(self, decisions: Iterable[Decision], exchanges: Iterable[Exchange] = ()) -> None:
        """Wake callers whose requests were granted or cancelled, notify the other replicas, and register callers that
        have to wait."""
        for decision in decisions:
            pool_id = decision.pool.id
            elsewhere = {
                lease.request_id for lease in decision.granted if not self._wake(pool_id, lease.request_id, lease)
            }
            if not elsewhere.isdisjoint(decision.awaited):  # a request that was granted on arrival has no waiters
                self._notify_replicas(pool_id)
        for submission, outcome in exchanges:
            if isinstance(outcome, Answer):
                if isinstance(submission.command, LeaseCancelRequested):
                    self._wake(outcome.pool.id, submission.command.request_id)  # its waiters learn that it is cancelled
                if outcome.waits and submission.woken is not None:
                    self.register(outcome, submission.woken, confirm=submission.confirm)

    def register(self, answer: Answer, woken: Woken, *, confirm: bool = False) -> None:
        """Register a caller that waits for a grant. Call it before control returns to the event loop after the commit,
        so that no later grant is missed. A disconnected caller, whose future is cancelled, uses no memory; its request
        waits in the database."""
        assert answer.request is not None
        if woken.done():
            return
        pool_id, key, owner = answer.pool.id, (answer.pool.id, answer.request.id), answer.request.owner
        self._waiters.setdefault(key, {})[woken] = confirm
        self._seen.setdefault(pool_id, answer.pool.last_token)
        self._waiters_of_pool[pool_id] += 1
        self._waiters_of_owner[owner] += 1

        def leave(_: Woken) -> None:
            del self._waiters[key][woken]
            if not self._waiters[key]:
                del self._waiters[key]
            self._waiters_of_owner[owner] -= 1
            if not self._waiters_of_owner[owner]:
                del self._waiters_of_owner[owner]
            self._waiters_of_pool[pool_id] -= 1
            if not self._waiters_of_pool[pool_id]:
                del self._waiters_of_pool[pool_id], self._seen[pool_id]

        woken.add_done_callback(leave)

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

    def _wake(self, lease_pool_id: str, request_id: str, granted: Lease | None = None) -> bool:
        """Wake the waiters of a request; True if there are any. A waiter that confirms on receipt is woken without the
        lease while it is reserved, so that it submits its request again."""
        waiting = [woken for woken in self._waiters.get((lease_pool_id, request_id), ()) if not woken.done()]
        if granted is not None and granted.state is State.RESERVED and self.confirms(lease_pool_id, request_id):
            granted = None
        for woken in waiting:
            woken.set_result(granted)
        return bool(waiting)
