"""Outcomes in, weight records out, on a real database: the whole service but Kafka and HTTP."""

from collections.abc import AsyncIterator
from itertools import pairwise

import httpx2
import msgspec
import pytest
from fastapi import FastAPI

from slipway_common.consume import Fenced, Owned
from slipway_common.events.weight import WeightChanged
from slipway_common.events.worker import Outcome, Result, Scope, Stage, WorkerRegistered, WorkerStopping
from slipway_common.runtime import database
from slipway_common.topics import WORKER_LIFECYCLE
from slipway_local.postgres import EmbeddedPostgres
from slipway_weight_calculator.http.weights import router
from slipway_weight_calculator.store import configs
from tests.weight_calculator import Calculator, after, calculator_on, declared, delayed, failed, of, ok

ZONES = ("zone-a", "zone-b", "zone-c")


@pytest.fixture
async def calculator(postgres: EmbeddedPostgres) -> AsyncIterator[Calculator]:
    """Three declared zones of one pool, published."""
    async with calculator_on(postgres.url()) as calculator:
        await calculator.tell(*map(declared, ZONES))
        await calculator.publish()
        yield calculator


async def test_declared_configs_are_published_equal(postgres: EmbeddedPostgres) -> None:
    """Each once, at revision 1, with equal weights; looking again publishes nothing."""
    async with calculator_on(postgres.url()) as calculator:
        await calculator.tell(*map(declared, ZONES))
        await calculator.publish_loop.step(calculator.pool)
        told = await calculator.told()
        assert [(revision, record and record.launch_config_id) for revision, record in told] == [
            (1, zone) for zone in ZONES
        ]
        assert len({record.weight for _, record in told if record}) == 1
        assert await calculator.publish() == []


async def test_outage_closes_after_exactly_two_capacity_failures(calculator: Calculator) -> None:
    """One failure lowers the weight, the second closes the gate; other zones stay as they are."""
    await calculator.set_clock(2)
    await calculator.tell(failed(), at=1)
    (first,) = await calculator.publish()
    assert (first.state, first.stages["launch"].failures_folded) == ("open", 1)
    await calculator.tell(failed(), at=2)
    (second,) = await calculator.publish()
    assert (second.launch_config_id, second.state, second.closed_stage) == ("zone-b", "closed", "launch")
    assert second.stages["launch"].failures_folded == 2
    assert (second.probe_permit, second.probe_ready) == (None, False)
    assert second.next_probe_at is not None
    assert after(2 + 7.5) <= second.next_probe_at <= after(2 + 15)
    assert second.reason == "zone-b: closed, 2 capacity errors (InsufficientCapacity)"


async def test_probe_is_issued_fails_is_issued_again_and_opens(calculator: Calculator) -> None:
    """A permit at a time, numbered; a failure backs off, a success opens."""
    await calculator.tell(failed(), failed())
    (closed,) = await calculator.publish()
    assert closed.next_probe_at is not None
    await calculator.set_clock((closed.next_probe_at - after(0)).total_seconds() - 0.1)
    assert await calculator.publish() == []

    await calculator.set_clock(15)
    (ready,) = await calculator.publish()
    assert (ready.probe_permit, ready.probe_ready, ready.next_probe_at) == (1, True, None)
    await calculator.set_clock(100)
    assert [record.probe_permit for record in await calculator.publish()] in ([], [1])  # faded at most, never renewed

    await calculator.tell(failed(permit=1), at=100)
    (settled,) = await calculator.publish()
    assert (settled.probe_permit, settled.probe_ready) == (1, False)
    assert settled.next_probe_at is not None
    assert after(115) <= settled.next_probe_at <= after(130)
    assert settled.reason.endswith("1 failed probe (InsufficientCapacity)")

    await calculator.set_clock(130)
    (again,) = await calculator.publish()
    assert (again.probe_permit, again.probe_ready) == (2, True)
    await calculator.tell(ok(), at=130)  # somebody else's late success
    assert all(record.state == "closed" for record in await calculator.publish())
    await calculator.tell(ok(permit=2), at=130)
    (opened,) = await calculator.publish()
    assert (opened.state, opened.closed_stage, opened.probe_ready) == ("open", None, False)
    assert opened.stages["launch"].failures_folded == 3


async def test_delayed_probe_is_given_again_under_a_new_number(calculator: Calculator) -> None:
    await calculator.tell(failed(), failed())
    await calculator.set_clock(15)
    await calculator.publish()
    await calculator.tell(delayed(permit=1), at=15)
    (waiting,) = await calculator.publish()
    assert (waiting.probe_permit, waiting.probe_ready) == (1, False)
    await calculator.set_clock(30)
    (ready,) = await calculator.publish()
    assert (ready.probe_permit, ready.probe_ready) == (2, True)


async def test_closed_pool_gets_a_permit_every_half_minute(calculator: Calculator) -> None:
    """All zones out for twenty minutes: each backs off to minutes, the pool never waits longer than 30 s."""
    await calculator.tell(*(failed(config_id=zone) for zone in ZONES for _ in range(2)))
    issued = []
    for second in range(0, 1200, 5):
        await calculator.set_clock(second)
        ready = [record for record in await calculator.publish() if record.probe_ready]
        for record in ready:
            issued.append(second)
            await calculator.tell(failed(permit=record.probe_permit, config_id=record.launch_config_id), at=second)
    gaps = [later - earlier for earlier, later in pairwise(issued)]
    assert max(gaps) <= 35
    assert len(issued) <= 60, "the backoff of each still holds: no more than a few beside the pool's own"


