"""Launch windows on a real database: windows of configs and of shares, trips, and the starts and failures that
count."""

from collections import Counter
from pathlib import Path
from typing import Final

import msgspec
import pytest

from slipway_api.events.lease import LeaseRequested
from slipway_api.events.scopes import NEW_SHARED_WINDOWS, Key, capacity_key, credential_key, image_key, quota_key
from slipway_api.events.weight import StageHealth
from slipway_common.base.revisions import name_of
from slipway_provisioner.domain.workers import lost
from slipway_provisioner.handlers.weights import WeightView
from slipway_provisioner.store import decisions, pools, workers
from slipway_provisioner.store.outcomes import LATE_RECORD_SECONDS
from tests.support.provisioner import Provisioner, administrator, declared, received, report, revision_id, weight
from tests.support.window_histories import BOOT_FAILED, IMAGE, NO_CAPACITY, QUOTA, end, record, shared, two_pools


def healths(window: int = 64, **folded: int) -> dict[str, StageHealth]:
    stage = StageHealth(probability=0.95, successes=0, failures=0, window=window, failures_folded=0)
    stages = ("launch", "boot", "claim")
    return {name: msgspec.structs.replace(stage, failures_folded=folded.get(name, 0)) for name in stages}


NEW_IMAGE: Final = NEW_SHARED_WINDOWS["image", "boot"]


async def demanded(provisioner: Provisioner, *pools_: str, pending: int = 50, at: float = 0) -> dict[str, int]:
    """Demand of this many tasks for the pools; returns the number of intents per config."""
    await provisioner.demand(*(report(pending, at=at, pool_id=pool) for pool in pools_ or ("linux",)))
    await provisioner.plan()
    rows = await provisioner.database.fetch("SELECT launch_config_id AS config FROM worker WHERE state <> 'stopped'")
    return dict(Counter(name_of(row["config"]) for row in rows))


async def config_reason(provisioner: Provisioner, name: str, pool_id: str = "linux") -> str:
    (decision,) = await decisions.recent(provisioner.database, pool_id, 1)
    (reason,) = [note["reason"] for id_, note in decision["details"]["configs"].items() if name_of(id_) == name]
    assert isinstance(reason, str)
    return reason


async def level(provisioner: Provisioner, key: Key = IMAGE, stage: str = "boot", pool_id: str = "linux") -> int:
    known = await pools.shared(provisioner.database, pool_id)
    (found,) = [shared for shared in known if shared.share == (key, stage)]
    return found.in_flight + found.unfolded


async def test_initial_windows_are_small(provisioner: Provisioner) -> None:
    """Four launches per config and 18 boots per image, however many configs use it; each decision gives the reason."""
    await provisioner.declare(declared("zone-a", "zone-b", "zone-c", "zone-d", "zone-e"))
    assert sum((await demanded(provisioner)).values()) == 18
    assert await provisioner.last_reason() == "50 needed, room for 18"
    await demanded(provisioner, at=1)
    assert await config_reason(provisioner, "zone-c") == "the boot window of image simulated/linux-1 is full"
    await provisioner.weights(weight("zone-a", shared=(shared(window=64),)))
    assert await demanded(provisioner, at=2) == {"zone-a": 34} | dict.fromkeys(
        ("zone-b", "zone-c", "zone-d", "zone-e"), 4
    )
    await demanded(provisioner, pending=60, at=3)
    assert await config_reason(provisioner, "zone-b") == "the launch window is full"


async def test_keys_are_those_of_the_calculator(provisioner: Provisioner) -> None:
    """Both services use the same keys."""
    await provisioner.declare()
    rows = await provisioner.database.fetch("SELECT key, stage FROM shared_window")
    image, quota = image_key("simulated/linux-1"), quota_key("sim-a", "sim-1", "m5.large")
    assert {tuple(row) for row in rows} == {
        (image.text, "boot"),
        (image.text, "claim"),
        (image.text, "launch"),
        (quota.text, "launch"),
        (credential_key("sim-a").text, "launch"),
        (capacity_key("sim-a", "sim-1", "zone-a", "m5.large").text, "launch"),
    }


