"""Counters beside every transaction that changes what they count: whatever order commits in, they equal the rows."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import asyncpg
import msgspec
import pytest

import slipway_provisioner
from slipway_api.events.lifecycle import State
from slipway_api.events.scopes import Key
from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner import metrics
from slipway_provisioner.domain.revisions import RevisionKeys
from slipway_provisioner.domain.workers import Worker, launch_failed, requested
from slipway_provisioner.handlers.demand import record_demand
from slipway_provisioner.store import outcomes, provider_keys, reachability, restores, spending, usage, weights, workers
from slipway_provisioner.store.roll_outs import Name
from tests.support.harness import until_ended_or_waiting
from tests.support.provisioner import (
    Provisioner,
    after,
    declared,
    in_transaction,
    provisioner_on,
    received,
    report,
    revision_id,
    stopped_at,
    weight,
)
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)
Step = Callable[[Connection], Awaitable[Any]]
NO_CAPACITY: Final = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, "", "InsufficientCapacity")
NOTES: Final = "SELECT details -> 'configs' FROM decision ORDER BY last_at DESC, id DESC LIMIT 1"
LOCK_POOL: Final = "SELECT FROM worker_pool WHERE id = 'linux' FOR UPDATE"
ROWS: Final = """
SELECT (SELECT count(*) FROM config_usage) + (SELECT count(*) FROM shared_usage) + (SELECT count(*) FROM spend_usage)"""
COUNTERS: Final = """
SELECT (SELECT count(DISTINCT (pool_id, launch_config_id)) FROM config_usage)
    + (SELECT count(DISTINCT (key, stage)) FROM shared_usage)
    + (SELECT count(DISTINCT (account_id, pool_id, price, at)) FROM spend_usage)"""
# Calls of all workers but those that wait, an hour ago.
CALLED: Final = """
WITH call AS (
    INSERT INTO launch_batch (id, launch_config_id, pool_id, account_id, lease_id, token, body, units, state,
        started_at, call_deadline, price)
    SELECT id, launch_config_id, pool_id, account_id, '', id::text, '{}', 1, 'calling',
        slipway_clock() - interval '1 h', slipway_clock(), 0.1 FROM worker WHERE state <> 'requested')
