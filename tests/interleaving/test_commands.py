"""Two sessions on commands, sweeps, records of weights and pruned rows."""

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

import msgspec

import slipway_provisioner
from slipway_api.events.launch_config import LaunchConfigPaused, LaunchConfigResumed, LaunchConfigUpdated
from slipway_api.events.pool import PoolResumed, PoolUnfrozen
from slipway_api.events.scopes import image_key
from slipway_api.events.signal import SignalRaised
from slipway_api.events.weight import SharedWindow
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply import freezing
from slipway_provisioner.handlers.weights import WeightView
from slipway_provisioner.store import configs, launch_stops, outcomes, pauses, weights, workers
from slipway_provisioner.store.retention import DELETE_STOPS
from tests.support.harness import until_ended_or_waiting
from tests.support.interleaving import FORBID
from tests.support.provisioner import (
    Provisioner,
    after,
    declared,
    in_transaction,
    received,
    report,
    revision_id,
    stopped_at,
    weight,
)
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)


@locking("store.sweeps.NEXT_TO_SWEEP", "store.sweeps.CONFIGS_OF", "store.configs.PAUSE")
async def test_a_sweep_does_not_publish_over_a_pause(provisioner: Provisioner) -> None:
    """It waits for the pause and republishes the state that follows."""
    await provisioner.declare()
    await provisioner.set_clock(601)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await FORBID["pause"](db)
            sweeping = provisioner.start(provisioner.sweep())
            await provisioner.until_waiting(sweeping)
        await sweeping
    events = await provisioner.events()
    states = [event.state for event in events if isinstance(event, LaunchConfigPaused | LaunchConfigUpdated)]
    assert states == ["paused", "paused"]


@locking("store.outcomes.WRITE_OFF", "store.workers.COUNT_OUTCOMES")
async def test_a_failure_during_a_sweep_is_not_written_off(provisioner: Provisioner) -> None:
    """The sweep waits for it and restarts the hour. Sweeps and failures lock in one order."""
    await provisioner.declare(declared("zone-a", "zone-b"))
    await provisioner.trust()
    both = ([revision_id("zone-b"), revision_id()], ["boot"] * 2, [True] * 2)
    await provisioner.database.execute(workers.COUNT_OUTCOMES, *both)
    await provisioner.database.execute("DELETE FROM outbox")
    await provisioner.set_clock(601)
    await provisioner.sweep()
    await provisioner.database.execute("DELETE FROM outbox")
    await provisioner.set_clock(4202)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await db.execute(workers.COUNT_OUTCOMES, [revision_id()], ["boot"], [True])
            sweeping = provisioner.start(provisioner.database.fetch(outcomes.WRITE_OFF, "linux", True))
            await provisioner.until_waiting(sweeping)
        await sweeping
    written_off = (
        "SELECT array_agg(written_off ORDER BY launch_config_id) FROM launch_config_outcomes WHERE stage = 'boot'"
    )
    assert await provisioner.database.fetchval(written_off) == [0, 1]
    for _ in range(5):
        await asyncio.gather(
            *(provisioner.database.execute(workers.COUNT_OUTCOMES, *both) for _ in range(3)),
            *(provisioner.database.fetch(outcomes.WRITE_OFF, "linux", True) for _ in range(3)),
        )


@locking("store.sweeps.NEXT_TO_SWEEP")
async def test_two_sweeps_sweep_once(provisioner: Provisioner) -> None:
    await provisioner.declare()
    await provisioner.events()
    await provisioner.set_clock(601)
    await asyncio.gather(*(provisioner.sweep() for _ in range(4)))
    assert len(await provisioner.published(LaunchConfigUpdated)) == 1


