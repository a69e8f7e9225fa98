"""Reports of workers about their tasks, over HTTP on a real database: several tasks at once, repeated and made-up
reports, claims above the task slots, and what demand makes of them."""

from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from slipway_api.events.lease import LeaseRequested
from slipway_api.events.pool import DemandReported
from slipway_api.events.worker import WorkerClaimed, WorkerIdle
from slipway_common.base.errors import BadEvent
from slipway_common.messaging.envelope import decode_data
from slipway_provisioner.domain.pool import Demand
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.store import demand
from tests.support.provisioner import Provisioner, administrator, after, declared, report


class Machine:
    """A registered worker, which reports with its token."""

    def __init__(self, provisioner: Provisioner, worker: Worker, answer: dict[str, Any]) -> None:
        self.provisioner = provisioner
        self.id = worker.id
        self.task_slots = answer["task_slots"]
        self.client = provisioner.client(token=answer["token"])
        self.client.base_url = httpx2.URL(f"http://provisioner/workers/{worker.id}")

    async def claimed(self, task: str, at: float, source: str = "q") -> dict[str, Any]:
        return await self.sent("/claimed", {"task_id": task, "source": source, "at": after(at).isoformat()})

    async def idle(self, at: float, task: str = "", claimed: float | None = None, source: str = "q") -> dict[str, Any]:
        named = {"task_id": task} if task else {}
        if claimed is not None:
            named |= {"source": source, "claimed_at": after(claimed).isoformat()}
        return await self.sent("/idle", {"at": after(at).isoformat()} | named)

    async def sent(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await self.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        told: dict[str, Any] = answer.json()
        return told

    async def is_idle(self) -> bool:
        return any(w.id == self.id and w.idle_since is not None for w in await self.provisioner.workers())


async def machines(provisioner: Provisioner, number: int, body: dict[str, Any]) -> list[Machine]:
    """Registered workers of a declared pool."""
    await provisioner.declare(body)
    await provisioner.trust()
    await provisioner.demand(report(number))
    await provisioner.plan()
    await provisioner.leases(*(provisioner.granted(each) for each in await provisioner.published(LeaseRequested)))
    await provisioner.launch()
    found = []
    for worker in await provisioner.workers():
        answer = await provisioner.register(worker.instance_id or "", worker.batch_id)
        found.append(Machine(provisioner, worker, answer.json()))
    await provisioner.events()
    return found


def with_slots(task_slots: int) -> dict[str, Any]:
    body = declared()
    body["worker_pools"][0]["launch_configs"][0]["task_slots"] = task_slots
    return body


async def errors(provisioner: Provisioner) -> list[tuple[str, int]]:
    """Codes of the errors of workers, and how many of each."""
    rows = await provisioner.database.fetch("SELECT code, sum(number)::int FROM worker_error_hour GROUP BY 1")
    return [tuple(row) for row in rows]


async def observed(provisioner: Provisioner) -> dict[str, Demand]:
    async with provisioner.database.acquire() as db, db.transaction():
        return {each.source: each for each in demand.observed(await db.fetch(demand.OBSERVE, "linux"))}


@pytest.mark.parametrize(("counted", "at", "gone"), [(2, 20.9, 1), (2, 21.1, 0), (None, 20.9, 0)])
async def test_a_task_that_begins_while_its_queue_is_read(
    provisioner: Provisioner, counted: int | None, at: float, gone: int
) -> None:
    """The queue may count it as claimed, though the report is of the time before it was read: once it has ended, it
    needs no other worker. One that begins later, or while one reads what only waits, is not in the report."""
    first, second = await machines(provisioner, 2, with_slots(1))
    await provisioner.set_clock(25)
    await first.claimed("long", 10)
    await second.claimed("short", at)
    await second.idle(23)
    await provisioner.demand(report(0, counted, at=20))
    assert (await observed(provisioner))["q"].gone == gone


async def test_several_tasks_on_one_machine(provisioner: Provisioner) -> None:
    """Claims of a long and a short task, and the end of the short one, with a name and without: the worker is busy, and
    nobody asks it to stop, however long it takes."""
    (machine,) = await machines(provisioner, 1, with_slots(2))
    assert machine.task_slots == 2
    await machine.claimed("long", 0)
    await machine.claimed("short", 1)
    assert (await machine.idle(3))["ended"] == 0  # which one?
    assert (await machine.idle(3, "short", 1))["ended"] == 1
    assert not await machine.is_idle()
    await provisioner.set_clock(301)
    await provisioner.demand(report(0, 0, at=300))
    await provisioner.plan()
    assert await provisioner.states() == {"running": 1}
    events = [type(event) for event in await provisioner.events() if isinstance(event, WorkerClaimed | WorkerIdle)]
    assert events == [WorkerClaimed, WorkerClaimed]
    assert (await machine.idle(301))["ended"] == 1
    assert await machine.is_idle()
    assert len(await provisioner.published(WorkerIdle)) == 1


async def test_ends_that_name_no_task(provisioner: Provisioner, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a worker that runs several are one error of it, however many it reports."""
    (machine,) = await machines(provisioner, 1, with_slots(2))
    await machine.claimed("long", 0)
    await machine.claimed("short", 1)
    answers = [await machine.idle(3 + number) for number in range(3)]
    assert [answer["ended"] for answer in answers] == [0, 0, 0]
    assert await errors(provisioner) == [("unnamed-end", 1)]
    assert capsys.readouterr().out.count("slipway-worker hook idle TASK") == 1


@pytest.mark.parametrize("named", [True, False])
async def test_a_repeated_end_does_not_end_the_next_task(provisioner: Provisioner, named: bool) -> None:
    """A claimed at 1, its end at 10, B claimed at 11, the end at 10 again: B runs, and its worker is not stopped."""
    (machine,) = await machines(provisioner, 1, declared())
    await provisioner.set_clock(12)
    name: dict[str, Any] = {"task": "A", "claimed": 1} if named else {}
    await machine.claimed("A", 1)
    assert (await machine.idle(10, **name))["ended"] == 1
    await machine.claimed("B", 11)
    assert (await machine.idle(10, **name))["ended"] == 0
    assert not await machine.is_idle()
    await provisioner.set_clock(301)
    await provisioner.demand(report(0, 0, at=300))
    await provisioner.plan()
    assert await provisioner.states() == {"running": 1}
    rows = await provisioner.database.fetch("SELECT task_id, started_at, ended_at FROM claim ORDER BY started_at")
    assert [tuple(row) for row in rows] == [("A", after(1), after(10)), ("B", after(11), None)]


async def test_claims_are_told_apart_by_the_words_of_the_worker(provisioner: Provisioner) -> None:
    """The time of a claim is compared as the worker wrote it, and another notation is another claim."""
    (machine,) = await machines(provisioner, 1, declared())
    claim = {"task_id": "t", "source": "q"}
    await machine.sent("/claimed", claim | {"at": "2026-01-01T13:00:00.000+01:00"})
    end = claim | {"at": after(3).isoformat()}
    assert (await machine.sent("/idle", end | {"claimed_at": after(0).isoformat()}))["ended"] == 0
    assert (await machine.sent("/idle", end | {"claimed_at": "2026-01-01T13:00:00.000+01:00"}))["ended"] == 1
    assert await machine.is_idle()


async def test_claims_above_the_task_slots(provisioner: Provisioner, capsys: pytest.CaptureFixture[str]) -> None:
    """They are accepted, protect the worker, count nowhere, and are an error of it, once."""
    (machine,) = await machines(provisioner, 1, with_slots(2))
    assert [(await machine.claimed(f"t{n}", n))["counted"] for n in range(4)] == [True, True, False, False]
    await provisioner.demand(report(9, 9, at=3))
    for n in (0, 1):
        assert (await machine.idle(5, f"t{n}", n))["ended"] == 1
    assert not await machine.is_idle()
    await machine.idle(6, "t2", 2)
    await machine.idle(6, "t3", 3)
    assert await machine.is_idle()
    await provisioner.set_clock(13)
    assert (await observed(provisioner))["q"].gone == 2
    answers = [await machine.claimed(f"more{n}", 13) for n in range(110)]
    assert capsys.readouterr().out.count("a claim above its task slots counts nowhere") == 1
    assert await errors(provisioner) == [("claim-above-slots", 1)]
    assert sum(answer["counted"] for answer in answers) == 2
    assert await provisioner.database.fetchval("SELECT count(*) FROM claim WHERE ended_at IS NULL") == 102


async def test_made_up_claims_hold_no_pool(provisioner: Provisioner) -> None:
    """396 claims by the token of one worker, each with its end, while 30 tasks wait: the pool launches for all but
    those that the worker can have ended, and idle workers that wait for tasks stay."""
    first, *_ = await machines(provisioner, 6, declared())
    await provisioner.set_clock(12)
    await provisioner.demand(report(30, 0, at=10))
    for number in range(396):
        at = 10 + number / 200
        await first.claimed(f"made-up-{number}", at)
        await first.idle(at + 0.002, f"made-up-{number}", at)
    assert (await observed(provisioner))["q"].gone == 1
    await provisioner.plan()
    states = await provisioner.states()
    assert (states["running"], states["requested"]) == (6, 23)
    await provisioner.set_clock(401)
    await provisioner.demand(report(6, 0, at=400))
    for number in range(50):
        await first.claimed(f"again-{number}", 400 + number / 100)
        await first.idle(400.002 + number / 100, f"again-{number}", 400 + number / 100)
    await provisioner.plan()
    assert (await provisioner.states())["running"] == 6


async def test_made_up_claims_fill_no_table(provisioner: Provisioner) -> None:
    """Of those that have ended, a thousand of each task slot are stored. More have not ended since any sample."""
    (machine,) = await machines(provisioner, 1, declared())
    await provisioner.end_claims(machine.id, 1100)
    await provisioner.set_clock(10)
    await machine.claimed("one-more", 5)
    await machine.idle(6, "one-more", 5)
    oldest, number = await provisioner.database.fetchrow("SELECT min(ended_at), count(*) FROM claim") or (None, 0)
    assert (oldest, number) == (after(0.102), 1000)


async def test_made_up_claims_fill_no_topic(provisioner: Provisioner, capsys: pytest.CaptureFixture[str]) -> None:
    """Once more have ended in five minutes than are stored, further ones publish nothing; they protect the worker, and
    five minutes later events are published again."""
    (machine,) = await machines(provisioner, 1, declared())
    await provisioner.end_claims(machine.id, 1100)
    await provisioner.set_clock(10)
    for second in range(2, 9):
        await machine.claimed("made-up", second)
    assert not await machine.is_idle()
    await machine.idle(9, "made-up", 8)
    assert await machine.is_idle()
    assert await provisioner.events() == []
    assert await errors(provisioner) == [("claims-too-many", 1)]
    assert capsys.readouterr().out.count("publish no events") == 1
    await provisioner.set_clock(320)
    await machine.claimed("real", 319)
    await machine.idle(320, "real", 319)
    assert [type(event) for event in await provisioner.events()] == [WorkerClaimed, WorkerIdle]


async def test_made_up_claims_from_before_the_last_one_fill_no_table(provisioner: Provisioner) -> None:
    """Each is earlier by the worker's times than a claim of an hour ago, and must not count as ended so long ago that
    nothing counts it. Beyond a hundred that may run, they are neither stored nor published."""
    (machine,) = await machines(provisioner, 1, declared())
    await machine.claimed("real", 0)
    await provisioner.set_clock(3600)
    for number in range(1, 121):
        await machine.claimed("made-up", -number)
    stored = await provisioner.database.fetchval("SELECT count(*) FROM claim")
    published = len(await provisioner.published(WorkerClaimed))
    assert (stored, published) == (101, 101)


async def test_claims_that_the_sample_never_had(provisioner: Provisioner) -> None:
    """A task that began and ended after the sample is not taken from its claimed ones."""
    first, second = await machines(provisioner, 2, declared())
    await first.claimed("old", 0)
    await provisioner.set_clock(20)
    await provisioner.demand(report(0, 1, at=10))
    await second.claimed("new", 12)
    await second.idle(18, "new", 12)
    assert (await observed(provisioner))["q"].gone == 0
    await first.idle(19, "old", 0)
    assert (await observed(provisioner))["q"].gone == 1


async def test_an_unknown_number_of_claimed_tasks(provisioner: Provisioner) -> None:
    """Of a source that knows only what waits, those are claimed that its own claims were running at its sample."""
    first, second = await machines(provisioner, 2, with_slots(2))
    await first.claimed("ended", 0)
    await first.idle(4, "ended", 0)
    await first.claimed("mine", 5)
    await second.claimed("mine-too", 6)
    await second.claimed("other", 6, source="other")
    await provisioner.set_clock(20)
    await second.claimed("later", 12)
    await provisioner.demand(report(3, None, at=10))
    demands = await observed(provisioner)
    assert (demands["q"].pending, demands["q"].claimed, demands["q"].gone) == (3, 2, 0)
    await first.idle(15, "mine", 5)
    demands = await observed(provisioner)
    assert (demands["q"].claimed, demands["q"].gone) == (2, 1)
    async with provisioner.client() as client:
        (row,) = (await client.get("/demand")).json()["items"]
        (pool,) = (await client.get("/pools")).json()["items"]
    assert (row["claimed"], pool["claimed"]) == (2, 2)


#           a report that is refused, and the place of its problem
MALFORMED = [
    ({"pending": True}, "pending"),
    ({"pending": 1.5}, "pending"),
    ({"pending": 1.0}, "pending"),
    ({"pending": "1"}, "pending"),
    ({"claimed": False}, "claimed"),
    ({"claimed": 0.5}, "claimed"),
    ({"observed_at": 1767268800}, "observed_at"),
    ({"observed_at": 1767268800.5}, "observed_at"),
    ({"observed_at": "1767268800"}, "observed_at"),
    ({"observed_at": True}, "observed_at"),
    ({"valid_for_seconds": True}, "valid_for_seconds"),
]


async def test_demand_without_counts_is_refused(provisioner: Provisioner, tmp_path: Path) -> None:
    """No count is not zero; a total alone is enough."""
    await provisioner.declare()
    body = {"source": "q", "observed_at": after(0).isoformat()}
    async with administrator(provisioner, tmp_path) as client:
        refused = await client.put("/pools/linux/demand", json=body)
        assert (refused.status_code, "give pending or total" in refused.text) == (422, True), refused.text
        assert (await client.put("/pools/linux/demand", json=body | {"total": 3})).json() == {"stored": True}
        (row,) = (await client.get("/demand")).json()["items"]
    assert (row["pending"], row["claimed"]) == (3, 0)


@pytest.mark.parametrize(("wrong", "place"), MALFORMED)
async def test_malformed_demand_is_refused(
    provisioner: Provisioner, tmp_path: Path, wrong: dict[str, Any], place: str
) -> None:
    """Over HTTP with its place, and nothing is stored."""
    await provisioner.declare()
    body = {"source": "q", "pending": 1, "claimed": 0, "observed_at": after(0).isoformat()}
    async with administrator(provisioner, tmp_path) as client:
        answer = await client.put("/pools/linux/demand", json=body | wrong)
    assert (answer.status_code, place in answer.text) == (422, True), answer.text
    assert await provisioner.database.fetchval("SELECT count(*) FROM demand") == 0


@pytest.mark.parametrize(("wrong", "place"), MALFORMED)
def test_malformed_demand_is_a_dead_letter(wrong: dict[str, Any], place: str) -> None:
    """Over Kafka its reason says the same."""
    body = {"pool_id": "linux", "source": "q", "pending": 1, "claimed": 0, "observed_at": after(0).isoformat()}
    with pytest.raises(BadEvent, match=rf"at `\$\.{place}`|Invalid RFC3339"):
        decode_data(DemandReported.type, msgspec.json.encode(body | wrong))
    assert decode_data(DemandReported.type, msgspec.json.encode(body | {"claimed": None})).claimed is None


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z"])
async def test_times_that_no_clock_shows(provisioner: Provisioner, tmp_path: Path, at: str) -> None:
    """The zero value of a client, and the last one: the database takes them for endless, so that no later report of the
    worker could be read, and no plan of the pool made. They are refused, over HTTP and over Kafka."""
    (machine,) = await machines(provisioner, 1, declared())
    for path, body in (("/claimed", {"at": at}), ("/idle", {"at": at}), ("/idle", {"claimed_at": at})):
        refused = await machine.client.post(
            path, json={"task_id": "t", "source": "q", "at": after(0).isoformat()} | body
        )
        assert refused.status_code == 422, refused.text
    demand = {"source": "q", "pending": 1, "claimed": 0, "observed_at": at}
    async with administrator(provisioner, tmp_path) as client:
        assert (await client.put("/pools/linux/demand", json=demand)).status_code == 422
    with pytest.raises(BadEvent, match="observed_at"):
        await provisioner.demand(decode_data(DemandReported.type, msgspec.json.encode({"pool_id": "linux"} | demand)))
    await machine.claimed("t", 0)
    await machine.idle(1, "t", 0)
    await provisioner.plan()
    assert await provisioner.states() == {"running": 1}


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00.0005Z", "9999-12-31T23:59:59.9995Z"])
async def test_times_at_the_edges(provisioner: Provisioner, at: str) -> None:
    """Ends with and without a name are compared with a claim within a millisecond of the first and the last time."""
    (machine,) = await machines(provisioner, 1, declared())
    for named in ({}, {"task_id": "t", "source": "q", "claimed_at": at}):
        await machine.sent("/claimed", {"task_id": "t", "source": "q", "at": at})
        await machine.sent("/idle", {"at": after(1).isoformat()} | named)
        await machine.sent("/idle", {"at": at})
    await provisioner.plan()
    assert await provisioner.states() == {"running": 1}


async def test_negative_demand_is_a_bad_event(provisioner: Provisioner) -> None:
    """Also beside claimed tasks that are unknown."""
    await provisioner.declare()
    with pytest.raises(BadEvent):
        await provisioner.demand(report(-1, None))


@pytest.mark.parametrize("counts", [{"pending": 2, "claimed": None}, {"pending": 0, "claimed": None, "total": 5}])
async def test_a_queue_that_does_not_know_who_runs_its_tasks(
    provisioner: Provisioner, counts: dict[str, int | None]
) -> None:
    """Three one-task workers are busy and two tasks wait: two workers are launched, and none for a task that ends."""
    busy = await machines(provisioner, 3, declared())
    for number, machine in enumerate(busy):
        await machine.claimed(f"t{number}", 1)
    await provisioner.set_clock(10)
    await provisioner.demand(msgspec.structs.replace(report(0, at=10), **counts))
    demand = (await observed(provisioner))["q"]
    assert (demand.pending, demand.claimed, demand.gone) == (2, 3, 0)
    await busy[0].idle(11, "t0", 1)
    assert (await observed(provisioner))["q"].gone == 1
    await provisioner.plan()
    assert await provisioner.states() == {"running": 3, "requested": 1}  # the third one is idle, and takes the other


async def test_a_total_below_the_own_claims(provisioner: Provisioner) -> None:
    """A count that lags behind the workers leaves nothing pending, and their tasks protect them."""
    (machine,) = await machines(provisioner, 1, with_slots(2))
    await machine.claimed("a", 0)
    await machine.claimed("b", 1)
    await provisioner.demand(msgspec.structs.replace(report(0, None, at=2), total=1))
    demand = (await observed(provisioner))["q"]
    assert (demand.pending, demand.claimed) == (0, 2)


@pytest.mark.parametrize(
    "counts", [{"pending": 1, "total": 1, "claimed": None}, {"total": 1, "claimed": 1}, {"total": -1, "claimed": None}]
)
async def test_counts_that_contradict_each_other(provisioner: Provisioner, counts: dict[str, int | None]) -> None:
    await provisioner.declare(declared())
    with pytest.raises(BadEvent, match="total"):
        await provisioner.demand(msgspec.structs.replace(report(0), **counts))
    assert await provisioner.database.fetchval("SELECT count(*) FROM demand") == 0


async def test_a_claim_of_an_unknown_source(provisioner: Provisioner, capsys: pytest.CaptureFixture[str]) -> None:
    """One error of the worker, however often it claims. A pool without sources cannot know better."""
    (machine,) = await machines(provisioner, 1, declared())
    await machine.claimed("a", 1)
    assert await errors(provisioner) == []
    for number in (2, 3):
        await machine.claimed(f"t{number}", number, source="agent")
    assert await errors(provisioner) == [("unknown-source", 1)]
    assert capsys.readouterr().out.count("slipway demand ls") == 1
    await provisioner.database.execute("DELETE FROM demand")
    await provisioner.database.execute("DELETE FROM worker_error_hour")
    await machine.claimed("t4", 4, source="agent")
    assert await errors(provisioner) == []


@pytest.mark.parametrize(("sources", "told"), [(["q"], True), (["q", "r"], False)])
async def test_machines_know_the_only_source_of_their_pool(
    provisioner: Provisioner, sources: list[str], told: bool
) -> None:
    """By their user data; of several sources their jobs have to say which one they are from."""
    await provisioner.declare(declared())
    await provisioner.trust()
    await provisioner.demand(*(report(1, source=source) for source in sources))
    await provisioner.plan()
    await provisioner.leases(*(provisioner.granted(each) for each in await provisioner.published(LeaseRequested)))
    await provisioner.launch()
    for call in provisioner.cloud.calls:
        assert msgspec.json.decode(call.user_data).get("source") == ("q" if told else None)