UPDATE worker SET batch_id = id WHERE state <> 'requested'"""


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    """Two workers that wait for a lease, two whose calls are in flight, and two that have registered. Claims are
    confirmed by the queue, and a failure of each stage is not folded."""
    async with provisioner_on(postgres) as provisioner:
        await provisioner.declare(declared(evidence={"claim": "queue"}))
        await provisioner.trust()
        await provisioner.demand(report(6))
        await provisioner.plan()
        states = (*["requested"] * 2, *["launching"] * 2, *["running"] * 2)
        for worker, state in zip(await provisioner.workers(), states, strict=True):
            await provisioner.database.execute(
                "UPDATE worker SET state = $2, registered_at = CASE $2 WHEN 'running' THEN slipway_clock() END,"
                " instance_id = CASE $2 WHEN 'running' THEN id::text END WHERE id = $1",
                worker.id,
                state,
            )
        await provisioner.database.execute(CALLED)
        failed = [revision_id()] * 3, ["launch", "boot", "claim"], [True] * 3
        await provisioner.database.execute(workers.COUNT_OUTCOMES, *failed)
        yield provisioner


async def in_state(db: Connection, state: State) -> Worker:
    """Lock the first worker in a state."""
    row = await db.fetchrow(f"{workers.SELECT} WHERE state = $1 ORDER BY id LIMIT 1 FOR UPDATE", state)
    return workers.from_row(row)


async def insert(db: Connection) -> None:
    await db.execute(LOCK_POOL)
    worker = await in_state(db, State.REQUESTED)
    values = {name: getattr(worker, name) for name in ("pool_id", "launch_config_id", "account_id", "image_revision")}
    new = Worker(
        id=new_id(), **values, state=State.REQUESTED, decision_id=new_id(), requested_at=after(0), traceparent=""
    )
    await workers.insert(db, [requested(new)])


async def fail(db: Connection) -> None:
    """End a launch, which moves its unit from those in flight to the failures."""
    await workers.save(db, [launch_failed(await in_state(db, State.LAUNCHING), NO_CAPACITY, after(1))])


async def claim(db: Connection) -> None:
    worker = await in_state(db, State.RUNNING)
    await db.execute("UPDATE worker SET first_claimed_at = slipway_clock() WHERE id = $1", worker.id)


async def end(db: Connection) -> None:
    """End a machine, whose cost is known then."""
    worker = await in_state(db, State.RUNNING)
    await db.execute("UPDATE worker SET state = 'stopped', ended_at = slipway_clock() WHERE id = $1", worker.id)


async def call(db: Connection) -> None:
    """Start a call for a worker that has waited, whose machine may cost its lifetime."""
    worker, batch = await in_state(db, State.REQUESTED), "SELECT id FROM launch_batch ORDER BY id LIMIT 1"
    await db.execute(f"UPDATE worker SET batch_id = ({batch}) WHERE id = $1", worker.id)


async def put_back(db: Connection) -> None:
    """Let a worker wait again whose call had no effect."""
    worker = await in_state(db, State.LAUNCHING)
    await db.execute("UPDATE worker SET state = 'requested', batch_id = NULL WHERE id = $1", worker.id)


async def end_one(db: Connection) -> None:
    """End a worker that waits for a lease."""
    worker = await in_state(db, State.REQUESTED)
    await db.execute("UPDATE worker SET state = 'stopped' WHERE id = $1", worker.id)


async def delete(db: Connection) -> None:
    worker = await in_state(db, State.RUNNING)
    await db.execute("DELETE FROM worker WHERE id = $1", worker.id)


async def fold_failures(db: Connection) -> None:
    """Store a weight record that has folded the failures."""
    stage = weight().stages["boot"]
    record = weight(
        stages=dict.fromkeys(("launch", "boot", "claim"), msgspec.structs.replace(stage, failures_folded=1))
    )
    await weights.fold(db, await weights.upsert(db, [(9, record)]))


async def write_off(db: Connection) -> None:
    await db.execute("UPDATE launch_config_outcomes SET unfolded_since = '-infinity'")
    await db.execute("DELETE FROM outbox")
    await outcomes.write_off(db, "linux", calculator_available=True)


async def learn_keys(db: Connection) -> None:
    """Change all keys of the config, and with them those of its workers and outcomes."""
    keys = RevisionKeys(id=revision_id(), capacity="learnt", quota_family="learnt", subnet="learnt", image="learnt")
    await provider_keys.put(db, Name("linux", "zone-a"), [keys])


async def lose_evidence(db: Connection) -> None:
    await db.execute("UPDATE launch_config SET claim_evidence = 'none'")
    await usage.copy(db, [revision_id()])


async def confirm(db: Connection) -> None:
    """Report claimed tasks, which confirms the claims of the workers that have registered."""
    await record_demand(db, received(report(0, 2, at=9)))


async def lose_account(db: Connection) -> None:
    await db.execute("UPDATE worker SET state = 'stopping' WHERE state = 'launching'")
    await reachability.set_unreachable(db, "sim-a", unreachable=True)


async def keys_of(db: Connection) -> list[str]:
    return [row["key"] for row in await db.fetch("SELECT DISTINCT key FROM shared_window ORDER BY key")]


async def fold(db: Connection) -> None:
    """Fold all counters under their locks, as planners do."""
    await db.execute(LOCK_POOL)
    await db.execute(usage.LOCK_KEYS, keys := await keys_of(db))
    await usage.fold_pool(db, "linux")
    await usage.fold_shared(db, keys)
    await spending.fold(db, ["sim-a"], ["", "linux"])


async def prove(db: Connection) -> None:
    """Compare all counters with the rows, as the sweep does."""
    await db.execute(LOCK_POOL)
    assert await usage.repair_pool(db, "linux") == 0
    assert await usage.repair_shared(db) == 0
    assert await spending.repair(db, "linux") == 0


WRITERS: Final[list[Step]] = [
    *(insert, fail, claim, end, delete, call, put_back),
    *(fold_failures, write_off, learn_keys, lose_evidence, confirm, lose_account),
]
WRITING: Final = (
    *("store.usage.COPY_CONFIGS", "store.usage.COPY_ACCOUNT", "store.usage.COPY_CLAIMS", "store.usage.OUTCOMES"),
    *("store.usage._copied", "store.weights.FOLD"),
)
FOLDING: Final = (
    *("store.usage.FOLD_CONFIGS", "store.usage.FOLD_SHARED", "store.usage.LOCK_KEYS", "store.usage.COPY_POOL"),
    "store.spending.FOLD",
)


@locking(*WRITING, *FOLDING)
@pytest.mark.parametrize("folder", [fold, prove])
@pytest.mark.parametrize("writer", WRITERS)
async def test_a_counter_that_is_folded_while_it_is_written(
    provisioner: Provisioner, writer: Step, folder: Step
) -> None:
    """Neither loses what the other one has not committed, whichever commits first; there is no drift after either."""
    for first, second in ((writer, folder), (folder, writer)):
        async with provisioner.database.acquire() as db:
            async with db.transaction():
                await first(db)
                later = provisioner.start(in_transaction(provisioner, second))
                await until_ended_or_waiting(provisioner.database, later)
            await later
        assert await usage.drift(provisioner.database) == 0
    await in_transaction(provisioner, fold)
    assert await provisioner.database.fetchval(ROWS) == await provisioner.database.fetchval(COUNTERS), "not folded"
    assert await usage.drift(provisioner.database) == 0


@locking("store.usage.COPY_CONFIGS", "store.usage.OUTCOMES")
async def test_keys_that_change_move_their_counters(provisioner: Provisioner) -> None:
    """With a start that ends meanwhile: all that is in flight, and the failures, count under the new keys only."""
    old = await keys_of(provisioner.database)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await fail(db)
            learning = provisioner.start(in_transaction(provisioner, learn_keys))
            await until_ended_or_waiting(provisioner.database, learning)
        await learning
    await in_transaction(provisioner, fold)
    assert await provisioner.database.fetch("SELECT FROM shared_usage WHERE key = ANY($1)", old) == []
    counted = await provisioner.database.fetch(
        "SELECT stage, in_flight, unfolded FROM shared_usage WHERE key IN ('image/learnt', 'capacity/learnt')"
    )
    # Two wait for a lease, one is launching, and two have registered.
    assert sorted(tuple(row) for row in counted) == [("boot", 3, 1), ("claim", 5, 1), ("launch", 3, 2)]


@locking(*WRITING)
@pytest.mark.parametrize("other", [learn_keys, lose_evidence, fold_failures])
@pytest.mark.parametrize("one", WRITERS)
async def test_counters_of_two_changes(provisioner: Provisioner, one: Step, other: Step) -> None:
    """Keys change beside each writer: nothing is counted under one key and subtracted under another."""
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await one(db)
            later = provisioner.start(in_transaction(provisioner, other))
            await until_ended_or_waiting(provisioner.database, later)
        await later
    assert await usage.drift(provisioner.database) == 0


def two_pools() -> dict[str, Any]:
    """Pools "linux" and "other" with one image and one quota, each in a zone of its own."""
    both = declared("zone-a")
    first = both["worker_pools"][0]
    config = first["launch_configs"][0] | {"name": "zone-a-2"}
    both["worker_pools"].append(first | {"id": "other", "launch_configs": [config]})
    return both


@pytest.fixture
async def two(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    """Two pools that want 20 workers each of an image with a window of 30."""
    async with provisioner_on(postgres) as provisioner:
        await provisioner.declare(two_pools())
        await provisioner.trust()
        await provisioner.database.execute("UPDATE shared_window SET size = 30 WHERE stage = 'boot'")
        await provisioner.demand(report(20), msgspec.structs.replace(report(20), pool_id="other"))
        yield provisioner


@locking("store.functions.LOCK_SHARED")
async def test_pools_that_share_an_image_launch_in_turn(two: Provisioner) -> None:
    """Both have planned with the whole window before one of them locks it. Each takes its part of what is left, until
    nothing is."""
    async with stopped_at(two, "worker", two.plan_step()) as first:
        second = two.start(two.plan_step())
        await two.until_waiting(first, second)
    await asyncio.gather(first, second)
    assert (await two.states())["requested"] <= 30
    await two.plan()
    assert await two.states() == {"requested": 30}
    assert "boot window of image simulated/linux-1" in str(await two.database.fetchval(NOTES))


async def test_planners_launch_no_more_than_the_window(two: Provisioner) -> None:
    await asyncio.gather(*(two.plan_step() for _ in range(4)))
    await two.plan()
    assert await two.states() == {"requested": 30}


@locking("store.functions.LOCK_SHARED")
async def test_a_plan_locks_only_the_keys_on_which_it_launches(two: Provisioner) -> None:
    """Those that have a window: the credential of the account limits nothing. One that launches nothing locks none."""
    limited = {"image", "quota", "capacity"}
    for pending, locked in ((20, limited), (0, set[str]())):
        await two.demand(report(pending, at=1 + (not pending)))
        async with stopped_at(two, "decision", two.plan_step()) as planning, two.database.acquire() as db:
            rows = await db.fetch("SELECT key, stage FROM shared_window ORDER BY key, stage FOR UPDATE SKIP LOCKED")
            unlocked = {Key.of(row["key"]).kind for row in rows}
        await planning
        await two.plan()
        assert {*limited, "credential"} - unlocked == locked


@locking("store.usage.FOLD_CONFIGS", "store.usage.FOLD_SHARED")
async def test_planners_fold_what_they_have_locked(two: Provisioner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a change that has not committed."""
    monkeypatch.setattr(usage, "FOLDED_ROWS", 3)
    await two.plan()
    for worker in (await two.workers())[:9]:
        await two.database.execute("UPDATE worker SET state = 'stopped' WHERE id = $1", worker.id)
    before = await two.database.fetchval(ROWS)
    await two.demand(report(30, at=1))
    async with two.database.acquire() as db, db.transaction():
        await end_one(db)
        await two.plan()
    assert await two.database.fetchval(ROWS) < before
    assert await usage.drift(two.database) == 0


