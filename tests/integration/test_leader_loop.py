"""Leader loop on a real broker and database: when the leader dies, stalls or stops, a standby takes over, and every
record takes effect once."""

from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import TopicPartition

from slipway_api.events.pool import DemandReported
from slipway_api.events.topics import POOL_DEMAND, WORKER_LIFECYCLE, group
from slipway_api.http.service import Replayed
from slipway_common.base.clock import utc_now
from slipway_common.database.postgres import Connection
from slipway_common.messaging import dead_letters, kafka, leader_loop, leadership
from slipway_common.messaging.consume import Batch, Consumer, claim
from slipway_common.messaging.leader_loop import LeaderLoop, NotLeader
from slipway_common.messaging.leadership import Turn
from tests.support.consumption import delete_records, until_read
from tests.support.harness import (
    PARTITIONS,
    PATIENCE_SECONDS,
    SERVICE,
    Diary,
    Place,
    publisher,
    replica,
    report,
    until,
)
from tests.support.processes import INSTANCE, Process


@pytest.fixture
async def place(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Topics, shorter pauses than in production, and a leader that keeps its row however long the machine holds it up:
    only `lapsing` leaders lose it by time."""
    monkeypatch.setattr(leadership, "STALE_SECONDS", 3600.0)
    monkeypatch.setattr(leadership, "RELEASE_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(leader_loop, "BROKER_TIMEOUT_SECONDS", 3600.0)
    monkeypatch.setattr(leader_loop, "RENEW_SECONDS", 0.5)
    monkeypatch.setattr(leader_loop, "BID_SECONDS", 0.1)
    await place.create(*Diary.topics)
    return place


@pytest.fixture
def lapsing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaders whose row is stale after seconds."""
    monkeypatch.setattr(leadership, "STALE_SECONDS", 3.0)


def demand(pending: int) -> DemandReported:
    return DemandReported(pool_id="p", source="q", pending=pending, claimed=0, observed_at=utc_now())


async def until_leading(replica: LeaderLoop) -> None:
    await until(replica.working, "the replica leads", seconds=60)


async def until_effects(place: Place, number: int) -> None:
    async def done() -> bool:
        return sum((await place.effects()).values()) >= number

    await until(done, f"{number} effects", seconds=60)


async def test_one_reads_all_and_the_other_takes_over(place: Place) -> None:
    """Both replicas are ready and one leads; when it stops, the other resumes at once from its position."""
    async with publisher(place) as publish, replica(place, "a") as first:
        await until_leading(first)
        async with replica(place, "b") as second:
            for n in range(40):
                await publish.send(report(f"w{n % 5}", f"{n}"))
                await publish.send(demand(n))
            await until_effects(place, 80)
            assert second.status is not None
            assert first.status is not None
            assert (first.status.role, first.status.epoch) == ("leader", 1)
            assert (second.status.role, second.status.instance, second.status.epoch) == ("standby", "a", 1)
            assert (first.reasons(), second.reasons(), second.working()) == ([], [], False)
            assert sum(len(reading.owned) for reading in first.readings) == 2 * PARTITIONS
            await until(lambda: all(reading.caught_up() for reading in first.readings), "it knows what it committed")
            first.stop()
            await publish.send(report("w0", "40"))
            await until_leading(second)
            await until_effects(place, 81)
            assert second.status is not None
            assert (second.status.role, second.status.epoch) == ("leader", 2)
    assert set((await place.effects()).values()) == {1}
    for subject in range(1, 5):
        assert await place.words(f"w{subject}") == [f"{n}" for n in range(40) if n % 5 == subject]


@pytest.mark.usefixtures("lapsing")
async def test_killed(place: Place) -> None:
    """The server rolls back its transaction; the successor waits until the row is stale and repeats the work once."""
    former = Process.at(place, "leader")
    try:
        async with publisher(place) as publish:
            await publish.send(report("w1", "a"))
            await until_effects(place, 1)
            await publish.send(report("w1", "wait"))
            await former.until_printed("inside")
            former.kill()
            async with replica(place, "b") as successor:
                await publish.send(report("w1", "b"))
                await until_leading(successor)
                await until_effects(place, 3)
    finally:
        former.kill()
    assert await place.words("w1") == ["a", "wait", "b"]


@pytest.mark.usefixtures("lapsing")
async def test_stopped_and_resumed(place: Place) -> None:
    """A stopped leader blocks no other; after it resumes, its work has no effect and it is a standby."""
    former = Process.at(place, "leader")
    try:
        async with publisher(place) as publish:
            await publish.send(report("w1", "wait"))
            await former.until_printed("inside")
            former.stop()
            async with replica(place, "b") as successor:
                await until_leading(successor)
                await until_effects(place, 1)
                former.resume()
                await former.until_printed("turn rolled back")
                await former.until_printed("leadership lost to another instance")
                await publish.send(report("w1", "b"))
                await until_effects(place, 2)
                assert successor.working()
                assert (await place.database.fetchval("SELECT instance FROM leader")) == "b"
    finally:
        former.kill()
    assert await place.words("w1") == ["wait", "b"]


async def test_restarted_under_its_name(place: Place) -> None:
    """A leader of the same name is its predecessor, so it does not wait for the row to become stale."""
    former = Process.at(place, "leader")
    try:
        async with publisher(place) as publish:
            await publish.send(report("w1", "a"))
            await until_effects(place, 1)
            former.kill()
            async with replica(place, "b") as other, replica(place, INSTANCE) as again:
                await until_leading(again)
                assert other.status is not None
                assert other.status.role == "standby"
    finally:
        former.kill()


async def test_data_errors(place: Place) -> None:
    """In one turn over many partitions, only records at fault and those behind them are dead or parked."""
    async with publisher(place) as publish:
        for word in ("a", "raise", "b"):
            await publish.send(report("w1", word), partition=0)
        await publish.send(report("w2", "a"), partition=1, value=b"{")
        for subject, word in (("w2", "b"), ("w3", "a")):
            await publish.send(report(subject, word), partition=1)
        await publish.send(report("w4", "new"), partition=2, type="io.slipway.worker.beamed_up.v9")
        await publish.send(report("w4", "a"), partition=2, sequence_number=1, previous=0)
        await publish.send(demand(1), value=b"{")
        await publish.send(demand(2))
        async with replica(place, "a") as active:
            await until_leading(active)
            await until_read(place, 10)
            assert await place.effects() == {("w1", "a"): 1, ("w3", "a"): 1, ("p/q", "2"): 1}
            assert sorted((subject, state) for subject, state, _ in await place.dead()) == [
                ("p/q", "dead"),
                ("w1", "dead"),
                ("w1", "parked"),
                ("w2", "dead"),
                ("w2", "parked"),
            ]
            await publish.send(report("w1", "c"), partition=0)
            await until(lambda: parked(place, 3))


async def parked(place: Place, number: int) -> bool:
    return sum(state == "parked" for _, state, _ in await place.dead()) == number


async def test_dead_letters_are_settled_by_the_leader(place: Place) -> None:
    """Dead letters are settled in a turn of their own; an error changes nothing, and a standby refuses."""
    async with publisher(place) as publish, replica(place, "a") as active:
        await until_leading(active)
        await publish.send(report("w1", "a"), partition=0, value=b"{")
        await publish.send(report("w1", "b"), partition=0)
        await until(lambda: parked(place, 1))
        async with replica(place, "b") as other:
            with pytest.raises(NotLeader, match="instance a is the leader"):
                await other.settle(place.database, WORKER_LIFECYCLE.name, drop)
        with pytest.raises(dead_letters.NotDead):
            await active.settle(place.database, POOL_DEMAND.name, drop)
        await publish.send(report("w2", "a"), partition=1)
        await until_effects(place, 1)
        assert await active.settle(place.database, WORKER_LIFECYCLE.name, drop) == Replayed(1, 0)
        await publish.send(report("w1", "c"), partition=0)
        await until_effects(place, 3)
    assert await place.words("w1") == ["b", "c"]


async def drop(db: Connection, consumer: Consumer) -> Replayed:
    return await dead_letters.drop(db, consumer, 0, 0, "ops")


@pytest.mark.parametrize("where", ["store", "committed", "load"])
async def test_undone_and_unknown(place: Place, where: str) -> None:
    """After a failed turn, a commit without a reply, or a failed reload, the state is reloaded under the same epoch and
    every record takes effect once."""
    diary = Diary()
    async with publisher(place) as publish, replica(place, "a", diary) as active:
        await until_leading(active)
        for n in range(3):
            loads = diary.loads
            diary.fails["committed" if where == "load" else where] = ConnectionResetError("no answer")
            if where == "load":
                diary.fails["load"] = ConnectionResetError("nothing to be read")
            await publish.send(report("w1", f"{n}"))
            await until(lambda: diary.loads > loads, "it was read again", seconds=60)  # noqa: B023
            await until_effects(place, n + 1)
        assert active.status is not None
        assert active.status.epoch == 1
    assert await place.words("w1") == ["0", "1", "2"]


@pytest.mark.usefixtures("lapsing")
async def test_turns_that_fail_again_and_again(place: Place) -> None:
    """While turns fail it keeps the row but is not ready and sends no heartbeat; then it recovers."""
    diary = Diary()
    async with publisher(place) as publish, replica(place, "a", diary) as active:
        await until_leading(active)
        diary.broken = ConnectionResetError("no end of it")
        await publish.send(report("w1", "a"))
        await until(lambda: not active.working(), "it says that it does not work", seconds=60)
        assert "last commit" in active.reasons()[0]
        assert await place.database.fetchval("SELECT instance FROM leader") == "a"
        diary.broken = None
        await until_leading(active)
        await until_effects(place, 1)


async def test_records_that_cannot_be_stored_are_found(place: Place) -> None:
    """A failed turn is halved until the one record at fault is dead and all others are applied."""
    diary = Unstorable()
    async with publisher(place) as publish:
        for n in range(20):
            await publish.send(report(f"w{n}", "unstorable" if n in (7, 13) else f"{n}"), partition=n % 3)
        async with replica(place, "a", diary) as active:
            await until_leading(active)
            await until_effects(place, 18)
            await publish.send(report("w7", "behind"), partition=1)
            await until(lambda: parked(place, 1))
    assert {(subject, state) for subject, state, _ in await place.dead()} == {
        ("w7", "dead"),
        ("w7", "parked"),
        ("w13", "dead"),
    }
    assert set((await place.effects()).values()) == {1}
    assert len(await place.effects()) == 18


class Unstorable(Diary):
    """Work that accepts every word but fails to store one of them."""

    async def store(self, tx: Connection, turn: Turn, batch: Batch | None) -> None:
        await super().store(tx, turn, batch)
        if await tx.fetchval("SELECT EXISTS (SELECT FROM effect WHERE word = 'unstorable')"):
            raise ValueError("no column could hold it")


async def test_fenced_partition(place: Place) -> None:
    """After another process claimed a partition, the leader releases all of them and claims them again."""
    async with publisher(place) as publish, replica(place, "a") as active:
        await until_leading(active)
        async with place.database.acquire() as db:
            await claim(db, WORKER_LIFECYCLE.name, 0, "cluster")
        await publish.send(report("w1", "a"), partition=0)
        await until_effects(place, 1)
        await until_leading(active)
        assert active.status is not None
        assert active.status.epoch > 1


async def test_turns_without_records(place: Place) -> None:
    """Turns run when due and periodically to renew the row; the clock of turns never goes back."""
    diary = Diary()
    async with replica(place, "a", diary) as active:
        await until_leading(active)
        await until(lambda: len(diary.turns) > 2)
        due = diary.turns[-1].at + 0.2
        diary.due_at = due
        await until(lambda: diary.due_at is None)
        assert diary.turns[-1].at >= due
        back = "interval '1 s'"
        await place.database.execute(
            "CREATE OR REPLACE FUNCTION slipway_clock() RETURNS timestamptz LANGUAGE sql VOLATILE "
            f"AS $$SELECT clock_timestamp() - {back}$$"
        )
        seen = len(diary.turns)
        await until(lambda: len(diary.turns) > seen + 1)
        assert [turn.at for turn in diary.turns] == sorted(turn.at for turn in diary.turns)


async def test_time_waits_for_what_is_unread(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Timers advance no further than the newest record read while a backlog remains."""
    monkeypatch.setattr(leader_loop, "POLL_RECORDS", 2)
    diary = Counting()
    diary.due_at = 0.0
    begin = utc_now().replace(microsecond=0) - timedelta(minutes=6)
    read_to = [0.0]  # by the number of records read
    async with publisher(place) as publish:
        for n in range(6):
            stored_at = begin + timedelta(minutes=n)
            await publish.send(report("w1", f"{n}"), partition=0, stored_at=stored_at)
            read_to.append(stored_at.timestamp())
        async with replica(place, "a", diary):
            await until_effects(place, 6)
            await until(lambda: diary.turns[-1].until == diary.turns[-1].at, "time goes on", seconds=60)
    behind = [turn for turn in diary.counted if turn.total < 6]
    applying = [turn for turn in behind if turn.applied]
    assert len({turn.total for turn in applying}) >= 2
    assert [turn.until for turn in applying] == [read_to[turn.total] for turn in applying]
    # A turn without records may come before the first read, and knows no time then.
    assert all(turn.until in (0.0, read_to[turn.total]) for turn in behind)


class Counted(NamedTuple):
    """How far time went in one turn, the number of records that the turn applied, and of all that are applied."""

    until: float
    applied: int
    total: int


class Counting(Diary):
    """Work that counts what is applied by the end of each turn."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[Counted] = []

    async def store(self, tx: Connection, turn: Turn, batch: Batch | None) -> None:
        await super().store(tx, turn, batch)
        self.counted.append(Counted(turn.until, self.coming, self.remembered + self.coming))


async def test_foreign_cluster_and_adoption(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position of another log stops only that partition, until an operator adopts a new one."""
    monkeypatch.setattr(kafka, "STOPPED_SECONDS", 0.05)
    async with replica(place, "a") as active:
        await until_leading(active)
    await place.database.execute(
        "UPDATE consumed SET cluster_id = 'the-old-one' WHERE partition = 0 AND topic ~ 'worker'"
    )
    async with publisher(place) as publish:
        for partition in range(PARTITIONS):
            await publish.send(report(f"w{partition}", "a"), partition=partition)
        async with replica(place, "b") as active:
            await until_effects(place, PARTITIONS - 1)
            reading = active.readings[0]
            assert list(reading.stopped) == [0]
            assert "the-old-one" in reading.stopped[0]
            assert (await place.effects()).get(("w0", "a")) is None
            assert await reading.adopt(0, at_end=False, by="ops") == 0
            await until_effects(place, PARTITIONS)
            assert not reading.stopped
    assert await place.gaps() == ["foreign-position"]


async def test_retention_gap(place: Place) -> None:
    """Records deleted before they were read are recorded as a gap."""
    async with publisher(place) as publish:
        await publish.send(report("w1", "a"), partition=0)
        async with replica(place, "a"):
            await until_effects(place, 1)
        for word in ("b", "c", "d"):
            await publish.send(report("w1", word), partition=0)
        await delete_records(place, {0: 3})
        async with replica(place, "b"):
            await until_effects(place, 2)
    assert await place.words("w1") == ["a", "d"]
    assert await place.gaps() == ["retention", "sequence-gap"]  # the loss, which the sequence numbers show too


async def test_applied_positions_are_reported(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions are committed under the group names without members, for lag tools."""
    monkeypatch.setattr(kafka, "REPORT_SECONDS", 0.05)
    admin = AIOKafkaAdminClient(bootstrap_servers=place.kafka.bootstrap)
    await admin.start()
    try:
        async with publisher(place) as publish, replica(place, "a"):
            await publish.send(report("w1", "a"), partition=0)

            async def reported() -> bool:
                offsets = await admin.list_consumer_group_offsets(place.prefix + group(SERVICE, WORKER_LIFECYCLE))
                found = offsets.get(TopicPartition(place.prefix + WORKER_LIFECYCLE.name, 0))
                return found is not None and found.offset == 1

            await until(reported, seconds=60)
    finally:
        await admin.close()


async def test_outages(place: Place) -> None:
    """Each record takes effect once across restarts of the broker and the database."""
    async with publisher(place) as publish, replica(place, "a") as first, replica(place, "b") as second:
        await until(lambda: first.working() or second.working(), seconds=60)
        for word, server in (("kafka", place.kafka), ("postgres", place.postgres)):
            for n in range(20):
                await publish.send(report("w1", f"{word} {n}"))
            await server.kill()
            await server.start()
        await publish.send(report("w2", "last"))
        await until_effects(place, 41)
    assert set((await place.effects()).values()) == {1}
    assert (await place.dead(), await place.gaps()) == ([], [])


async def test_unavailable_broker(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A leader without answers from the broker is not working, and releases leadership."""
    monkeypatch.setattr(leader_loop, "BROKER_TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr(kafka, "REPORT_SECONDS", 0.05)
    async with replica(place, "a") as active:
        await until_leading(active)
        await place.kafka.kill()
        try:

            async def released() -> Any:
                return await place.database.fetchval("SELECT seen_at IS NULL FROM leader")

            await until(released, "the row is given back", seconds=60)
            assert not active.working()
            assert active.reasons() != []
        finally:
            await place.kafka.start()
        await until_leading(active)
