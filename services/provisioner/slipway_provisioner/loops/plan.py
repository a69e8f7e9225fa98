"""Planning loop: turns dirty pools into launch intents. The only place where launches are decided."""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import asyncpg

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved, alert_identity
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.redaction import described
from slipway_common.database.postgres import Connection, Database, is_infrastructure
from slipway_common.messaging import outbox
from slipway_common.observability.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.apply.leases import request_again
from slipway_provisioner.apply.plan import cut, execute, keys
from slipway_provisioner.domain import planning, windows
from slipway_provisioner.domain.planning import Plan
from slipway_provisioner.domain.pool import Observed
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import leases, marks, pools, waiting
from slipway_provisioner.store.pools import Dirty

LOG = logger(__name__)
STEP_SECONDS: Final = 1.0
POOLS_MAX: Final = 8
"""Most pools that are planned in one transaction, whose keys others wait for until its end."""
LOCK_SECONDS: Final = 0.05
"""Longest wait of a planner for a lock, which holds a connection. Then other pools come first."""
LAUNCHING_SECONDS: Final = 2.0
"""Longest time after a launch for which its pool is planned again only once its call has begun, if a lease is granted.
Both need the lock of the pool: under load, decisions on single changes would leave no room for calls."""
RETRY_SECONDS: Final = 5.0  # between two attempts at a pool whose planning fails
CONTENDED: Final = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)


class InvalidPlan(Exception):
    """The plan violates an invariant, which is a bug. Nothing of it is executed."""


