"""Checks of accounts by replicas and people at the same time: two sessions for every locking statement."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import pytest

import slipway_provisioner
from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_provisioner.apply import account_checks as apply
from slipway_provisioner.domain.account_check import CheckState, Finding
from slipway_provisioner.store import account_checks
from slipway_provisioner.store.account_checks import Begun
from tests.support.provisioner import Provisioner, declared, stopped_at
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)
FULL: Final = Finding(kind="quota", subject="standard", state=CheckState.PROBLEM, message="full")
GONE: Final = Finding(kind="image", subject="ami-1", state=CheckState.PROBLEM, message="gone")


async def begin(provisioner: Provisioner) -> Begun:
    async with provisioner.database.acquire() as db:
        begun = await account_checks.begin(db, "sim-a")
    assert begun is not None
    return begun


async def record(provisioner: Provisioner, begun: Begun, found: Sequence[Finding]) -> None:
    async with provisioner.database.acquire() as db, db.transaction():
        await apply.record(db, "sim-a", found, begun.began_at)


async def end(provisioner: Provisioner) -> bool:
    async with provisioner.database.acquire() as db, db.transaction():
        return await apply.end(db)


async def alerts(provisioner: Provisioner) -> list[type[Any]]:
    return [type(event) for event in await provisioner.events() if isinstance(event, AlertRaised | AlertResolved)]


@locking("store.account_checks.DUE")
async def test_replicas_check_an_account_once(provisioner: Provisioner) -> None:
    """One that another replica takes is left to it, and so it is afterwards."""
    await provisioner.declare(declared())
    async with provisioner.database.acquire() as one, provisioner.database.acquire() as two:
        async with one.transaction():
            assert await account_checks.due(one, 3600) is not None
            other = provisioner.start(account_checks.due(two, 3600))
            answered, _ = await asyncio.wait({other}, timeout=10)
            assert answered == {other}
            assert await other is None
        assert await account_checks.due(two, 3600) is None


@locking("store.account_checks.BEGIN")
async def test_a_persons_check_begins_after_a_replicas(provisioner: Provisioner) -> None:
    """It waits for the row, and counts as the newest check then."""
    await provisioner.declare(declared())
    async with provisioner.database.acquire() as one, one.transaction():
        first = await account_checks.due(one, 3600)
        await provisioner.set_clock(10)
        task = provisioner.start(begin(provisioner))
        await provisioner.until_waiting(task)
    second = await task
    assert first is not None
    assert second.began_at > first.began_at


@locking("store.account_checks.LOCK", "store.account_checks.RECORD")
async def test_the_check_that_began_last_counts(provisioner: Provisioner) -> None:
    """Whichever is recorded first: an older one neither raises again what a newer one has found gone, nor resolves
    what it has found."""
    await provisioner.declare(declared())
    older = await begin(provisioner)
    await provisioner.set_clock(10)
    newer = await begin(provisioner)
    await provisioner.events()
    async with stopped_at(provisioner, "outbox", record(provisioner, newer, [FULL])) as one:
        two = provisioner.start(record(provisioner, older, []))
        await provisioner.until_waiting(one, two)
    await asyncio.gather(one, two)
    assert await alerts(provisioner) == [AlertRaised]
    await record(provisioner, newer, [])
    await record(provisioner, older, [FULL])
    assert await alerts(provisioner) == [AlertResolved]


@locking("store.account_checks.LOCK", "store.account_checks.RECORD")
async def test_equal_findings_of_two_checks_are_one_alert(provisioner: Provisioner) -> None:
    await provisioner.declare(declared())
    first = await begin(provisioner)
    await provisioner.set_clock(10)
    second = await begin(provisioner)
    await provisioner.events()
    async with stopped_at(provisioner, "outbox", record(provisioner, first, [FULL])) as one:
        two = provisioner.start(record(provisioner, second, [FULL]))
        await provisioner.until_waiting(one, two)
    await asyncio.gather(one, two)
    assert await alerts(provisioner) == [AlertRaised]


@locking("store.account_checks.MAKE_DUE")
@pytest.mark.parametrize("found", [FULL, GONE])
async def test_a_problem_of_a_run_is_checked_unless_a_check_has_just_found_it(
    provisioner: Provisioner, found: Finding
) -> None:
    """A run that reports its problem while a check is being recorded makes the next one due only for other findings."""
    await provisioner.declare(declared())
    begun = await begin(provisioner)
    async with provisioner.database.acquire() as db:
        async with stopped_at(provisioner, "outbox", record(provisioner, begun, [found])) as one:
            two = provisioner.start(account_checks.make_due(db, "sim-a", FULL.kind, FULL.subject))
            await provisioner.until_waiting(one, two)
        await asyncio.gather(one, two)
        assert (await account_checks.due(db, 3600) is None) is (found is FULL)


@locking("store.account_checks.ENDED")
async def test_replicas_resolve_the_alerts_of_a_retired_account_once(provisioner: Provisioner) -> None:
    await provisioner.declare(declared())
    await record(provisioner, await begin(provisioner), [FULL])
    await provisioner.database.execute("UPDATE account SET retired = true")
    await provisioner.events()
    async with stopped_at(provisioner, "outbox", end(provisioner)) as one:
        assert await end(provisioner) is False
    assert await one is True
    assert await alerts(provisioner) == [AlertResolved]
