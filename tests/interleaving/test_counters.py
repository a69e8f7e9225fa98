"""Counters beside every transaction that changes what they count: whatever order commits in, they equal the rows."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import pytest

import slipway_provisioner
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_common.events.lifecycle import State
from slipway_common.events.worker import Outcome, Result, Scope, Stage
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.revisions import RevisionKeys
from slipway_provisioner.domain.workers import Worker, launch_failed, requested
from slipway_provisioner.handlers.demand import record_demand
from slipway_provisioner.store import outcomes, provider_keys, reachability, usage, weights, workers
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
    weight,
)
from tests.support.statements import Covered, locking_statements

locking: Final = Covered()
Step = Callable[[Connection], Awaitable[Any]]
NO_CAPACITY: Final = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, "", "InsufficientCapacity")
LOCK_POOL: Final = "SELECT FROM worker_pool WHERE id = 'linux' FOR UPDATE"
ROWS: Final = "SELECT (SELECT count(*) FROM config_usage) + (SELECT count(*) FROM shared_usage)"
COUNTERS: Final = """
SELECT (SELECT count(DISTINCT (pool_id, launch_config_id)) FROM config_usage)
    + (SELECT count(DISTINCT (key, stage)) FROM shared_usage)"""


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
    worker = await in_state(db, State.RUNNING)
    await db.execute("UPDATE worker SET state = 'stopped' WHERE id = $1", worker.id)


async def delete(db: Connection) -> None:
    worker = await in_state(db, State.RUNNING)
    await db.execute("DELETE FROM worker WHERE id = $1", worker.id)


async def fold_failures(db: Connection) -> None:
    """Store a weight record that has folded the failures."""
    stage = weight().stages["boot"]
    record = weight(stages=dict.fromkeys(("launch", "boot", "claim"), stage.__replace__(failures_folded=1)))
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


async def prove(db: Connection) -> None:
    """Compare all counters with the rows, as the sweep does."""
    await db.execute(LOCK_POOL)
    assert await usage.repair_pool(db, "linux") == 0
    assert await usage.repair_shared(db) == 0


WRITERS: Final[list[Step]] = [
    *(insert, fail, claim, end, delete),
    *(fold_failures, write_off, learn_keys, lose_evidence, confirm, lose_account),
]
WRITING: Final = (
    *("store.usage.COPY_CONFIGS", "store.usage.COPY_ACCOUNT", "store.usage.COPY_CLAIMS", "store.usage.OUTCOMES"),
    *("store.usage._copied", "store.weights.FOLD"),
)
FOLDING: Final = (
    *("store.usage.FOLD_CONFIGS", "store.usage.FOLD_SHARED", "store.usage.LOCK_KEYS", "store.usage.COPY_POOL"),
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


async def test_a_wrong_counter_is_repaired_once(provisioner: Provisioner) -> None:
    """Two sweeps at a time find it; the second waits, and finds nothing left to repair."""
    await provisioner.database.execute("DELETE FROM shared_usage WHERE stage = 'launch'")
    wrong = await usage.drift(provisioner.database)
    found = await asyncio.gather(*(in_transaction(provisioner, usage.repair_shared) for _ in range(2)))
    assert (wrong > 0, sorted(map(bool, found))) == (True, [False, True])
    assert await usage.drift(provisioner.database) == 0


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


def test_every_locking_statement_of_counters_has_an_interleaving() -> None:
    names = ("store.usage.", "store.weights.FOLD", "store.retention.DELETE_SHARED_USAGE")
    assert {name for name in locking_statements(slipway_provisioner) if name.startswith(names)} == locking
