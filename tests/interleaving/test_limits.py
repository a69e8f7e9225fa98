"""Safety limits among replicas: no interleaving of starts, declarations and restores launches above the limit in force,
and one alert says that it is reached."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import slipway_provisioner
from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.lease import LeaseGranted, LeaseRequested
from slipway_common.database.postgres import Connection
from slipway_common.messaging.incarnation import Incarnation
from slipway_provisioner.apply import limiting, plan, recovery
from slipway_provisioner.domain import planning
from slipway_provisioner.store import limits, pools, starts
from tests.support.provisioner import Provisioner, declared, in_transaction, report, stopped_at
from tests.support.starts import batch_count
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)
RENEWAL: Final = Incarnation(id="two", reason="commits were lost", former=("one",), revision_base=0, requested=None)


def two_pools(**account: Any) -> dict[str, Any]:
    """Two pools in one account, with these limits of the account."""
    body = declared("zone-a")
    other = declared("zone-b", id="other")["worker_pools"][0]
    body["worker_pools"].append(other)
    if account:
        body["accounts"][0]["limits"] = account
    return body


async def granted(provisioner: Provisioner, **account: Any) -> Sequence[LeaseGranted]:
    """Admitted intents of two pools, one each, that were requested before the account had these limits."""
    await provisioner.declare(two_pools())
    await provisioner.trust()
    await provisioner.demand(report(1), report(1, pool_id="other"))
    await provisioner.plan()
    grants = [provisioner.granted(request) for request in await provisioner.published(LeaseRequested)]
    await provisioner.leases(*grants)
    if account:
        await provisioner.declare(two_pools(**account))
    return grants


async def alerts(provisioner: Provisioner) -> Mapping[type, int]:
    events = [each for each in await provisioner.events() if getattr(each, "kind", "") == "launch-limit"]
    return {kind: sum(isinstance(each, kind) for each in events) for kind in (AlertRaised, AlertResolved)}


@locking("store.limits.LOCK")
async def test_two_replicas_at_one_unit_of_headroom(provisioner: Provisioner) -> None:
    """The second start waits for the first and then finds nothing left, in whatever pool of the account it is."""
    one, two = await granted(provisioner, launches_per_hour=1)
    async with provisioner.database.acquire() as db, provisioner.database.acquire() as other:
        async with stopped_at(provisioner, "launch_batch", provisioner.launcher._start(db, [one.lease_id])) as first:
            second = provisioner.start(provisioner.launcher._start(other, [two.lease_id]))
            await provisioner.until_waiting(first, second)
        assert await first
        assert not await second
    assert await batch_count(provisioner) == 1
    assert await provisioner.states() == {"launching": 1, "stopped": 1}


@locking("store.limits.LOCK")
async def test_starts_under_other_limits_do_not_wait(provisioner: Provisioner) -> None:
    """Nor do those without any."""
    one, two = await granted(provisioner)
    body = two_pools()
    body["worker_pools"][0]["limits"] = {"launches_per_hour": 1}
    await provisioner.declare(body)
    async with provisioner.database.acquire() as db, db.transaction():
        await limits.lock(db, "linux", "sim-a")
        async with provisioner.database.acquire() as other:
            started = [grant for grant in (one, two) if await _is_of(other, grant, "other")]
            assert await provisioner.launcher._start(other, [started[0].lease_id])


async def _is_of(db: Connection, grant: LeaseGranted, pool_id: str) -> bool:
    found = "SELECT pool_id FROM launch_config WHERE id = (SELECT launch_config_id FROM lease WHERE id = $1)"
    return bool(await db.fetchval(found, grant.lease_id) == pool_id)


@locking("store.limits.LOCK_DECLARED", "store.limits.DECLARE")
async def test_a_start_that_waited_for_a_lowered_limit_obeys_it(provisioner: Provisioner) -> None:
    one, two = await granted(provisioner, launches_per_hour=2)
    async with provisioner.database.acquire() as db:
        assert await provisioner.launcher._start(db, [one.lease_id])
        lowered = provisioner.declare(two_pools(launches_per_hour=1))
        async with stopped_at(provisioner, "audit", lowered) as declaring:
            start = provisioner.start(provisioner.launcher._start(db, [two.lease_id]))
            await provisioner.until_waiting(declaring, start)
        await declaring
        assert not await start
    assert await batch_count(provisioner) == 1


@locking("store.limits.LOCK_DECLARED", "store.limits.DELETE_UNDECLARED")
async def test_a_limit_that_is_removed_waits_for_a_start(provisioner: Provisioner) -> None:
    """The start that was first has its charge, and later ones have no limit."""
    one, two = await granted(provisioner, launches_per_hour=1)
    async with provisioner.database.acquire() as db, provisioner.database.acquire() as other:
        async with stopped_at(provisioner, "launch_batch", provisioner.launcher._start(db, [one.lease_id])) as first:
            removing = provisioner.start(provisioner.declare(two_pools()))
            await provisioner.until_waiting(first, removing)
        assert await first
        await removing
        assert await provisioner.launcher._start(other, [two.lease_id])


@locking("store.functions.LOCK_STARTS")
async def test_a_limit_that_is_declared_between_the_locks_of_several_starts(provisioner: Provisioner) -> None:
    """Its lease is left out, so that it starts alone and counts, also if it is the only one whose pool is free."""
    grants = await granted(provisioner)
    async with provisioner.database.acquire() as db, provisioner.database.acquire() as other, db.transaction():
        async with other.transaction():
            await other.execute("SELECT FROM worker_pool WHERE id = 'other' FOR UPDATE")
            locked = await starts.lock(db, [grant.lease_id for grant in grants])
        assert [worker.pool_id for each in locked.values() for worker in each.waiting] == ["linux"]
        await provisioner.declare(two_pools(launches_per_hour=1))
        assert await starts.read(db, locked, unlimited=True) == []


@locking("store.limits.SEEN", "store.limits.ALERT")
async def test_two_planners_raise_one_alert(provisioner: Provisioner) -> None:
    """Both find the limit reached before either has said so."""
    await granted(provisioner, launches_per_hour=1)
    await provisioner.launch()
    await provisioner.plan()
    await provisioner.database.execute("UPDATE launch_limit SET alerted = '', limited_at = NULL")
    await provisioner.events()
    await provisioner.demand(report(3, at=1), report(3, pool_id="other", at=1))
    async with stopped_at(provisioner, "outbox", provisioner.plan_step()) as one:
        two = provisioner.start(provisioner.plan_step())
        await provisioner.until_waiting(one, two)
    await asyncio.gather(one, two)
    await provisioner.plan()
    assert await alerts(provisioner) == {AlertRaised: 1, AlertResolved: 0}


@locking("store.limits.SEEN")
async def test_a_plan_raises_no_alert_on_a_limit_that_was_raised_meanwhile(provisioner: Provisioner) -> None:
    """It would name the former limit, and nobody would resolve it."""
    await granted(provisioner, launches_per_hour=1)
    await provisioner.launch()
    await provisioner.plan()
    await provisioner.demand(report(3, at=1))
    await provisioner.database.execute("UPDATE launch_limit SET alerted = '', limited_at = NULL")
    await provisioner.events()
    observed = await provisioner.observed()
    await provisioner.declare(two_pools(launches_per_hour=9))
    async with provisioner.database.acquire() as db, db.transaction():
        now = await pools.now(db)
        decided = planning.plan(observed, now=now)
        assert decided.reached
        await plan.execute(db, observed, decided, now)
    assert await alerts(provisioner) == {AlertRaised: 0, AlertResolved: 0}


@locking("store.limits.OVER")
async def test_two_replicas_resolve_one_alert(provisioner: Provisioner) -> None:
    await granted(provisioner, launches_per_hour=1)
    await provisioner.database.execute("UPDATE launch_limit SET alerted = 'launches', limited_at = slipway_clock()")
    await provisioner.set_clock(1000)
    await provisioner.events()

    async def settle() -> None:
        await in_transaction(provisioner, lambda db: limiting.settle(db, provisioner.settings.tariff()))

    async with stopped_at(provisioner, "outbox", settle()):
        await settle()  # it skips what the first has locked
    await asyncio.gather(*provisioner._started)
    assert await alerts(provisioner) == {AlertRaised: 0, AlertResolved: 1}


@locking("store.limits.FORGET")
async def test_a_restore_waits_for_a_start(provisioner: Provisioner) -> None:
    """The launches that it assumes to be lost are counted besides that start."""
    one, _ = await granted(provisioner, launches_per_hour=3)
    async with provisioner.database.acquire() as db:
        async with stopped_at(provisioner, "launch_batch", provisioner.launcher._start(db, [one.lease_id])) as start:
            restoring = provisioner.start(
                in_transaction(provisioner, lambda db: recovery.stop_until_confirmed(db, RENEWAL))
            )
            await provisioner.until_waiting(start, restoring)
        assert await start
        await restoring
        ((level, _),) = await limits.listed(db, provisioner.settings.tariff())
    assert level.usage.launches == 1 + 3


@locking("store.limits.REDATE")
async def test_charges_are_dated_anew_while_an_outcome_is_recorded(provisioner: Provisioner) -> None:
    """A replica passes over what another one has locked, and no charge keeps its time ahead of the clock."""
    await provisioner.set_clock(500)
    await granted(provisioner, launches_per_hour=3)
    await provisioner.launch()
    await provisioner.set_clock(0)
    async with provisioner.database.acquire() as db, provisioner.database.acquire() as other, db.transaction():
        await limits.redate(db)
        await limits.redate(other)
    ahead = "SELECT count(*) FROM launch_batch WHERE known_at > slipway_clock()"
    assert await provisioner.database.fetchval(ahead) == 0