async def test_the_highest_version_counts(provisioner: Provisioner) -> None:
    """The highest version wins in any order and from any record; a deleted record changes nothing."""
    await provisioner.declare(two_pools())
    records = [record("zone-a", shared=(shared(version=7, window=11), shared(stage="claim", version=7, window=70)))]
    records.append(record("zone-b", pool_id="other", shared=(shared(version=9, window=12, state="tripped"),)))
    records.append(record("zone-c", pool_id="other", shared=(shared(version=8, window=13),)))
    await provisioner.weights(*records[:2])
    await provisioner.weights(records[2], revision=2)
    gone = [msgspec.structs.replace(record, event=None) for record in received(records[1])]
    await WeightView().apply(provisioner.database, gone)
    rows = await provisioner.database.fetch(
        "SELECT stage, version, size, state FROM shared_window WHERE key = $1", IMAGE.text
    )
    assert {tuple(row) for row in rows} == {
        ("boot", 9, 12, "tripped"),
        ("claim", 7, 70, "healthy"),
        ("launch", 0, None, "healthy"),
    }
    assert await provisioner.database.fetchval("SELECT count(*) FROM weight") == 2


async def test_a_share_that_turns_marks_its_pools_dirty(provisioner: Provisioner) -> None:
    """One that trips or recovers marks all its pools dirty once, one whose window grows only that of the record."""
    body = two_pools()
    body["worker_pools"].append(declared("zone-d", id="third")["worker_pools"][0])
    body["worker_pools"][2]["launch_configs"][0] |= {"image": "linux-3", "instance_type": "r5.large"}
    await provisioner.declare(body)
    await provisioner.plan()
    dirty = "SELECT DISTINCT pool_id FROM dirty_pool ORDER BY pool_id"
    versions = (
        (shared(version=4, window=30), ["linux"]),
        (shared(version=5, window=30, state="tripped"), ["linux", "other"]),
        (shared(version=5, window=30, state="tripped"), ["linux"]),
        (shared(version=6, window=40), ["linux", "other"]),
    )
    for revision, (window, expected) in enumerate(versions):
        await provisioner.weights(weight("zone-a", shared=(window,)), revision=revision)
        assert [row["pool_id"] for row in await provisioner.database.fetch(dirty)] == expected
        await provisioner.plan()


@pytest.mark.parametrize("key_stage", [(IMAGE, "boot"), (IMAGE, "claim"), (IMAGE, "launch"), (QUOTA, "launch")])
async def test_a_tripped_share_trips_its_configs_and_no_others(
    provisioner: Provisioner, key_stage: tuple[Key, str]
) -> None:
    """In both pools, a config without a record and one whose record is healthy trip, too."""
    await provisioner.declare(two_pools())
    tripped = shared(*key_stage, state="tripped", reason="5 image errors (boot_timeout)")
    await provisioner.weights(record("zone-c", pool_id="other", shared=(tripped,)))
    assert await demanded(provisioner, "linux", "other") == {"zone-c": NEW_IMAGE}
    words = f"tripped: {key_stage[0]}: 5 image errors (boot_timeout); no probe is due"
    assert await config_reason(provisioner, "zone-a") == await config_reason(provisioner, "zone-b", "other") == words
    await provisioner.weights(
        weight(
            "zone-a",
            state="probing",
            probe_permit=3,
            probe_ready=True,
            reason="tripped: the image; probe 3 may launch",
        ),
        weight("zone-b", pool_id="other", probe_permit=2, probe_ready=True),
        revision=2,
    )
    assert await demanded(provisioner, "linux", "other", at=1) == {"zone-a": 1, "zone-c": NEW_IMAGE}
    assert await config_reason(provisioner, "zone-b", "other") == words
    async with provisioner.client() as client:
        (row,) = (await client.get("/launch-configs?pool=linux")).json()["items"]
        assert row["health_state"] == "probing"
        kinds = [share["kind"] for share in row["shared"]]
        assert kinds == ["capacity", "credential", "image", "image", "image", "quota"]
        answer = (await client.get("/launch-configs/zone-b")).json()
        key = Key(answer["tripped_by"], answer["tripped_by_id"])
        assert (answer["health_state"], key, answer["tripped_stage"]) == ("tripped", *key_stage)
    await provisioner.weights(
        weight("zone-b", pool_id="other", shared=(shared(*key_stage, version=2, window=10),)), revision=3
    )
    assert (await demanded(provisioner, "linux", "other", at=2))["zone-b"] >= 1


