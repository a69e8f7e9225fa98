"""Sources of demand that report, become stale and end at the same time: two sessions for every locking statement."""

from typing import Any, Final

import pytest

import slipway_provisioner
from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply.sources import remove_source, settle_sources
from slipway_provisioner.handlers.demand import record_demand
from slipway_provisioner.store.retention import DELETE_ENDED_DEMAND
from tests.support.provisioner import Provisioner, in_transaction, received, report, stopped_at, uncommitted
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)
HOUR: Final = 3600.0
WEEK: Final = 7 * 86_400.0


async def settle(db: Connection) -> bool:
    return await settle_sources(db, HOUR)


async def remove(db: Connection) -> Any:
    return await remove_source(db, "linux", "q", by="ann", reason="")


async def stale(provisioner: Provisioner, seconds: float) -> None:
    """A source that reported at 0, valid for 300 s, at a time."""
    await provisioner.declare()
    await provisioner.demand(report(3))
    await provisioner.set_clock(seconds)
    await provisioner.events()


async def alerts(provisioner: Provisioner) -> list[type]:
    return [type(event) for event in await provisioner.events() if isinstance(event, AlertRaised | AlertResolved)]


async def left(provisioner: Provisioner) -> list[tuple[int, bool]]:
    """Pending tasks and alert of each source that has not ended."""
    rows = await provisioner.database.fetch("SELECT pending, alerted FROM demand WHERE ended_at IS NULL")
    return [(row["pending"], row["alerted"]) for row in rows]


@locking("store.sources.LOCK_UNSETTLED", "store.sources.SETTLE")
async def test_two_passes_raise_one_alert(provisioner: Provisioner) -> None:
    """The second pass neither waits nor raises it again."""
    await stale(provisioner, 301)
    async with stopped_at(provisioner, "outbox", in_transaction(provisioner, settle)) as first:
        assert await in_transaction(provisioner, settle) is False
    assert await first is True
    assert await in_transaction(provisioner, settle) is False
    assert await alerts(provisioner) == [AlertRaised]


@locking("store.sources.LOCK_UNSETTLED", "store.sources.SETTLE")
async def test_a_report_that_waited_for_the_end_of_its_source(provisioner: Provisioner) -> None:
    """It brings the source back, since it is newer than the report that had expired."""
    await stale(provisioner, 300 + HOUR)
    async with stopped_at(provisioner, "dirty_pool", in_transaction(provisioner, settle)) as dropping:
        reporting = provisioner.start(provisioner.demand(report(5, at=300 + HOUR)))
        await provisioner.until_waiting(dropping, reporting)
    assert await dropping is True
    await reporting
    assert await left(provisioner) == [(5, False)]


@locking("store.sources.LOCK_UNSETTLED")
async def test_an_expired_source_that_reports(provisioner: Provisioner) -> None:
    """A pass that finds the row locked by its report leaves it, and the next one sees the report."""
    await stale(provisioner, 300 + HOUR)
    async with uncommitted(provisioner, report(5, at=300 + HOUR)):
        assert await in_transaction(provisioner, settle) is False
    assert await in_transaction(provisioner, settle) is False
    assert (await left(provisioner), await alerts(provisioner)) == ([(5, False)], [])


@locking("store.sources.LOCK")
@pytest.mark.parametrize(("at", "remains"), [(301, []), (302, [(5, False)])])
async def test_a_report_that_waited_for_the_removal_of_its_source(
    provisioner: Provisioner, at: float, remains: list[tuple[int, bool]]
) -> None:
    """It counts only if it was observed after the removal."""
    await stale(provisioner, 301)
    async with stopped_at(provisioner, "dirty_pool", in_transaction(provisioner, remove)) as removing:
        reporting = provisioner.start(provisioner.demand(report(5, at=at)))
        await provisioner.until_waiting(removing, reporting)
    assert await removing is not None
    await reporting
    assert await left(provisioner) == remains


@locking("store.sources.LOCK")
async def test_a_removal_that_waited_for_a_report(provisioner: Provisioner) -> None:
    """It ends the report that it finds then, also one observed ahead of the clock."""
    await stale(provisioner, 301)
    async with uncommitted(provisioner, report(5, at=350)):
        removing = provisioner.start(in_transaction(provisioner, remove))
        await provisioner.until_waiting(removing)
    assert (await removing).pending == 5
    assert await left(provisioner) == []


@locking("store.sources.LOCK")
async def test_two_removals_end_a_source_once(provisioner: Provisioner) -> None:
    """The second finds none, and leaves no second entry in the audit."""
    await stale(provisioner, 301)
    async with stopped_at(provisioner, "dirty_pool", in_transaction(provisioner, remove)) as first:
        second = provisioner.start(in_transaction(provisioner, remove))
        await provisioner.until_waiting(first, second)
    assert await first is not None
    assert await second is None
    assert await provisioner.database.fetchval("SELECT count(*) FROM audit WHERE action = 'remove demand source'") == 1


async def test_batches_that_name_the_same_sources_in_another_order(provisioner: Provisioner) -> None:
    """They lock rows in one order, and the newest report counts."""
    await provisioner.declare()
    two = received(report(2, at=2, source="a"), report(2, at=2, source="b"))
    await in_transaction(provisioner, lambda db: record_demand(db, received(report(9), report(9, source="a"))))
    async with uncommitted(provisioner, report(1, at=1, source="b"), report(1, at=1, source="a")):
        second = provisioner.start(in_transaction(provisioner, lambda db: record_demand(db, two)))
        await provisioner.until_waiting(second)
    await second
    assert sorted(await left(provisioner)) == [(2, False), (2, False), (9, False)]


@locking("store.retention.DELETE_ENDED_DEMAND")
async def test_a_report_that_waited_for_the_pruning_of_its_source(provisioner: Provisioner) -> None:
    """It is stored anew. A pruning that finds the row locked by a report leaves it."""
    await stale(provisioner, 301)
    await in_transaction(provisioner, remove)
    await provisioner.set_clock(WEEK + 302)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            assert await db.execute(DELETE_ENDED_DEMAND.text, WEEK) == "DELETE 1"
            reporting = provisioner.start(provisioner.demand(report(5, at=WEEK)))
            await provisioner.until_waiting(reporting)
        await reporting
        assert await left(provisioner) == [(5, False)]
        await in_transaction(provisioner, remove)
        await provisioner.set_clock(2 * WEEK + 303)
        async with uncommitted(provisioner, report(6, at=2 * WEEK)):
            assert await db.execute(DELETE_ENDED_DEMAND.text, WEEK) == "DELETE 0"
        assert await left(provisioner) == [(6, False)]
