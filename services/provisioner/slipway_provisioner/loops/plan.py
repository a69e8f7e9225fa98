"""Planning loop: turns dirty pools into launch intents. The only place where launches are decided."""

import asyncio
from collections.abc import Callable
from typing import Final

import asyncpg

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved, alert_identity
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.redaction import described
from slipway_common.database.postgres import Database, is_infrastructure
from slipway_common.messaging import outbox
from slipway_common.observability.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.apply.leases import request_again
from slipway_provisioner.apply.plan import cut, execute
from slipway_provisioner.domain import planning, windows
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import leases, marks, pools, waiting

LOG = logger(__name__)
STEP_SECONDS: Final = 1.0
LOCK_SECONDS: Final = 0.05
"""Longest wait of a planner for a lock, which holds a connection. Then other pools come first."""
RETRY_SECONDS: Final = 5.0  # between two attempts at a pool whose planning fails
CONTENDED: Final = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError)


class InvalidPlan(Exception):
    """The plan violates an invariant, which is a bug. Nothing of it is executed."""


class Planner:
    """Plans pools as they become dirty, several at once, on at most half of the connections of this process.

    The marks of a pool that are due when it is claimed share a decision, and those that come meanwhile share the next
    one: many changes are coalesced for as long as a decision takes, and a single one waits for nothing."""

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

    async def step(self, database: Database) -> bool:
        """Plan until no pool is due, for STEP_SECONDS at most; True if more may be due."""
        until = monotonic_seconds() + STEP_SECONDS
        planners_max = max(1, database.get_max_size() // 2)
        planners: list[asyncio.Task[bool]] = []

        def add() -> None:
            if len(planners) < planners_max:
                planners.append(asyncio.create_task(plan(due=bool(planners))))

        async def plan(*, due: bool) -> bool:
            def claimed() -> None:
                nonlocal due
                due = True
                add()

            while monotonic_seconds() < until:
                # Mostly there are none: that is found at less cost than by an attempt to claim one.
                if not (due or await marks.are_due(database)):
                    return False
                due = False
                if not await plan_next(
                    database,
                    settings=self._settings,
                    calculator_unavailable_seconds=self._calculator_unavailable_seconds,
                    claimed=claimed,
                    lock_seconds=self._lock_seconds,
                ):
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
) -> bool:
    """Plan one dirty pool under its lock and commit the plan; False if no pool is dirty. `claimed` is called once a
    pool is locked, if others are dirty."""
    pool_id: str | None = None
    try:
        async with database.acquire() as db, db.transaction():
            dirty = await pools.claim_dirty(db, lock_seconds)
            if dirty is None:
                return False
            pool_id = dirty.pool_id
            if dirty.more:
                claimed()
            observed, now = await pools.observe(
                db,
                dirty=dirty,
                deadlines=settings.deadlines(),
                unavailable_seconds=calculator_unavailable_seconds(),
                weight_half_life_seconds=settings.weight_half_life_seconds,
                attempt_seconds=settings.unavailable_attempt_seconds,
                tariff=settings.tariff(),
            )
            plan = await cut(db, observed, planning.plan(observed, now=now), now)
            if problems := planning.check_plan(observed, plan):
                raise InvalidPlan("; ".join(problems))
            await execute(db, observed, plan, now)
            if marks.FAILED in dirty.reasons:
                await outbox.enqueue(db, [_failing(AlertResolved, pool_id, f"planning {pool_id} succeeds again")])
    except CONTENDED:
        if pool_id is not None:
            await marks.requeue(database, pool_id)
        return True
    except Exception as error:
        if pool_id is None or is_infrastructure(error):
            raise
        await _postpone(database, pool_id, error)
        return True
    metrics.DECISIONS.labels(pool_id).inc()
    return True


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