OLD_ROWS: Final = """
UPDATE worker SET state = 'stopped', ended_at = slipway_clock();
UPDATE lease SET state = 'ended';
DELETE FROM decision;
DELETE FROM pool_revision;
DELETE FROM dirty_pool;
INSERT INTO dirty_pool (pool_id, reason) VALUES ('gone', 'a weight');
INSERT INTO decision (id, pool_id, at, last_at, launched, reason, details)
VALUES (gen_random_uuid(), 'linux', slipway_clock(), slipway_clock(), 0, '', '{}');
INSERT INTO claim (worker_id, source, task_id, claimed_at, reported_at, pool_id, started_at, ended_at)
VALUES (gen_random_uuid(), 's', 't', '', slipway_clock(), 'linux', slipway_clock(), slipway_clock());
INSERT INTO unreachable_machine (worker_id, account_id, pool_id, launch_config_id)
VALUES (gen_random_uuid(), 'sim-y', 'linux', 'a');
INSERT INTO launch_stop (scope, scope_id, reason, by, until) VALUES ('pool', 'linux', 'drill', 'op', slipway_clock());
INSERT INTO pool_revision (pool_id, revision, by, action, owner, revisions, spec, spec_digest, changes)
SELECT 'linux', n, 'op', 'apply', '', '{}', '{}', '', '[]' FROM generate_series(1, 11) AS n;
INSERT INTO account (id, provider, region, identity, lease_pool_id, settings, removed)
VALUES ('sim-z', 'simulated', 'r', 'i', 'sim-z', '{}', true);
INSERT INTO console_output (image_revision, account_id, pool_id, launch_config_id, batch_id, worker_id, instance_id,
    reason)
VALUES ('ami-1', 'sim-y', 'linux', 'a', gen_random_uuid(), gen_random_uuid(), 'i-1', '');
DELETE FROM spend_usage;
INSERT INTO spend_usage (account_id, pool_id, at, live, began, ended, seconds)
VALUES ('sim-z', '', slipway_clock(), 0, 1, 1, 60)"""
PRUNED: Final = (
    "claim",
    "decision",
    "worker",
    "launch_batch",
    "lease",
    "unreachable_machine",
    "launch_stop",
    "pool_revision",
    "account",
    "dirty_pool",
    "console_output",
    "spend_usage",
)


async def rows(provisioner: Provisioner) -> list[int]:
    return [await provisioner.database.fetchval(f"SELECT count(*) FROM {table}") for table in PRUNED]


@locking(
    "store.retention.DELETE_CLAIMS",
    "store.retention.DELETE_DECISIONS",
    "store.retention.DELETE_WORKERS",
    "store.retention.DELETE_BATCHES",
    "store.retention.DELETE_LEASES",
    "store.retention.DELETE_UNREACHABLE",
    "store.retention.DELETE_STOPS",
    "store.retention.DELETE_REVISIONS",
    "store.retention.DELETE_ACCOUNTS",
    "store.retention.DELETE_MARKS",
    "store.retention.DELETE_CONSOLES",
    "store.retention.DELETE_SPEND",
)
async def test_pruning_passes_over_what_others_have_locked(provisioner: Provisioner) -> None:
    """It waits for nobody, and deletes those rows in a later round. Two that prune at once do not wait for each other
    either."""
    await provisioner.starting(1)
    await provisioner.database.execute(OLD_ROWS)
    await provisioner.set_clock(401 * 86_400)
    all_of_them = [1, 1, 1, 1, 1, 1, 1, 11, 2, 1, 1, 1]
    async with provisioner.database.acquire() as db, db.transaction():
        for table in PRUNED:
            await db.execute(f"SELECT FROM {table} FOR UPDATE")
        pruning = provisioner.start(provisioner.prune())
        await until_ended_or_waiting(provisioner.database, pruning)
        assert pruning.done(), "pruning waits for a lock"
        await pruning
        assert await rows(provisioner) == all_of_them
    await asyncio.gather(*(provisioner.prune() for _ in range(3)))
    await provisioner.prune()
    assert await rows(provisioner) == [0, 0, 0, 0, 0, 0, 0, 10, 1, 0, 0, 0]


