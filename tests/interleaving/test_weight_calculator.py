"""Two connections on the same launch configs, on real PostgreSQL: each locking statement waits, and loses nothing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from slipway_common.consume import Received
from slipway_common.postgres import Connection
from slipway_common.topics import TOPIC_OF
from slipway_local.postgres import EmbeddedPostgres
from slipway_weight_calculator.handlers.configs import record_configs
from slipway_weight_calculator.handlers.outcomes import fold_outcomes
from slipway_weight_calculator.store import configs
from tests.harness import until_waiting
from tests.weight_calculator import POLICY, START, Calculator, after, calculator_on, declared, failed, ok


@pytest.fixture
async def calculator(postgres: EmbeddedPostgres) -> AsyncIterator[Calculator]:
    async with calculator_on(postgres.url(), size=8) as calculator:
        await calculator.tell(declared("zone-a"), declared("zone-b"))
        await calculator.publish()
        yield calculator


def received(*events: Any) -> Sequence[Received]:
    return [
        Received(
            event=event, type=event.type, id=str(n), source="provisioner", subject=TOPIC_OF[type(event)].subject(event),
            time=START, number=n, revision=1, topic=TOPIC_OF[type(event)].name, partition=0, offset=n,
        )
        for n, event in enumerate(events)
    ]  # fmt: skip


async def fold(tx: Connection, *events: Any) -> None:
    await fold_outcomes(tx, received(*events), policy=POLICY)


async def in_transaction(calculator: Calculator, *events: Any) -> None:
    async with calculator.pool.acquire() as db, db.transaction():
        await fold(db, *events)


async def folded(calculator: Calculator, config_id: str) -> int:
    async with calculator.pool.acquire() as db, db.transaction():
        (row,) = await configs.lock(db, [config_id])
    return row.health.launch.failures_folded


async def test_two_folds_of_one_config_lose_nothing(calculator: Calculator) -> None:
    """The second waits for the first, then folds on top of what it wrote: two failures close the gate."""
    async with calculator.pool.acquire() as db:
        async with db.transaction():
            await fold(db, failed())
            second = asyncio.create_task(in_transaction(calculator, failed()))
            await until_waiting(calculator.pool, second)
        await second
    assert await folded(calculator, "zone-b") == 2
    assert [record.state for record in await calculator.publish()] == ["closed"]


async def test_many_folds_in_opposite_order_neither_deadlock_nor_lose(calculator: Calculator) -> None:
    """Batches name the configs in any order; rows are locked by id."""
    a, b = failed(config_id="zone-a"), failed(config_id="zone-b")
    await asyncio.gather(*(in_transaction(calculator, *pair) for pair in [(a, b), (b, a)] * 20))
    assert await folded(calculator, "zone-a") == 40
    assert await folded(calculator, "zone-b") == 40


async def test_two_first_outcomes_of_an_unknown_config(calculator: Calculator) -> None:
    """Both would make its row: one does, the other waits and folds into it."""
    async with calculator.pool.acquire() as db:
        async with db.transaction():
            await fold(db, failed(config_id="zone-x"))
            second = asyncio.create_task(in_transaction(calculator, failed(config_id="zone-x")))
            await until_waiting(calculator.pool, second)
        await second
    assert await folded(calculator, "zone-x") == 2


async def test_declaration_beside_a_fold(calculator: Calculator) -> None:
    """It waits, and keeps the evidence that was folded meanwhile."""

    async def declare() -> None:
        async with calculator.pool.acquire() as db, db.transaction():
            await record_configs(db, received(declared("zone-b", revision=2, base_weight=5.0)))

    async with calculator.pool.acquire() as db:
        async with db.transaction():
            await fold(db, failed())
            second = asyncio.create_task(declare())
            await until_waiting(calculator.pool, second)
        await second
    (record,) = await calculator.publish()
    assert (record.config_revision, record.stages["launch"].failures_folded) == (2, 1)
    assert record.weight > 1


async def test_archiving_beside_a_fold(calculator: Calculator) -> None:
    async def archive() -> None:
        async with calculator.pool.acquire() as db, db.transaction():
            await configs.archive(db, ["zone-b"])

    async with calculator.pool.acquire() as db:
        async with db.transaction():
            await fold(db, failed())
            second = asyncio.create_task(archive())
            await until_waiting(calculator.pool, second)
        await second
    assert await folded(calculator, "zone-b") == 1
    await calculator.publish_loop.step(calculator.pool)
    assert [record for _, record in await calculator.told()] == [None]


async def test_publishing_passes_by_a_row_in_work(calculator: Calculator) -> None:
    """It neither waits nor publishes what is not committed; the next look publishes all."""
    await calculator.tell(failed(config_id="zone-a"), failed())
    async with calculator.pool.acquire() as db:
        async with db.transaction():
            await fold(db, failed())
            assert [record.launch_config_id for record in await calculator.publish()] == ["zone-a"]
        (record,) = await calculator.publish()
    assert (record.launch_config_id, record.stages["launch"].failures_folded) == ("zone-b", 2)


async def test_two_publishers_publish_each_change_once(calculator: Calculator) -> None:
    await calculator.tell(failed(config_id="zone-a"), failed())
    await asyncio.gather(*(calculator.publish_loop.step(calculator.pool) for _ in range(4)))
    assert sorted(record.launch_config_id for _, record in await calculator.told() if record) == ["zone-a", "zone-b"]


async def test_two_watchers_issue_one_permit(calculator: Calculator) -> None:
    """Both see that it is due; the second reads again under the lock."""
    await calculator.tell(failed(), failed())
    await calculator.publish()
    await calculator.set_clock(15)
    async with calculator.pool.acquire() as db:
        async with db.transaction():
            await configs.lock(db, ["zone-a", "zone-b"])
            steps = [asyncio.create_task(calculator.watch_loop.step(calculator.pool)) for _ in range(2)]
            await until_waiting(calculator.pool, *steps)
        assert sorted(await asyncio.gather(*steps)) == [False, True]
    (record,) = await calculator.publish()
    assert (record.probe_permit, record.probe_ready) == (1, True)


async def test_permit_is_not_issued_over_the_success_that_opened(calculator: Calculator) -> None:
    """The delayed probe of permit 1 succeeds while the watcher waits to issue permit 2."""
    await calculator.tell(failed(), failed())
    await calculator.set_clock(15)
    await calculator.publish()
    await calculator.tell(failed(permit=1))
    await calculator.set_clock(60)
    async with calculator.pool.acquire() as db:
        async with db.transaction():
            await fold(db, ok(permit=1))
            watcher = asyncio.create_task(calculator.watch_loop.step(calculator.pool))
            await until_waiting(calculator.pool, watcher)
        await watcher
    (record,) = await calculator.publish()
    assert (record.state, record.probe_permit, record.probe_ready) == ("open", 1, False)


async def test_refresh_passes_by_a_row_in_work(calculator: Calculator) -> None:
    await calculator.set_clock(100)
    async with calculator.pool.acquire() as db, db.transaction():
        await fold(db, ok(config_id="zone-a"))
        await configs.mark_stale(calculator.pool, 60)
        rows = await calculator.rows()
        assert [(row["id"], row["unpublished"]) for row in rows] == [("zone-a", False), ("zone-b", True)]
    assert after(0) == START
