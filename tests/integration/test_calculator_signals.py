"""The weight-calculator on PostgreSQL: dead letters, signals, and weights over HTTP."""

from typing import Final

import httpx2
import msgspec
import pytest
from fastapi import FastAPI

from slipway_api.events.scopes import capacity_key, config_key
from slipway_api.events.signal import SignalRaised
from slipway_api.events.topics import LAUNCH_CONFIG_SIGNAL, WORKER_LIFECYCLE
from slipway_api.events.weight import WeightChanged
from slipway_api.events.worker import Notice, WorkerNoticed, WorkerRequested
from slipway_api.http.service import Replayed
from slipway_common.messaging import dead_letters
from slipway_common.messaging.consume import Consumer
from slipway_common.web.limits import CallerLimits
from slipway_common.web.runtime import database
from slipway_common.web.tokens import Tokens
from slipway_weight_calculator.domain.policy import PROFILES
from slipway_weight_calculator.domain.trips import Probe
from slipway_weight_calculator.http.weights import router
from slipway_weight_calculator.store import signals, weights
from tests.support.calculators import ZONE_B, ZONES
from tests.support.readers import HEADERS, TOKENS_FILE
from tests.support.weight_calculator import START, Calculator, declared, failed, of, ok

CAPACITY_B: Final = capacity_key("sim-a", "sim-1", "zone-b", "m5")


async def folded(calculator: Calculator, config_id: str = "zone-b") -> int:
    return calculator.work.world.rows[config_key(config_id)].launch.folded


async def test_dead_failures_count_as_folded(calculator: Calculator) -> None:
    """A dead-lettered or parked failure frees its place in the window if its config is readable.

    It is not counted again once it is replayed.
    """
    broken = failed()
    value = msgspec.json.encode(msgspec.to_builtins(broken) | {"pool_id": 7})
    await calculator.consume(broken, value=value, subject="w1")
    await calculator.consume(failed(), subject="w1")
    await calculator.consume(failed(), value=b"{", subject="w2")
    assert await folded(calculator) == 2
    assert calculator.work.world.rows[ZONE_B].launch.failed == 0
    assert (await calculator.journal())[-1].dead_lettered == [(WORKER_LIFECYCLE.name, 0, 2, 3)]

    consumer = Consumer("weight-calculator", WORKER_LIFECYCLE, calculator.work.handle)
    _, outcome = await calculator.leadership.turn(
        calculator.database, how=lambda db: dead_letters.drop(db, consumer, 0, 0, "ops")
    )
    assert outcome == Replayed(1, 0)
    assert await folded(calculator) == 2
    assert calculator.work.world.rows[ZONE_B].launch.failed == 1
    assert (await calculator.journal())[-1].settled == [(WORKER_LIFECYCLE.name, 0, 1, 2)]


@pytest.mark.parametrize("readable", [True, False])
async def test_a_dead_record_of_a_probe_resolves_it(calculator: Calculator, readable: bool) -> None:
    """The probe ends without an answer, so that the config is not tripped forever; an unreadable one times out."""
    await calculator.consume(declared("zone-b"))
    await calculator.consume(failed(), failed(), at=1)
    await calculator.set_clock(60)
    await calculator.turn([])
    row = calculator.work.world.rows[ZONE_B]
    probe = failed(permit=row.permit)
    spent = WorkerRequested(decision_id="d", **{**of("zone-b", row.permit), "worker_id": probe.worker_id})
    await calculator.consume(spent, at=61)
    value = msgspec.json.encode(msgspec.to_builtins(probe) | {"pool_id": 7}) if readable else b"{"
    await calculator.consume(probe, at=62, value=value)
    trip = calculator.work.world.rows[CAPACITY_B].launch.trip
    assert (trip.tripped, trip.probe, trip.failed_probes) == (
        True,
        None if readable else Probe("zone-b", row.permit),
        0,
    )
    await calculator.set_clock(62 + (15 if readable else PROFILES["on-demand"].probe_timeout_seconds))
    for _ in range(2):
        await calculator.turn([])
        await calculator.set_clock(15 + 62 + PROFILES["on-demand"].probe_timeout_seconds)
    assert calculator.work.world.rows[ZONE_B].permit == row.permit + 1


@pytest.mark.parametrize(
    "fields", [{"launch_config_id": "é" * 350}, {"launch_config_id": "x" * 3000}, {"worker_id": "nul\0"}]
)
async def test_names_that_cannot_be_keys_are_dead_lettered(calculator: Calculator, fields: dict[str, str]) -> None:
    """Other records of the turn take effect."""
    hostile = msgspec.structs.replace(ok(), **fields)
    log = calculator.records[WORKER_LIFECYCLE.name, 0]
    await calculator.consume(failed(), hostile, failed(), subject="w")
    assert [r["offset"] for r in await calculator.database.fetch('SELECT "offset" FROM dead_letter ORDER BY 1')] == [
        1,
        2,
    ]
    assert len(log) == 3
    assert await folded(calculator) == 2, "the first is folded, the parked one is counted"


def signal(**fields: object) -> SignalRaised:
    given = {
        "source": "monitor",
        "target_kind": "config",
        "target_id": "zone-b",
        "kind": "down",
        "reason": "dark",
        "observed_at": START,
    }
    return msgspec.convert(given | fields, SignalRaised)