@locking("store.retention.DELETE_STOPS", "store.launch_stops.PUT")
async def test_a_launch_stop_is_set_again_as_it_is_pruned(provisioner: Provisioner) -> None:
    """The command waits for the deletion, and its stop is in force."""
    await provisioner.declare()

    async def put(db: Connection, until: float) -> None:
        await launch_stops.put(db, "pool", "linux", reason="drill", by="op", until=after(until))

    await in_transaction(provisioner, lambda db: put(db, 10))
    await provisioner.set_clock(8 * 86_400)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            assert await db.execute(DELETE_STOPS.text, 7 * 86_400.0) == "DELETE 1"
            putting = provisioner.start(in_transaction(provisioner, lambda db: put(db, 9 * 86_400)))
            await provisioner.until_waiting(putting)
        await putting
        assert [stop.scope_id for stop in await launch_stops.in_force(db)] == ["linux"]


@locking("store.retention.DELETE_SHARES")
async def test_a_share_that_a_record_brings_back_is_pruned(provisioner: Provisioner) -> None:
    """Pruning does not wait for the transaction that stores the record, and deletes the share in a later round."""
    await provisioner.declare()
    late = (SharedWindow(kind="image", id="gone", stage="boot", version=1, window=8),)
    found = f"SELECT count(*) FROM shared_window WHERE key = '{image_key('gone').text}'"
    await provisioner.weights(weight("zone-a", shared=late))
    async with provisioner.database.acquire() as db, db.transaction():
        newer = [msgspec.structs.replace(share, version=2) for share in late]
        await weights.upsert_shared(db, newer)
        pruning = provisioner.start(provisioner.prune())
        await until_ended_or_waiting(provisioner.database, pruning)
        assert pruning.done(), "pruning waits for a lock"
    await pruning
    assert await provisioner.database.fetchval(found) == 1
    await provisioner.prune()
    assert await provisioner.database.fetchval(found) == 0


@locking("store.configs.RESUME_OVERDUE", "store.configs.RESUME", "store.configs.PAUSE")
async def test_a_pause_that_expires_while_it_is_replaced(provisioner: Provisioner) -> None:
    """The later command counts. A repeated resume resumes once."""
    await provisioner.declare()

    async def pause(db: Connection, seconds: float) -> None:
        assert await configs.pause(db, "zone-a", reason="drill", by="op", until=after(seconds), command=True)

    await in_transaction(provisioner, lambda db: pause(db, 10))
    await provisioner.set_clock(11)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await pause(db, 500)
            running_out = provisioner.start(in_transaction(provisioner, configs.resume_overdue))
            await provisioner.until_waiting(running_out)
        assert await running_out == 0
    assert await provisioner.database.fetchval("SELECT paused FROM launch_config_name")

    async def resume(db: Connection) -> bool:
        return await configs.resume(db, "zone-a", reason="over", by="op")

    assert sorted(await asyncio.gather(*(in_transaction(provisioner, resume) for _ in range(3)))) == [0, 0, 1]
    assert len(await provisioner.published(LaunchConfigResumed)) == 1


@locking("store.pauses.RESUME_OVERDUE", "store.pauses.RESUME", "store.pauses.PAUSE")
async def test_a_pool_pause_that_expires_while_it_is_replaced(provisioner: Provisioner) -> None:
    """The later command counts, and a repeated resume resumes once."""
    await provisioner.declare()

    async def pause(db: Connection, seconds: float) -> None:
        assert await pauses.pause(db, "linux", reason="drill", by="op", until=after(seconds))

    await in_transaction(provisioner, lambda db: pause(db, 10))
    await provisioner.set_clock(11)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await pause(db, 500)
            running_out = provisioner.start(in_transaction(provisioner, pauses.resume_overdue))
            await provisioner.until_waiting(running_out)
        assert await running_out == 0
    assert await provisioner.database.fetchval("SELECT paused FROM worker_pool")

    async def resume(db: Connection) -> bool:
        return await pauses.resume(db, "linux", reason="over", by="op")

    assert sorted(await asyncio.gather(*(in_transaction(provisioner, resume) for _ in range(3)))) == [0, 0, 1]
    assert len(await provisioner.published(PoolResumed)) == 1