@locking("store.spending.FOLD")
async def test_two_transactions_fold_the_spend_of_an_account(provisioner: Provisioner) -> None:
    """The second neither waits nor counts what the first one folds, beside the end of a machine."""
    scopes = ["sim-a"], ["", "linux"]
    async with provisioner.database.acquire() as db, provisioner.database.acquire() as other:
        async with other.transaction():
            await end(other)
            async with db.transaction():
                await spending.fold(db, *scopes)
                await in_transaction(provisioner, lambda third: spending.fold(third, *scopes))
        assert await usage.drift(provisioner.database) == 0
        await spending.fold(db, *scopes)
    live = await provisioner.database.fetch("SELECT pool_id, sum(live)::int FROM spend_usage GROUP BY 1 ORDER BY 1")
    assert [tuple(row) for row in live] == [("", 3), ("linux", 3)]
    assert await usage.drift(provisioner.database) == 0


async def test_a_wrong_counter_is_repaired_once(provisioner: Provisioner) -> None:
    """Two sweeps at a time find it; the second waits, and finds nothing left to repair."""
    await provisioner.database.execute("DELETE FROM shared_usage WHERE stage = 'launch'")
    wrong = await usage.drift(provisioner.database)
    found = await asyncio.gather(*(in_transaction(provisioner, usage.repair_shared) for _ in range(2)))
    assert (wrong > 0, sorted(map(bool, found))) == (True, [False, True])
    assert await usage.drift(provisioner.database) == 0