async def test_signals_count_until_they_expire(calculator: Calculator) -> None:
    await calculator.consume(signal(ttl_seconds=60.0))
    (record,) = await calculator.publish()
    assert (record.state, record.tripped_by) == ("tripped", "signal")
    assert [live.target_id for live in await signals.live(calculator.database)] == ["zone-b"]
    await calculator.set_clock(61)
    (record,) = [r for r in await calculator.publish() if r.launch_config_id == "zone-b"]
    assert (record.state, record.signals) == ("healthy", ())
    assert await signals.live(calculator.database) == []


async def test_a_notice_is_a_signal_on_the_capacity_of_its_machine(calculator: Calculator) -> None:
    """For every pool that launches from it, also after a restart; on-demand machines keep their weight."""
    capacity = "sim-1/az1/m5/spot"
    await calculator.consume(
        declared("spot-1", capacity_key=capacity),
        declared("spot-2", pool_id="windows", capacity_key=capacity),
    )
    await calculator.publish()
    for _ in range(2):
        kind, why = Notice.INTERRUPTION, "taken back"
        await calculator.consume(WorkerNoticed(kind=kind, capacity_key=capacity, reason=why, **of("spot-1")))
        calculator.restart()
        await calculator.take_over()
    (live,) = await signals.live(calculator.database)
    assert (live.source, live.kind, live.target_id) == ("provisioner", "spot_interruption", capacity)
    assert live.configs == ("spot-1", "spot-2")
    await calculator.publish()
    rows = await weights.listed(calculator.database, None, None, archived=False)
    records = [msgspec.json.decode(row, type=WeightChanged) for row in rows]
    weighed = {record.launch_config_id: record.health for record in records}
    assert weighed["spot-1"] == weighed["spot-2"] < 0.6 * weighed["zone-a"]
    assert weighed["zone-a"] == weighed["zone-b"]
    assert await signals.refused(calculator.database) == []


async def test_a_signal_on_a_name_reaches_its_next_revision_after_a_restart(calculator: Calculator) -> None:
    await calculator.consume(declared("zone-x@1"))
    await calculator.consume(signal(target_id="zone-x", ttl_seconds=60.0))
    calculator.restart()
    await calculator.take_over()
    await calculator.consume(declared("zone-x@2", image_revision="linux-2"))
    (live,) = await signals.live(calculator.database)
    assert live.configs == ("zone-x@1", "zone-x@2")
    tripped = {r.launch_config_id for r in await calculator.publish() if r.tripped_by == "signal"}
    assert "zone-x@2" in tripped


async def test_refused_signals_change_nothing_and_are_stored(calculator: Calculator) -> None:
    before = await calculator.stored()
    await calculator.consume(signal(kind="gloomy"), signal(target_id="nowhere"))
    assert await calculator.stored() == before
    reasons = [row.reason.partition(":")[0] for row in await signals.refused(calculator.database)]
    assert reasons == ["unreached", "kind"]
    assert LAUNCH_CONFIG_SIGNAL.name in {r[0] for entry in await calculator.journal() for r in entry.taken}


async def test_a_signal_beyond_its_share_of_a_smaller_pool_is_dropped(calculator: Calculator) -> None:
    """The dropped signal is stored among the refused ones, as it was raised."""
    await calculator.consume(signal(target_id="zone-a", kind="down"))
    await calculator.consume(declared("zone-b", state="archived", revision=2))
    assert len(await signals.live(calculator.database)) == 1
    await calculator.consume(declared("zone-c", state="archived", revision=2))
    assert await signals.live(calculator.database) == []
    (refused,) = await signals.refused(calculator.database)
    assert (refused.target_id, refused.kind) == ("zone-a", "down")
    assert refused.reason.startswith("share: by now ")


async def test_published_weights_can_be_read(calculator: Calculator) -> None:
    """GET /weights returns the records as on the topic, of one pool, of one config or of all."""
    app = FastAPI()
    app.state.tokens, app.state.limits = Tokens(TOKENS_FILE), CallerLimits(1.0)
    app.include_router(router)
    app.dependency_overrides[database] = lambda: calculator.database
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://calculator", headers=HEADERS
    ) as client:
        answer = await client.get("/weights")
        items = msgspec.json.decode(answer.content, type=dict[str, list[WeightChanged]])["items"]
        assert [item.launch_config_id for item in items] == list(ZONES)
        assert (await client.get("/weights", params={"pool": "linux"})).content == answer.content
        assert (await client.get("/weights", params={"pool": "windows"})).json() == {"items": []}
        (one,) = (await client.get("/weights", params={"config": "zone-b"})).json()["items"]
        assert one["launch_config_id"] == "zone-b"


async def test_weights_of_the_revisions_of_a_name(calculator: Calculator) -> None:
    """Archived ones are listed if all are asked for, or by their own id."""
    await calculator.consume(declared("zone-x@1"), declared("zone-x@2"))
    await calculator.publish()
    await calculator.consume(declared("zone-x@1", state="archived", revision=2))
    await calculator.publish()

    async def listed(config: str | None, *, archived: bool = False) -> list[str]:
        rows = await weights.listed(calculator.database, None, config, archived=archived)
        return [msgspec.json.decode(row, type=WeightChanged).launch_config_id for row in rows]

    assert await listed("zone-x") == ["zone-x@2"]
    assert await listed("zone-x", archived=True) == ["zone-x@1", "zone-x@2"]
    assert await listed("zone-x@1") == ["zone-x@1"]
    assert await listed(None) == [*ZONES, "zone-x@2"]