@locking("store.pauses.FREEZE", "store.pauses.UNFREEZE", "store.pauses.DELETE_FORGIVEN")
async def test_a_pool_is_unfrozen_once(provisioner: Provisioner) -> None:
    """Concurrent freezes and unfreezes count once each; the last unfreeze decides which failures are forgiven."""
    await provisioner.declare()
    seen = SharedWindow(kind="image", id="simulated/linux-1", stage="boot", version=1, window=8, unconfirmed=7)
    await provisioner.weights(weight(shared=(seen,)))

    async def freeze(db: Connection) -> bool:
        return await pauses.freeze(db, "linux", reason="drill", by="op")

    async def unfreeze(db: Connection) -> bool:
        return await freezing.unfreeze(db, "linux", reason="over", by="op")

    for act in (freeze, unfreeze) * 2:
        assert sorted(await asyncio.gather(*(in_transaction(provisioner, act) for _ in range(3)))) == [0, 0, 1]
    assert len(await provisioner.published(PoolUnfrozen)) == 2
    rows = await provisioner.database.fetch("SELECT key, stage, unconfirmed FROM forgiven")
    assert [tuple(row) for row in rows] == [("image/simulated%2Flinux-1", "boot", 7)]


@locking("store.weights.DELETE_FORGIVEN", "store.pauses.DELETE_FORGIVEN")
async def test_records_while_a_pool_is_unfrozen(provisioner: Provisioner) -> None:
    """There is no deadlock, and never more is forgiven than has failed by the newest record."""
    await provisioner.declare()

    def record(version: int, unconfirmed: int) -> Awaitable[Any]:
        shared = tuple(
            SharedWindow(
                kind="image", id="simulated/linux-1", stage=stage, version=version, window=8, unconfirmed=unconfirmed
            )
            for stage in ("boot", "claim", "launch")
        )
        return provisioner.weights(weight(shared=shared), revision=version)

    async def unfreeze(db: Connection) -> bool:
        return await freezing.unfreeze(db, "linux", reason="over", by="op")

    for version in range(1, 25, 3):
        await record(version, 7)
        await provisioner.database.execute("UPDATE worker_pool SET frozen = true, frozen_by = 'op'")
        await asyncio.gather(record(version + 1, 0), in_transaction(provisioner, unfreeze), record(version + 2, 1))
    await record(25, 2)
    assert await provisioner.database.fetchval("SELECT count(*) FROM forgiven WHERE unconfirmed > 2") == 0


@locking("store.pauses.PAUSE", "store.functions.CLAIM_DIRTY")
async def test_a_pause_that_waited_for_a_plan(provisioner: Provisioner) -> None:
    """It is seen by the next plan, which cancels the first one's intents."""
    await provisioner.declare()
    await provisioner.demand(report(2))
    async with stopped_at(provisioner, "outbox", provisioner.plan_step()) as planning:
        pausing = provisioner.start(in_transaction(provisioner, FORBID["pause of the pool"]))
        await provisioner.until_waiting(planning, pausing)
    await asyncio.gather(planning, pausing)
    assert await provisioner.states() == {"requested": 2}
    await provisioner.plan()
    assert await provisioner.states() == {"stopped": 2}


@locking("store.configs.LOCK")
async def test_configs_are_locked_in_one_order(provisioner: Provisioner) -> None:
    """Requests that name configs in descending order do not deadlock with others, nor with a declaration."""
    await provisioner.declare(declared("zone-a", "zone-b", "zone-c"))

    def signals(kind: str, *names: str) -> list[SignalRaised]:
        return [
            SignalRaised(source="s", target_kind="config", target_id=name, kind=kind, reason="r", observed_at=after(0))
            for name in names
        ]

    for price in range(1, 9):
        body = declared("zone-b", "zone-a", "zone-c")
        for config in body["worker_pools"][0]["launch_configs"]:
            config["price_factor"] = float(price)
        await asyncio.gather(
            provisioner.signals(*signals("pause_request", "zone-a", "zone-b", "zone-c")),
            provisioner.signals(*signals("resume_request", "zone-c", "zone-b", "zone-a")),
            provisioner.declare(body),
        )
    assert await provisioner.database.fetchval("SELECT min(price_factor) FROM launch_config_name") == 8


