"""Listings of an account: half of one proves nothing, and the provider may know why an instance has gone."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from slipway_api.events.worker import Outcome, Result, Scope, Stage, WorkerLost
from slipway_common.observability.telemetry import LOOP_FAILURES
from slipway_provisioner.domain.cloud import Account, Instance
from slipway_provisioner.loops import reap
from slipway_provisioner.providers.port import OutcomeUnknown
from slipway_provisioner.store import accounts
from tests.support.harness import until
from tests.support.provisioner import Provisioner, declared

LOCKED_SECONDS = 4.0  # below the timeouts of a lock and of an idle transaction, 5 s


async def test_a_listing_that_fails_half_way_proves_nothing(provisioner: Provisioner) -> None:
    """Instances of a page that failed do not count as missing."""
    await provisioner.starting(4)
    cloud = provisioner.cloud
    cloud.page_size, cloud.fails_after_pages = 1, 1
    for instance_id in ("i-0003", "i-0004"):
        del cloud.live[instance_id]
    await provisioner.set_clock(61)
    await provisioner.reap()
    assert (await provisioner.states(), cloud.terminated) == ({"starting": 4}, [])
    assert await provisioner.database.fetchval("SELECT unanswered_since IS NOT NULL FROM account")
    cloud.fails_after_pages = None
    await provisioner.set_clock(122)
    await provisioner.reap()
    assert await provisioner.states() == {"starting": 2, "stopped": 2}


async def test_a_listing_that_lasts_is_not_begun_again(provisioner: Provisioner) -> None:
    """Each page but the first puts the next pass off, so that no other replica lists the account meanwhile."""
    await provisioner.starting(3)
    cloud, settings = provisioner.cloud, provisioner.settings
    cloud.page_size = 1
    pages = cloud.pages

    async def slow_pages(account: Account, *, batch_id: str | None = None) -> AsyncIterator[Sequence[Instance]]:
        seconds = 61
        async for page in pages(account, batch_id=batch_id):
            await provisioner.set_clock(seconds)
            async with provisioner.database.acquire() as db:
                assert await accounts.due_for_reaping(db, settings.reap_seconds) is None
            yield page
            seconds += 40

    cloud.pages = slow_pages  # type: ignore[method-assign]
    await provisioner.set_clock(61)
    assert await reap.reap_next(provisioner.database, settings=settings, providers=provisioner.providers)
    assert await provisioner.database.fetchval("SELECT passes FROM account") == 1


async def test_accounts_are_listed_side_by_side(provisioner: Provisioner) -> None:
    """An account that hangs delays no other; no more are listed at once than the settings allow."""
    body = declared()
    (account,) = body["accounts"]
    body["accounts"] = [account | {"id": f"sim-{n}"} for n in range(5)]
    body["worker_pools"][0]["launch_configs"][0]["account"] = "sim-0"
    await provisioner.declare(body)
    settings = provisioner.settings.model_copy(update={"accounts_listed_at_once": 2})
    reaper = reap.Reaper(settings, provisioner.providers)
    released, listed = asyncio.Event(), list[str]()

    async def identity(account: Account) -> str:
        listed.append(account.id)
        if account.id == "sim-0":
            await released.wait()
        return "sim-a"

    provisioner.cloud.identity = identity  # type: ignore[method-assign]
    begun = [await reaper.reap_due(provisioner.database) for _ in range(3)]
    assert (begun, len(reaper.passes)) == ([True, True, False], 2)
    await until(lambda: len(reaper.passes) == 1)
    assert sorted(listed) == [f"sim-{n}" for n in range(5)]
    released.set()
    await until(lambda: not reaper.passes)
    passes = [row["passes"] for row in await provisioner.database.fetch("SELECT passes FROM account")]
    assert passes == [1] * 5


async def test_a_pass_that_fails_ends_no_other(provisioner: Provisioner) -> None:
    """It is counted, and repeated when it is due again."""
    await provisioner.declare()
    reaper = reap.Reaper(provisioner.settings, provisioner.providers)
    provisioner.cloud.pages = None  # type: ignore[assignment,method-assign]
    failures = LOOP_FAILURES.labels("reap")._value
    before = failures.get()
    assert await reaper.reap_due(provisioner.database)
    await until(lambda: not reaper.passes)
    assert failures.get() == before + 1
    assert await provisioner.database.fetchval("SELECT passes FROM account") == 0


async def test_an_instance_that_died_while_booting(provisioner: Provisioner) -> None:
    """The reason that its provider knows is charged; without one, its launch config is."""
    first, second = await provisioner.starting(2)
    capacity = Outcome(
        Stage.BOOT, Result.FAILED, Scope.CAPACITY, "m5.large/zone-a", "Server.InsufficientInstanceCapacity"
    )
    provisioner.cloud.endings[first.instance_id or ""] = capacity
    provisioner.cloud.live.clear()
    await provisioner.set_clock(61)
    await provisioner.reap()
    lost = {event.instance_id: event.outcome for event in await provisioner.published(WorkerLost)}
    vanished = Outcome(Stage.BOOT, Result.FAILED, Scope.CONFIG, second.launch_config_id, "vanished")
    assert lost == {first.instance_id: capacity, second.instance_id: vanished}


async def test_the_end_of_a_registered_worker_ends_no_stage(provisioner: Provisioner) -> None:
    (worker,) = await provisioner.starting()
    await provisioner.register(worker.instance_id or "", worker.batch_id)
    failed = Outcome(Stage.BOOT, Result.FAILED, Scope.CAPACITY, "key", "Server.InsufficientInstanceCapacity")
    provisioner.cloud.endings[worker.instance_id or ""] = failed
    provisioner.cloud.live.clear()
    await provisioner.set_clock(61)
    await provisioner.reap()
    (event,) = await provisioner.published(WorkerLost)
    assert event.outcome is None


async def test_an_account_in_doubt_is_probed_before_it_is_listed(provisioner: Provisioner) -> None:
    """It is listed once a cheap call answers, and what was left there is cleaned up after that."""
    provisioner.cloud.script.append(OutcomeUnknown("no reply"))
    await provisioner.admitted()
    await provisioner.launch()
    provisioner.cloud.healthy = False
    passes = "SELECT passes FROM account"
    await provisioner.set_clock(61)
    await provisioner.reap()
    assert (await provisioner.database.fetchval(passes), provisioner.cloud.cleaned) == (0, 0)
    provisioner.cloud.healthy = True
    await provisioner.set_clock(122)
    await provisioner.reap()
    assert (await provisioner.database.fetchval(passes), provisioner.cloud.cleaned) == (1, 1)


async def test_another_account_is_not_cleaned_up(provisioner: Provisioner) -> None:
    """The credentials may have changed: what belongs to others is not touched."""
    await provisioner.starting()
    provisioner.cloud.reported_identity = "another"
    await provisioner.set_clock(61)
    await provisioner.reap()
    assert provisioner.cloud.cleaned == 0


async def test_a_start_that_waits_delays_no_other(provisioner: Provisioner) -> None:
    """The calls of other launch configs are made meanwhile."""
    await provisioner.admitted(2, "zone-a", "zone-b")
    busy = await provisioner.database.fetchval("SELECT launch_config_id FROM lease ORDER BY fencing_token LIMIT 1")
    async with provisioner.database.acquire() as db:
        transaction = db.transaction()
        await transaction.start()
        await db.execute("SELECT FROM launch_config WHERE id = $1 FOR UPDATE", busy)
        launching = asyncio.create_task(provisioner.launch())
        with contextlib.suppress(AssertionError):
            await until(lambda: provisioner.cloud.calls, "the other call is made", seconds=LOCKED_SECONDS)
        made = [call.config["id"] == busy for call in provisioner.cloud.calls]
        await transaction.rollback()
    await launching
    assert made == [False]
    assert len(provisioner.cloud.calls) == 2