async def test_unfolded_failures_hold_windows_that_pools_share(provisioner: Provisioner) -> None:
    """They count in both pools until a record has folded them."""
    await provisioner.declare(two_pools())
    await provisioner.trust()
    await provisioner.database.execute("UPDATE shared_window SET size = 9 WHERE stage = 'boot'")
    for request in await _requested(provisioner, 6):
        await provisioner.leases(provisioner.granted(request))
    await provisioner.launch()
    await end(provisioner, (await provisioner.workers())[:4], BOOT_FAILED)
    await provisioner.demand(report(2, at=0.5))
    assert await level(provisioner) == await level(provisioner, pool_id="other") == 6
    await provisioner.weights(weight("zone-a", stages=healths(boot=3)), revision=5)
    assert await level(provisioner, pool_id="other") == 3
    assert (await demanded(provisioner, "other", at=1))["zone-b"] == 6


async def boot_fails(provisioner: Provisioner) -> None:
    await provisioner.database.execute(workers.COUNT_OUTCOMES, [revision_id()], ["boot"], [True])


async def unfolded_after(provisioner: Provisioner, seconds: float, *, sent: bool = True) -> int:
    """Unfolded failures of the image after a sweep at that time; `sent` if the relay has sent all events."""
    if sent:
        await provisioner.database.execute("DELETE FROM outbox")
    await provisioner.set_clock(seconds)
    await provisioner.sweep()
    return await level(provisioner)


@pytest.fixture
async def one_unfolded(provisioner: Provisioner) -> Provisioner:
    """Two boots of zone-a have failed, one was folded, and a sweep has run at 601 s."""
    await provisioner.declare(two_pools())
    await provisioner.trust()
    for _ in range(2):
        await boot_fails(provisioner)
    await provisioner.weights(weight("zone-a", stages=healths(boot=1)), revision=5)
    assert await unfolded_after(provisioner, 601) == 1
    return provisioner


async def test_an_unfolded_failure_is_written_off_after_an_hour(one_unfolded: Provisioner) -> None:
    """An unfolded failure is written off after an hour. The failure total is unchanged, and new failures count."""
    assert [await unfolded_after(one_unfolded, seconds) for seconds in (1202, 4200, 4801)] == [1, 1, 0]
    assert await level(one_unfolded, pool_id="other") == 0
    async with one_unfolded.client() as client:
        (row,) = [row for row in (await client.get("/launch-configs")).json()["items"] if row["name"] == "zone-a"]
    assert (row["failed"], row["stages"]["boot"]["unfolded"]) == (2, 0)
    await boot_fails(one_unfolded)
    assert await unfolded_after(one_unfolded, 5402) == 1


async def test_a_failure_folded_late_is_no_longer_written_off(one_unfolded: Provisioner) -> None:
    """Otherwise it would hide the next failure."""
    assert await unfolded_after(one_unfolded, 4801) == 0
    await one_unfolded.weights(weight("zone-a", stages=healths(boot=2)), revision=6)
    assert await unfolded_after(one_unfolded, 5402) == 0
    await boot_fails(one_unfolded)
    assert await level(one_unfolded) == 1


@pytest.mark.parametrize("what", ["failed", "unavailable", "unsent"])
async def test_the_hour_restarts(one_unfolded: Provisioner, what: str) -> None:
    """It restarts with a new failure, with a sweep without the calculator, and while events are unsent."""
    left = 1
    if what == "failed":
        await boot_fails(one_unfolded)
        left = 2
    one_unfolded.unavailable_seconds = float(what == "unavailable")
    assert await unfolded_after(one_unfolded, 4300, sent=what != "unsent") == left
    one_unfolded.unavailable_seconds = 0.0
    assert [await unfolded_after(one_unfolded, seconds) for seconds in (4901, 7800)] == [left, left]
    assert await unfolded_after(one_unfolded, 8601) == 0