async def test_a_sweep_repairs_counters(provisioner: Provisioner) -> None:
    """Of configs and of shared windows, and says by how much they were wrong. A restored database is swept at once."""
    before = metrics.USAGE_DRIFT._value.get()
    await provisioner.database.execute("DELETE FROM config_usage")
    await provisioner.database.execute("UPDATE spend_usage SET live = live + 1 WHERE pool_id = ''")
    await provisioner.database.execute("DELETE FROM spend_usage WHERE pool_id = 'linux'")
    await provisioner.database.execute("UPDATE shared_usage SET in_flight = in_flight + 1 WHERE key LIKE 'quota/%'")
    await in_transaction(provisioner, lambda db: restores.begin(db, "restored", revision_base=0))
    await provisioner.sweep()
    assert await usage.drift(provisioner.database) == 0
    assert metrics.USAGE_DRIFT._value.get() > before


async def test_a_decision_costs_six_statements(provisioner: Provisioner, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which two begin and end its transaction. One that launches nothing costs five."""
    await provisioner.plan()
    executed: list[str] = []
    for name in ("fetch", "fetchrow", "fetchval", "execute"):
        monkeypatch.setattr(asyncpg.Connection, name, counting(getattr(asyncpg.Connection, name), executed))
    for at, statements in ((1, 6), (2, 5)):
        await provisioner.demand(report(9, at=at))
        executed.clear()
        assert await provisioner.plan_step()
        assert len(executed) == statements, executed
    assert await provisioner.states() == {"requested": 5, "launching": 2, "running": 2}


def counting(method: Callable[..., Awaitable[Any]], executed: list[str]) -> Callable[..., Awaitable[Any]]:
    """A method of a connection that notes what it executes."""

    async def counted(connection: Connection, query: str, *arguments: Any, **options: Any) -> Any:
        executed.append(query)
        return await method(connection, query, *arguments, **options)

    return counted


@locking("store.retention.DELETE_SHARED_USAGE")
async def test_counters_of_a_key_that_nothing_has_are_pruned(provisioner: Provisioner) -> None:
    """With its shared windows, and beside a change of a counter, for which pruning does not wait."""
    await in_transaction(provisioner, learn_keys)
    keys = set(await keys_of(provisioner.database))
    async with provisioner.database.acquire() as db, db.transaction():
        await fail(db)
        pruning = provisioner.start(provisioner.prune())
        await until_ended_or_waiting(provisioner.database, pruning)
        assert pruning.done(), "pruning waits for a lock"
    await pruning
    counted = {row["key"] for row in await provisioner.database.fetch("SELECT DISTINCT key FROM shared_usage")}
    left = set(await keys_of(provisioner.database))
    assert counted <= left < keys
    assert await usage.drift(provisioner.database) == 0
