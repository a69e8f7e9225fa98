"""Signals as they are heard: what no rule allows is counted and told, and changes nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import REGISTRY

from slipway_common.events.alert import AlertRaised, AlertResolved
from slipway_common.events.signal import SignalRaised
from slipway_common.events.weight import WeightChanged
from slipway_common.exclusive import Exclusive
from slipway_common.topics import ALERT, DECODERS
from slipway_local.postgres import EmbeddedPostgres
from slipway_weight_calculator.store import signals
from slipway_weight_calculator.work import TOPICS, Calculation
from tests.harness import Place, publisher, until
from tests.weight_calculator import Calculator, after, calculator_on, declared, failed, ok

ZONES = ("zone-a", "zone-b", "zone-c")


@pytest.fixture
async def calculator(postgres: EmbeddedPostgres) -> AsyncIterator[Calculator]:
    """Three declared zones of one pool, published."""
    async with calculator_on(postgres.url()) as calculator:
        await calculator.tell(*map(declared, ZONES))
        await calculator.publish()
        yield calculator


def said(kind: str, target_kind: str = "config", target_id: str = "zone-a", at: float = 0, **fields: Any) -> Any:
    usual: dict[str, Any] = {"source": "page", "reason": "smoke", "ttl_seconds": 600.0}
    return SignalRaised(
        kind=kind, target_kind=target_kind, target_id=target_id, observed_at=after(at), **usual | fields
    )


def counted() -> float:
    """Refused signals, whatever the reason."""
    return sum(
        sample.value
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == "slipway_signals_refused_total"
    )


async def alerts(calculator: Calculator) -> list[Any]:
    rows = await calculator.pool.fetch("SELECT type, value FROM outbox WHERE topic = $1 ORDER BY id", ALERT.name)
    return [DECODERS[row["type"]].decode(row["value"]) for row in rows]


async def test_refused_signals_change_nothing(calculator: Calculator) -> None:
    """An unknown kind, an unknown target, a time that is over, a source over its share: each counted by its reason, the
    newest told first, and the rows stay as they were, byte for byte."""
    before, refused = await calculator.stored(), counted()
    wrong = [
        said("up"),
        said("down", "planet"),
        said("down", target_id="zone-z"),
        said("down", at=-601),
        said("down", "pool", "linux"),
        said("degraded", value=2.0),
    ]
    await calculator.tell(*wrong)
    assert await calculator.stored() == before
    assert await calculator.publish() == []
    assert counted() == refused + len(wrong)
    told = await signals.refused(calculator.pool)
    reasons = [row["why"].partition(":")[0] for row in told]
    assert reasons == ["value", "share", "expired", "unreached", "target", "kind"]
    assert (told[-1]["source"], told[-1]["kind"], told[-1]["at"]) == ("page", "up", after(0))


async def test_over_kafka(place: Place, postgres: EmbeddedPostgres) -> None:
    """As any monitor writes them: what no rule allows is refused, what is no signal is a dead letter, and neither holds
    up what follows on the same target."""
    await place.create(*TOPICS)
    async with calculator_on(postgres.url()) as calculator, publisher(place) as publish:
        await calculator.pool.execute("DELETE FROM consumed")  # of the log that the tests beside this one make up
        reader = Exclusive(
            Calculation(),
            service="weight-calculator",
            bootstrap_servers=place.kafka.bootstrap,
            prefix=place.prefix,
            instance=calculator.instance,
            ring=lambda: None,
        )
        running = asyncio.create_task(reader.run(calculator.pool))
        try:
            for zone in ZONES:
                await publish.send(declared(zone))

            async def known() -> bool:
                return len((await calculator.stored())["config"]) == len(ZONES)

            await until(known, "the configs are known")
            before, refused = await calculator.stored(), counted()
            for wrong in (said("up"), said("down", "planet"), said("down", at=-601), said("down", "pool", "linux")):
                await publish.send(wrong, numbered=False)
            await publish.send(said("down"), numbered=False, value=b'{"kind": "down"}')
            await publish.send(said("degraded", value=0.5), numbered=False)

            async def heard() -> bool:
                return len((await calculator.stored())["signal"]) == 1

            await until(heard, "the signal counts")
            await until(lambda: counted() == refused + 4, "four are refused")
        finally:
            reader.stop()
            await running
        after_ = await calculator.stored()
        assert {name: rows for name, rows in after_.items() if name != "signal"} == {
            name: rows for name, rows in before.items() if name != "signal"
        }
        reasons = {row["why"].partition(":")[0] for row in await signals.refused(calculator.pool)}
        assert reasons == {"kind", "target", "expired", "share"}
        dead = await calculator.pool.fetch("SELECT subject, state FROM dead_letter")
        assert [tuple(row) for row in dead] == [("zone-a", "dead")]


async def test_a_signal_weighs_until_its_time_is_over(calculator: Calculator) -> None:
    """Published with the words that it came with; its end is published too."""
    plain = calculator.work.publishing.published["zone-a"].record
    await calculator.tell(said("degraded", value=0.5))
    (record,) = await calculator.publish()
    assert (record.launch_config_id, record.signals) == ("zone-a", ("degraded 0.5 by page (smoke)",))
    assert record.health == pytest.approx(plain.health / 2)
    await calculator.set_clock(600)
    again = await of_zone_a(calculator)
    assert again.signals == ()
    assert again.health == pytest.approx(plain.health)


async def of_zone_a(calculator: Calculator) -> WeightChanged:
    """Its newest record of those that are published now."""
    return [record for record in await calculator.publish() if record.launch_config_id == "zone-a"][-1]


async def test_the_newest_refused_are_kept(calculator: Calculator) -> None:
    for _ in range(3):
        await calculator.tell(*(said("up", target_id=f"c-{number}") for number in range(50)))
    told = await signals.refused(calculator.pool)
    assert len(told) == signals.KEPT == 100
    assert told[0]["target_id"] == "c-49"


async def test_a_down_is_told_and_its_end_is(calculator: Calculator) -> None:
    """Across a restart in between: once each."""
    await calculator.tell(said("down"))
    calculator.restart()
    await calculator.take_over()
    await calculator.set_clock(600)
    await calculator.turn([])
    raised, resolved = await alerts(calculator)
    assert (type(raised), type(resolved)) == (AlertRaised, AlertResolved)
    assert raised.dedup_key == resolved.dedup_key == "weight-calculator/config-closed/zone-a"
    assert raised.cause == "page says that it is down: smoke"


async def test_a_recovered_is_a_probe_at_once(calculator: Calculator) -> None:
    """Outcomes decide: the config stays closed until the probe has succeeded."""
    await calculator.tell(failed(config_id="zone-a"), failed(config_id="zone-a"))
    closed = await of_zone_a(calculator)
    assert (closed.state, closed.probe_ready) == ("closed", False)
    await calculator.set_clock(1)
    await calculator.tell(said("recovered", at=1), at=1)
    ready = await of_zone_a(calculator)
    assert (ready.state, ready.probe_ready) == ("closed", True)
    await calculator.tell(ok(ready.probe_permit, config_id="zone-a"), at=2)
    opened = await of_zone_a(calculator)
    assert opened.state == "open"
    kinds = [(alert.kind, type(alert)) for alert in await alerts(calculator)]
    assert kinds == [("config-closed", AlertRaised), ("config-closed", AlertResolved), ("recovered", AlertRaised)]