async def _requested(provisioner: Provisioner, pending: int) -> list[LeaseRequested]:
    await provisioner.demand(report(pending))
    await provisioner.plan()
    return await provisioner.published(LeaseRequested)


async def test_a_worker_that_fails_during_a_plan_counts_once(provisioner: Provisioner) -> None:
    """It counts as in flight or as failed, never as neither, since one statement reads both."""
    await provisioner.admitted(4)
    await provisioner.database.execute("UPDATE weight SET record = jsonb_set(record, '{stages,launch,window}', '4')")
    everybody = await provisioner.workers()
    async with provisioner.database.acquire() as db, provisioner.database.acquire() as other:
        assert await provisioner.launcher._start(db, ["lease-1"])
        await provisioner.demand(report(9, at=1))
        async with db.transaction():
            await db.execute("LOCK TABLE account IN ACCESS EXCLUSIVE MODE")
            planning = provisioner.start(provisioner.plan_step())
            await provisioner.until_waiting(planning)
            async with other.transaction():
                now = await pools.now(other)
                locked = await workers.lock(other, [worker.id for worker in everybody])
                await workers.save(other, [lost(worker, "gone", now, NO_CAPACITY) for worker in locked])
        await planning
    assert await provisioner.states() == {"stopped": 4}


@pytest.mark.parametrize(("kind", "counted"), [("launching", 4), ("starting", 0)])
async def test_a_stopping_worker_frees_its_unit(
    provisioner: Provisioner, tmp_path: Path, kind: str, counted: int
) -> None:
    """It frees its unit at once, unless its call may still fail."""
    (grant,) = await provisioner.admitted(4)
    if kind == "launching":
        async with provisioner.database.acquire() as db:
            assert await provisioner.launcher._start(db, [grant.lease_id])
    else:
        await provisioner.launch()
    assert await provisioner.states() == {kind: 4}
    async with administrator(provisioner, tmp_path) as client:
        for worker in await provisioner.workers():
            assert (await client.post(f"/workers/{worker.id}/terminate", json={"reason": "drill"})).is_success
    assert await level(provisioner, QUOTA, "launch") == await level(provisioner) == counted


async def test_the_old_image_does_not_count_against_the_new_one(provisioner: Provisioner) -> None:
    """Starts and failures belong to the revision that was launched, and to its image, also once it is replaced."""
    await provisioner.starting(4)
    body = declared()
    body["worker_pools"][0]["launch_configs"][0]["image"] = "linux-2"
    await provisioner.declare(body)
    old, new = revision_id(), revision_id(image="linux-2")
    await end(provisioner, (await provisioner.workers())[:3], BOOT_FAILED)
    await provisioner.weights(weight(new, stages=healths(boot=3)), revision=5)
    assert (await level(provisioner), await level(provisioner, image_key("simulated/linux-2"))) == (4, 0)
    known = (await provisioner.observed()).configs
    boots = {config.id: (config.boot.in_flight, config.boot.unfolded) for config in known}
    assert boots == {old: (1, 3), new: (0, 0)}
    await provisioner.weights(weight(old, stages=healths(boot=3)), revision=6)
    assert await level(provisioner) == 1


async def test_failures_of_a_replaced_config(provisioner: Provisioner) -> None:
    """They count while it drains, and once it is archived as long as its weight record may be late."""
    await provisioner.declare(two_pools())
    for request in await _requested(provisioner, 4):
        await provisioner.leases(provisioner.granted(request))
    await provisioner.launch()
    body = two_pools()
    body["worker_pools"][0]["launch_configs"][0]["name"] = "zone-z"
    await provisioner.declare(body)
    assert await level(provisioner) == 4
    await end(provisioner, (await provisioner.workers())[:3], BOOT_FAILED)
    await end(provisioner, (await provisioner.workers())[3:], None)
    assert await level(provisioner) == 3
    await provisioner.database.execute("UPDATE worker SET state = 'stopped'")
    await provisioner.roll_out()
    assert await level(provisioner) == 3
    await provisioner.sweep()
    assert await level(provisioner) == 3
    await provisioner.set_clock(provisioner.settings.sweep_seconds + LATE_RECORD_SECONDS)
    await provisioner.sweep()
    assert await level(provisioner) == 0