@locking("store.weights.UPSERT", "store.weights.UPSERT_SHARED", "store.weights.DELETE")
async def test_weight_views_of_two_replicas(provisioner: Provisioner) -> None:
    """In any order of reading, the highest revision and the highest version of a share stay, without a deadlock."""
    names = [f"zone-{letter}" for letter in "abcdef"]
    await provisioner.declare(declared(*names))
    for round_ in range(1, 9):
        newer, older = (
            tuple(
                SharedWindow(kind="image", id=f"simulated/{name}", stage="boot", version=version, window=version)
                for name in names
            )
            for version in (2 * round_, 2 * round_ - 1)
        )
        await asyncio.gather(
            provisioner.weights(*(weight(n, weight=2.0, shared=newer[::-1]) for n in names), revision=2 * round_),
            provisioner.weights(*(weight(n, shared=older) for n in reversed(names)), revision=2 * round_ - 1),
        )
        sizes = "SELECT min(size) FROM shared_window WHERE key LIKE 'image/simulated%zone-%'"
        assert await provisioner.database.fetchval(sizes) == 2 * round_
    assert await provisioner.database.fetchval("SELECT min(record ->> 'weight') FROM weight") == "2.0"
    gone = [received(weight(name))[0] for name in names]
    tombstones = [type(r)(**{f: getattr(r, f) for f in r.__struct_fields__} | {"event": None}) for r in gone]
    view = WeightView()
    await asyncio.gather(
        view.apply(provisioner.database, tombstones), view.apply(provisioner.database, tombstones[::-1])
    )
    assert await provisioner.database.fetchval("SELECT count(*) FROM weight") == 0


@locking("store.weights.UPSERT_SHARED")
async def test_a_turn_that_waited_for_another(provisioner: Provisioner) -> None:
    """A record is compared with what another replica has stored meanwhile: a window that trips and recovers turns
    twice, so that its pools are planned twice."""
    share = SharedWindow(kind="image", id="simulated/linux-1", stage="boot", version=1, window=8)
    tripped = msgspec.structs.replace(share, version=2, state="tripped")
    healthy = msgspec.structs.replace(share, version=3)
    await in_transaction(provisioner, lambda db: weights.upsert_shared(db, [share]))
    async with provisioner.database.acquire() as db, db.transaction():
        (first,) = await weights.upsert_shared(db, [tripped])
        recovering = provisioner.start(in_transaction(provisioner, lambda db: weights.upsert_shared(db, [healthy])))
        await provisioner.until_waiting(recovering)
    (second,) = await recovering
    assert (first.turned, second.turned) == (True, True)


@locking("store.weights.UPSERT_SHARED")
async def test_a_record_that_waited_for_a_plan(provisioner: Provisioner) -> None:
    """It trips a config that the plan saw as healthy, and marks the pool dirty: the next plan cancels waiting
    intents."""
    await provisioner.declare()
    await provisioner.demand(report(3))
    tripped = SharedWindow(kind="image", id="simulated/linux-1", stage="boot", version=1, window=8, state="tripped")
    async with stopped_at(provisioner, "outbox", provisioner.plan_step()) as planning:
        telling = provisioner.start(provisioner.weights(weight(shared=(tripped,))))
        await provisioner.until_waiting(telling)
    await asyncio.gather(planning, telling)
    assert await provisioner.states() == {"requested": 3}
    await provisioner.plan()
    assert await provisioner.states() == {"stopped": 3}


@locking("store.weights.UPSERT_SHARED")
async def test_a_plan_that_waited_for_a_record(provisioner: Provisioner) -> None:
    """The plan uses the record's values."""
    await provisioner.declare()
    await provisioner.demand(report(30))
    narrow = SharedWindow(kind="image", id="simulated/linux-1", stage="boot", version=1, window=2)
    telling = provisioner.weights(weight(shared=(narrow,)))
    async with stopped_at(provisioner, "dirty_pool", telling) as view:
        planning = provisioner.start(provisioner.plan())
        await provisioner.until_waiting(planning)
    await asyncio.gather(planning, view)
    assert await provisioner.states() == {"requested": 2}
