"""Consumed signals: their effects and alerts, and refused ones, which change nothing and are counted."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.signal import SignalRaised
from slipway_api.events.topics import ALERT, DECODERS
from slipway_api.events.weight import WeightChanged
from slipway_common.messaging.leader_loop import LeaderLoop
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_weight_calculator.store import signals
from slipway_weight_calculator.work import TOPICS, Calculation
from tests.support.harness import Place, publisher, until
from tests.support.weight_calculator import Calculator, after, calculator_on, declared, failed, ok

ZONES = ("zone-a", "zone-b", "zone-c")


@pytest.fixture
async def calculator(postgres: EmbeddedPostgres) -> AsyncIterator[Calculator]:
    """Three declared zones of one pool, published."""
    async with calculator_on(postgres) as calculator:
        await calculator.consume(*map(declared, ZONES))
        await calculator.publish()
        yield calculator


def signal_event(
    kind: str, target_kind: str = "config", target_id: str = "zone-a", at: float = 0, **fields: Any
) -> Any:
    usual: dict[str, Any] = {"source": "page", "reason": "smoke", "ttl_seconds": 600.0}
    return SignalRaised(
        kind=kind, target_kind=target_kind, target_id=target_id, observed_at=after(at), **usual | fields
    )


def counted() -> float:
    """Refused signals of all categories."""
    return sum(
        sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == "slipway_signals_refused_total"
    )


async def alerts(calculator: Calculator) -> list[Any]:
    rows = await calculator.database.fetch("SELECT type, value FROM outbox WHERE topic = $1 ORDER BY id", ALERT.name)
    return [DECODERS[row["type"]].decode(row["value"]) for row in rows]


async def test_refused_signals_change_nothing(calculator: Calculator) -> None:
    """Each is counted by its category and listed, newest first; the rows stay the same, byte for byte."""
    before, refused = await calculator.stored(), counted()
    wrong = [
        signal_event("up"),
        signal_event("down", "planet"),
        signal_event("down", target_id="zone-z"),
        signal_event("down", at=-601),
        signal_event("down", "pool", "linux"),
        signal_event("degraded", value=2.0),
    ]
    await calculator.consume(*wrong)
    assert await calculator.stored() == before
    assert await calculator.publish() == []
    assert counted() == refused + len(wrong)
    refused_ = await signals.refused(calculator.database)
    reasons = [row.reason.partition(":")[0] for row in refused_]
    assert reasons == ["value", "share", "expired", "unreached", "target", "kind"]
    assert (refused_[-1].source, refused_[-1].kind, refused_[-1].at) == ("page", "up", after(0))


async def test_over_kafka(place: Place, postgres: EmbeddedPostgres) -> None:
    """Signals as any monitor writes them: invalid ones are refused, malformed ones dead-lettered.

    Neither blocks later signals on the same target.
    """
    await place.create(*TOPICS)
    async with calculator_on(postgres) as calculator, publisher(place) as publish:
        await calculator.database.execute("DELETE FROM consumed")  # positions in the artificial log of other tests
        reader = LeaderLoop(
            Calculation(),
            service="weight-calculator",
            kafka=place.kafka.bootstrap,
            prefix=place.prefix,
            instance=calculator.instance,
            wake=lambda: None,
        )
        running = asyncio.create_task(reader.run(calculator.database))
        try:
            for zone in ZONES:
                await publish.send(declared(zone))

            async def known() -> bool:
                return len((await calculator.stored())["config"]) == len(ZONES)

            await until(known, "the configs are known")
            before, refused = await calculator.stored(), counted()
            for wrong in (
                signal_event("up"),
                signal_event("down", "planet"),
                signal_event("down", at=-601),
                signal_event("down", "pool", "linux"),
            ):
                await publish.send(wrong, numbered=False)
            await publish.send(signal_event("down"), numbered=False, value=b'{"kind": "down"}')
            await publish.send(signal_event("degraded", value=0.5), numbered=False)

            async def counts() -> bool:
                return len((await calculator.stored())["signal"]) == 1

            await until(counts, "the signal counts")
            await until(lambda: counted() == refused + 4, "four are refused")
        finally:
            reader.stop()
            await running
        after_ = await calculator.stored()
        assert {name: rows for name, rows in after_.items() if name != "signal"} == {
            name: rows for name, rows in before.items() if name != "signal"
        }
        reasons = {row.reason.partition(":")[0] for row in await signals.refused(calculator.database)}
        assert reasons == {"kind", "target", "expired", "share"}
        dead = await calculator.database.fetch("SELECT subject, state FROM dead_letter")
        assert [tuple(row) for row in dead] == [("config/zone-a", "dead")]


async def test_a_signal_counts_until_it_expires(calculator: Calculator) -> None:
    """A signal is published with its reason; its end is published too."""
    plain = calculator.work.publishing.published["zone-a"].record
    await calculator.consume(signal_event("degraded", value=0.5))
    (record,) = await calculator.publish()
    assert (record.launch_config_id, record.signals) == ("zone-a", ("degraded 0.5 from page (smoke)",))
    assert record.health == pytest.approx(plain.health / 2)
    await calculator.set_clock(600)
    again = await of_zone_a(calculator)
    assert again.signals == ()
    assert again.health == pytest.approx(plain.health)


async def of_zone_a(calculator: Calculator) -> WeightChanged:
    """The newest of the records of zone-a published now."""
    return [record for record in await calculator.publish() if record.launch_config_id == "zone-a"][-1]


async def test_the_newest_refused_are_kept(calculator: Calculator) -> None:
    for _ in range(3):
        await calculator.consume(*(signal_event("up", target_id=f"c-{number}") for number in range(50)))
    refused_ = await signals.refused(calculator.database)
    assert len(refused_) == signals.REFUSED_MAX == 100
    assert refused_[0].target_id == "c-49"


async def test_a_down_signal_raises_and_resolves_an_alert(calculator: Calculator) -> None:
    """Once each, despite a restart in between."""
    await calculator.consume(signal_event("down"))
    calculator.restart()
    await calculator.take_over()
    await calculator.set_clock(600)
    await calculator.turn([])
    raised, resolved = await alerts(calculator)
    assert (type(raised), type(resolved)) == (AlertRaised, AlertResolved)
    assert raised.dedup_key == resolved.dedup_key == "weight-calculator/config-tripped/config/zone-a"
    assert raised.cause == "down signal from page: smoke"


async def test_recovered_causes_a_probe_at_once(calculator: Calculator) -> None:
    """Outcomes decide: the config stays tripped until the probe succeeds."""
    await calculator.consume(failed(config_id="zone-a"), failed(config_id="zone-a"))
    tripped = await of_zone_a(calculator)
    assert (tripped.state, tripped.probe_ready) == ("tripped", False)
    await calculator.set_clock(1)
    await calculator.consume(signal_event("recovered", at=1), at=1)
    ready = await of_zone_a(calculator)
    assert (ready.state, ready.probe_ready) == ("probing", True)
    await calculator.consume(ok(ready.probe_permit, config_id="zone-a"), at=2)
    recovered = await of_zone_a(calculator)
    assert recovered.state == "healthy"
    kinds = [(alert.kind, type(alert)) for alert in await alerts(calculator)]
    assert kinds == [
        ("capacity-unavailable", AlertRaised),
        ("capacity-unavailable", AlertResolved),
        ("recovered", AlertRaised),
    ]