@pytest.mark.parametrize(("days", "failures", "state"), [(29, 3, "tripped"), (31, 0, "healthy")])
async def test_a_config_that_is_declared_again(provisioner: Provisioner, days: int, failures: int, state: str) -> None:
    """It continues where it was, with its own shares, as long as its archived revision is kept; then it starts from
    zero."""
    await provisioner.declare(declared("zone-a", "zone-b"))
    (request,) = [r for r in await _requested(provisioner, 1) if r.units]
    await provisioner.leases(provisioner.granted(request))
    await provisioner.launch()
    worker = await provisioner.worker()
    await provisioner.weights(weight(worker.launch_config_id, shared=(shared(version=5, state="tripped"),)))
    await provisioner.database.execute(
        "UPDATE launch_config_outcomes SET failures = 3 WHERE launch_config_id = $1 AND stage = 'boot'",
        worker.launch_config_id,
    )
    others = declared("zone-x")
    others["worker_pools"][0]["launch_configs"][0]["image"] = "linux-2"
    await provisioner.declare(others)
    await provisioner.database.execute("UPDATE worker SET state = 'stopped'")
    await provisioner.roll_out()
    await provisioner.set_clock(days * 86_400.0)
    await provisioner.roll_out()
    await provisioner.prune()
    await provisioner.declare(declared("zone-a", "zone-b"))
    counted = "SELECT coalesce(sum(failures), 0)::int FROM launch_config_outcomes WHERE stage = 'boot'"
    assert await provisioner.database.fetchval(counted) == failures
    row = await provisioner.database.fetchrow(
        "SELECT state FROM shared_window WHERE key = $1 AND stage = 'boot'", IMAGE.text
    )
    assert row["state"] == state
    weights = await provisioner.database.fetchval("SELECT count(*) FROM weight")
    assert weights == (1 if failures else 0)


#         claim evidence, claimed tasks seen (at), workers in the claim stage, is there a claim window
CLAIMS = [
    ("hook", None, 3, True),
    ("hook", 5, 3, True),
    ("queue", None, 3, True),
    ("queue", 5, 0, True),
    ("none", None, 0, False),
]


@pytest.mark.parametrize(("evidence", "seen", "unconfirmed", "judged"), CLAIMS)
async def test_claim_evidence(
    provisioner: Provisioner, evidence: str, seen: float | None, unconfirmed: int, judged: bool
) -> None:
    """The worker's report, or the queue's since the worker registered; without claim evidence there is no window."""
    await provisioner.declare(declared(evidence={"claim": evidence}))
    await provisioner.trust()
    await provisioner.demand(report(3, 1, at=-5))
    for request in await _requested(provisioner, 3):
        await provisioner.leases(provisioner.granted(request))
    await provisioner.launch()
    for worker in await provisioner.workers():
        assert (await provisioner.register(worker.instance_id or "", worker.batch_id)).is_success
    if seen is not None:
        await provisioner.demand(report(9, 2, at=seen))
        await provisioner.demand(report(9, 0, at=seen + 1))
    async with provisioner.client() as client:
        (row,) = (await client.get("/launch-configs")).json()["items"]
    assert row["stages"].get("claim", {}).get("in_flight", 0) == unconfirmed
    known = await pools.shared(provisioner.database, "linux")
    assert {(shared.key, shared.in_flight) for shared in known if shared.stage == "claim"} == (
        {(IMAGE, unconfirmed)} if judged else set()
    )
    await provisioner.database.execute("UPDATE weight SET record = jsonb_set(record, '{stages,claim,window}', '1')")
    await provisioner.plan()
    assert await provisioner.states() == {"running": 3} if unconfirmed else {"running": 3, "requested": 1}