async def test_every_failure_is_counted_and_published(calculator: Calculator) -> None:
    """A throttle moves neither weight nor gate, but its number frees its place in the window: a record is due."""
    before = {record.launch_config_id: record for record in await configs.published(calculator.pool, None)}
    await calculator.tell(*[failed(scope) for scope in (Scope.LIMITER, Scope.NOTHING, Scope.UNKNOWN) * 3])
    (record,) = await calculator.publish()
    assert record.stages["launch"].failures_folded == 9
    assert (record.state, record.weight) == ("open", before["zone-b"].weight)


async def test_boot_and_claim_outcomes_have_their_own_stages(calculator: Calculator) -> None:
    """A boot that timed out lowers the weight, counts in its stage, and closes nothing."""
    boot = Outcome(Stage.BOOT, Result.FAILED, Scope.CONFIG, code="boot-timeout")
    await calculator.tell(*[WorkerStopping(reason="boot", outcome=boot, **of("zone-b")) for _ in range(9)])
    registered = Outcome(Stage.BOOT, Result.OK)
    await calculator.tell(WorkerRegistered(instance_id="i", boot_seconds=9, outcome=registered, **of("zone-b")))
    (record,) = await calculator.publish()
    assert {name: stage.failures_folded for name, stage in record.stages.items()} == {
        "launch": 0, "boot": 9, "claim": 0,
    }  # fmt: skip
    assert record.state == "open"
    assert record.weight < 0.1


async def test_revisions_of_records_count_up(calculator: Calculator) -> None:
    """Whatever is published of a config carries the next revision."""
    for n in range(4):
        await calculator.tell(failed(Scope.LIMITER), at=n)
        await calculator.publish_loop.step(calculator.pool)
    assert [revision for revision, _ in await calculator.told()] == [2, 3, 4, 5]


async def test_replayed_duplicates_do_nothing(calculator: Calculator) -> None:
    """The same records again, below the position and above it: not a byte of any row changes."""
    await calculator.tell(failed(), ok(), failed(), at=5)
    await calculator.publish()
    before = await calculator.rows()
    again = [record for record in calculator.records if record.topic == WORKER_LIFECYCLE.name]
    moved = [msgspec.structs.replace(record, offset=record.offset + 3) for record in again]
    await calculator.apply(WORKER_LIFECYCLE, moved)
    assert await calculator.rows() == before
    assert await calculator.publish() == []
    calculator.owned[WORKER_LIFECYCLE.name] = Owned(1, 0)
    with pytest.raises(Fenced):
        await calculator.apply(WORKER_LIFECYCLE, again)
    assert await calculator.rows() == before


async def test_outcome_before_its_declaration_is_kept(calculator: Calculator) -> None:
    """It gets a row with defaults; the declaration then fills in what it says and keeps the evidence."""
    await calculator.tell(failed(config_id="zone-d"))
    (record,) = await calculator.publish()
    assert (record.pool_id, record.config_revision, record.stages["launch"].failures_folded) == ("linux", 0, 1)
    await calculator.tell(declared("zone-d", revision=3, base_weight=2.0))
    (record,) = await calculator.publish()
    assert (record.config_revision, record.stages["launch"].failures_folded) == (3, 1)
    assert record.reason.startswith("zone-d: open")
    await calculator.tell(declared("zone-d", revision=2, base_weight=9.0))
    assert await calculator.publish() == [], "an older declaration changes nothing"


async def test_archived_config_becomes_a_tombstone(calculator: Calculator) -> None:
    """Its last outcomes are still folded, and published never again; a new declaration brings it back."""
    await calculator.tell(declared("zone-b", revision=2, state="archived"))
    await calculator.publish_loop.step(calculator.pool)
    assert await calculator.told() == [(2, None)]
    await calculator.tell(failed())
    assert await calculator.publish() == []
    await calculator.tell(declared("zone-b", revision=3))
    (record,) = await calculator.publish()
    assert (record.launch_config_id, record.stages["launch"].failures_folded) == ("zone-b", 1)


async def test_faded_evidence_and_old_records_are_published_again(calculator: Calculator) -> None:
    """Failures weigh less by time alone, and whatever was published is repeated now and then."""
    await calculator.tell(failed())
    (low,) = await calculator.publish()
    await calculator.set_clock(300)
    (faded,) = await calculator.publish()
    assert (faded.launch_config_id, faded.stages["launch"].failures) == ("zone-b", 0.5**0.5)
    assert faded.weight > low.weight
    await calculator.set_clock(660)
    assert {record.launch_config_id for record in await calculator.publish()} == set(ZONES)
    assert await calculator.publish() == []


async def test_future_event_times_count_as_now(calculator: Calculator) -> None:
    """One wrong clock must not make everything after it look late."""
    await calculator.tell(failed(), at=10**6)
    await calculator.publish()
    await calculator.tell(ok(), at=0)
    rows = await configs.waiting(calculator.pool)
    assert rows == []
    async with calculator.pool.acquire() as db, db.transaction():
        (row,) = await configs.lock(db, ["zone-b"])
    assert row.health.launch.at == after(0)
    assert row.health.launch.successes == 1.0


async def test_published_weights_can_be_read(calculator: Calculator) -> None:
    """GET /weights answers what is on the topic, of one pool or of all."""
    app = FastAPI()
    app.include_router(router)
    app.dependency_overrides[database] = lambda: calculator.pool
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://calculator") as client:
        answer = await client.get("/weights")
        items = msgspec.json.decode(answer.content, type=dict[str, list[WeightChanged]])["items"]
        assert [item.launch_config_id for item in items] == list(ZONES)
        assert (await client.get("/weights", params={"pool": "linux"})).content == answer.content
        assert (await client.get("/weights", params={"pool": "windows"})).json() == {"items": []}
