"""Two instances on the same rows, on real PostgreSQL: a former leader changes nothing, whatever it had begun, and the
turns of the leader are serialized."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

import slipway_weight_calculator
from slipway_api.events.scopes import config_key
from slipway_api.events.topics import WORKER_LIFECYCLE
from slipway_api.http.service import Replayed
from slipway_common.database.postgres import Connection
from slipway_common.database.retention import DAY_SECONDS
from slipway_common.messaging import dead_letters
from slipway_common.messaging.consume import Batch, Consumer
from slipway_common.messaging.leadership import LeadershipLost, Turn
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_weight_calculator.store.retention import DELETE_TURNS
from tests.support.harness import until, until_waiting
from tests.support.statements import Covered
from tests.support.weight_calculator import Calculator, calculator_on, declared, failed, ok, stored

locking: Final = Covered(slipway_weight_calculator)
STALE: Final = "UPDATE leader SET seen_at = slipway_clock() - interval '11 s'"


class Pausing(Calculator):
    """A calculator that can be paused in its transaction, with everything written, before it commits."""

    def hold(self) -> None:
        self.go_on, self.inside = asyncio.Event(), asyncio.Event()
        store = self.work.store

        async def held(tx: Connection, turn: Turn, batch: Batch | None) -> None:
            await store(tx, turn, batch)
            self.inside.set()
            await self.go_on.wait()

        self.work.store = held  # type: ignore[method-assign]


@pytest.fixture
async def calculator(postgres: EmbeddedPostgres) -> AsyncIterator[Calculator]:
    async with calculator_on(postgres, size=8) as calculator:
        await calculator.consume(declared("zone-a"), declared("zone-b"))
        await calculator.publish()
        yield calculator


async def everything(calculator: Calculator) -> dict[str, list[Any]]:
    """Everything that a turn may change."""
    tables = ("journal", "weight", "outbox", "consumed", "seen_sequence", "refused_signal", "dead_letter")
    found = {name: await calculator.database.fetch(f"SELECT * FROM {name} ORDER BY 1, 2") for name in tables}
    return found | {"known": [await stored(calculator.database)]}


@locking(
    "store.journal.WRITE",
    "store.world.WRITE",
    "store.world.DELETE",
    "store.weights.WRITE",
    "store.weights.DELETE",
    "store.signals.FORGET",
)
async def test_a_turn_that_waited_for_a_takeover_changes_nothing(calculator: Calculator) -> None:
    """The successor holds the leader row; the turn of the former leader waits for it and finds its epoch fenced."""
    await calculator.database.execute(STALE)
    before = await everything(calculator)
    async with calculator.database.acquire() as db:
        async with db.transaction():
            await db.execute("UPDATE leader SET epoch = epoch + 1, instance = 'b'")
            late = asyncio.create_task(calculator.consume(failed(), failed()))
            await until_waiting(calculator.database, late)
        with pytest.raises(LeadershipLost):
            await late
    assert await everything(calculator) == before


@locking(
    "store.journal.WRITE",
    "store.world.WRITE",
    "store.world.DELETE",
    "store.weights.WRITE",
    "store.weights.DELETE",
    "store.signals.FORGET",
)
async def test_a_takeover_waits_for_the_current_turn(calculator: Calculator) -> None:
    """The turn locks the leader row; the successor takes it after the commit and loads everything."""
    former = Pausing(calculator.database)
    former.records = calculator.records
    await former.take_over()
    await former.consume(ok())
    former.hold()
    turning = asyncio.create_task(former.consume(failed(), failed()))
    await until(former.inside.is_set)
    successor = Calculator(calculator.database, "b")
    successor.records = former.records
    assert (await successor.leadership.bid(successor.database)).role == "standby"
    taking = asyncio.create_task(calculator.database.execute("UPDATE leader SET epoch = epoch + 1, instance = 'b'"))
    await until_waiting(calculator.database, taking)
    former.go_on.set()
    await turning
    await taking
    successor.leadership.epoch = await calculator.database.fetchval("SELECT epoch FROM leader")
    await successor.leadership.take_over(successor.database, list(successor.records), "cluster")
    assert successor.work.world.rows[config_key("zone-b")].launch.folded == 2
    assert successor.work.world.rows == former.work.world.rows
    with pytest.raises(LeadershipLost):
        await former.turn([])


@locking("store.retention.DELETE_TURNS")
async def test_two_prune_the_journal_beside_a_turn(calculator: Calculator) -> None:
    """Every instance may prune: the second passes over what the first deletes, and a turn waits for neither."""
    await calculator.database.execute("UPDATE journal SET written_at = slipway_clock() - interval '8 days'")
    async with calculator.database.acquire() as db, db.transaction():
        assert await db.execute(DELETE_TURNS.text, 7 * DAY_SECONDS) == "DELETE 1"
        await calculator.prune()
        await calculator.consume(failed())
    assert len(await calculator.journal()) == 1


async def test_a_dead_letter_is_replayed_between_turns(calculator: Calculator) -> None:
    """The next turn waits for the one that replays the dead letter, and folds on top of it."""
    await calculator.consume(failed(), value=b"{", subject="w1")
    await calculator.consume(failed(), subject="w1")
    consumer = Consumer("weight-calculator", WORKER_LIFECYCLE, calculator.work.handle)
    inside, go_on = asyncio.Event(), asyncio.Event()

    async def drop(db: Connection) -> Replayed:
        done = await dead_letters.drop(db, consumer, 0, 0, "ops")
        inside.set()
        await go_on.wait()
        return done

    replaying = asyncio.create_task(calculator.leadership.turn(calculator.database, how=drop))
    await until(inside.is_set)
    later = asyncio.create_task(calculator.consume(failed(), subject="w1"))
    go_on.set()
    assert (await replaying)[1] == Replayed(1, 0)
    await later
    assert calculator.work.world.rows[config_key("zone-b")].launch.failed == 2
    assert await calculator.database.fetchval("SELECT count(*) FROM dead_letter") == 0


# Completeness.