class Planner:
    """Plans pools as they become dirty, several at once, on at most half of the connections of this process.

    The marks of a pool that are due when it is claimed share a decision, and those that come meanwhile share the next
    one: many changes are coalesced for as long as a decision takes, and a single one waits for nothing. While others
    are due, a planner takes twice as many pools as before into its next transaction, up to POOLS_MAX. Those of several
    pools are written in turn: they would wait for the same keys."""

    def __init__(
        self,
        *,
        settings: Settings,
        calculator_unavailable_seconds: Callable[[], float],
        publish: Callable[[], None],
        lock_seconds: float = LOCK_SECONDS,
    ) -> None:
        """`publish` is called after each commit, whose events no loop of this process has to handle."""
        self._settings = settings
        self._calculator_unavailable_seconds = calculator_unavailable_seconds
        self._publish = publish
        self._lock_seconds = lock_seconds
        self._turn = asyncio.Lock()

    async def step(self, database: Database) -> bool:
        """Plan until no pool is due, for STEP_SECONDS at most; True if more may be due."""
        until = monotonic_seconds() + STEP_SECONDS
        planners_max = max(1, database.get_max_size() // 2)
        planners: list[asyncio.Task[bool]] = []

        def add() -> None:
            if len(planners) < planners_max:
                planners.append(asyncio.create_task(plan(due=bool(planners))))

        async def plan(*, due: bool) -> bool:
            most = 1

            def claimed() -> None:
                nonlocal due
                due = True
                add()

            while monotonic_seconds() < until:
                # Mostly there are none: that is found at less cost than by an attempt to claim one.
                if not (due or await marks.are_due(database)):
                    return False
                due = False
                most = await plan_next(
                    database,
                    settings=self._settings,
                    calculator_unavailable_seconds=self._calculator_unavailable_seconds,
                    claimed=claimed,
                    lock_seconds=self._lock_seconds,
                    most=most,
                    turn=contextlib.nullcontext() if most == 1 else self._turn,
                )
                if not most:
                    return False
                self._publish()
            return True

        add()
        try:
            for planner in planners:  # each adds another one once it has claimed a pool
                await asyncio.wait([planner])
        finally:
            for planner in planners:
                planner.cancel()
            await asyncio.gather(*planners, return_exceptions=True)  # no transaction outlives the step
        unfinished = [planner.result() for planner in planners]
        return any(unfinished)


def _nothing() -> None:
    """Start no other planner."""


async def plan_next(
    database: Database,
    *,
    settings: Settings,
    calculator_unavailable_seconds: Callable[[], float],
    claimed: Callable[[], None] = _nothing,
    lock_seconds: float = LOCK_SECONDS,
    launching_seconds: float = LAUNCHING_SECONDS,
    most: int = 1,
    turn: contextlib.AbstractAsyncContextManager[Any] = contextlib.nullcontext(),
) -> int:
    """Plan `most` dirty pools under their locks and commit the plans; returns how many the next attempt may take, 0 if
    no pool is dirty. If one of several fails or waits for a lock, each is planned alone. `claimed` is called once
    pools are locked, if others are dirty. `turn` is held from the locks of shared windows to the commit. Pools with a
    call to begin, for a launch of the last `launching_seconds`, are left out."""
    dirty: Sequence[Dirty] = ()
    try:
        async with contextlib.AsyncExitStack() as writing, database.acquire() as db, db.transaction():
            dirty = await pools.claim_dirty(db, lock_seconds, most, launching_seconds=launching_seconds)
            if not dirty:
                return 0
            if dirty[0].more:
                claimed()
            read = await pools.observe(
                db,
                dirty=dirty,
                deadlines=settings.deadlines(),
                unavailable_seconds=calculator_unavailable_seconds(),
                weight_half_life_seconds=settings.weight_half_life_seconds,
                attempt_seconds=settings.unavailable_attempt_seconds,
                tariff=settings.tariff(),
            )
            made = [(observed, planning.plan(observed, now=now), now) for observed, now in read]
            await writing.enter_async_context(turn)
            decided = await _write(db, dirty, made)
    except CONTENDED:
        if len(dirty) == 1:
            await marks.requeue(database, dirty[0].pool_id)
        return 1
    except Exception as error:
        if not dirty or is_infrastructure(error):
            raise
        if len(dirty) == 1:
            await _postpone(database, dirty[0].pool_id, error)
        return 1
    for each in dirty[:decided]:
        metrics.DECISIONS.labels(each.pool_id).inc()
    return min(POOLS_MAX, 2 * most) if decided == len(dirty) else 1


async def _write(tx: Connection, dirty: Sequence[Dirty], made: Sequence[tuple[Observed, Plan, datetime]]) -> int:
    """Store plans, cut to the shared windows; returns their number. A plan that changes rows which others may have
    locked is stored alone, so that locks have one order: the pools from it on, or after it, stay dirty."""
    decided, lock = 0, keys((observed, plan) for observed, plan, _ in made)
    for each, (observed, plan, now) in zip(dirty, made, strict=True):
        plan = await cut(tx, observed, plan, now, lock=lock)
        lock = []
        is_alone = not plan.adds_only or marks.FAILED in each.reasons
        if is_alone and decided:
            break
        if problems := planning.check_plan(observed, plan):
            raise InvalidPlan("; ".join(problems))
        await execute(tx, observed, plan, now)
        if marks.FAILED in each.reasons:
            text = f"planning {each.pool_id} succeeds again"
            await outbox.enqueue(tx, [_failing(AlertResolved, each.pool_id, text)])
        decided += 1
        if is_alone:
            break
    left = [(each, reason) for each in dirty[decided:] for reason in sorted(each.reasons)]
    await marks.put_back(tx, [(each.pool_id, reason, each.since) for each, reason in left if each.since is not None])
    return decided


async def _postpone(database: Database, pool_id: str, error: Exception) -> None:
    """Retry the pool later and alert, so that a bug in planning one pool does not stop the others."""
    LOG.error("planning failed", pool=pool_id, exc_info=error)
    async with database.acquire() as db, db.transaction():
        await waiting.leave(db, pool_id)
        if await marks.postpone(db, pool_id, RETRY_SECONDS):
            await outbox.enqueue(db, [_failing(AlertRaised, pool_id, f"planning {pool_id} fails: {described(error)}")])


def _failing(kind: type[Alert], pool_id: str, summary: str) -> Alert:
    return kind(
        **alert_identity("provisioner", "plan-failed", "pool", pool_id),
        summary=summary,
        effect="the pool launches and stops no workers",
        doing=f"tries again every {RETRY_SECONDS:g} s, and whenever the pool changes",
        command=f"slipway why {pool_id}  # then read the traceback in the provisioner's log",
    )


async def resend_requests(database: Database, *, resend_seconds: float) -> bool:
    """Request leases for delayed intents anew; resend unanswered requests under the same id."""
    async with database.acquire() as db, db.transaction():
        requested = await request_again(db)
        await leases.resend(db, resend_seconds)
    return requested


async def wake_waiting(database: Database, *, calculator_unavailable_seconds: Callable[[], float]) -> bool:
    """Wake pools that wait for headroom, whatever has freed it. For what a start frees they are woken at once."""
    window_max = windows.largest(calculator_unavailable=calculator_unavailable_seconds() > 0)
    async with database.acquire() as db:
        return await waiting.wake(db, window_max=window_max)
