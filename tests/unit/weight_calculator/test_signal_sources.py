"""Rules for signal sources, and signals on a single worker."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slipway_api.events.launch_config import LaunchConfigCreated
from slipway_api.events.signal import SignalRaised
from slipway_api.events.signal_kinds import KINDS, REQUESTS
from slipway_api.events.worker import Outcome, Result, Stage, WorkerLaunched, WorkerRegistered
from slipway_common.base.settings import from_environment
from slipway_common.base.signal_rules import DEFAULT_RULES, Rules, Source, rules_of
from slipway_weight_calculator.domain import signals
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.record import record
from slipway_weight_calculator.domain.signals import REASONS
from slipway_weight_calculator.domain.world import World, advance, apply_signal, commit, declare, fold
from slipway_weight_calculator.settings import Settings

NOW = 1_900_000_000.0
FILE = """\
sources:
  status-page: {targets: [zone], kinds: [degraded, recovered], ids: ["us-*"], max_share: 0.25}
  pager:
unnamed: null
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPWAY_KAFKA", "kafka:9092")
    monkeypatch.setenv("SLIPWAY_DATABASE_URL", "postgresql://host/db")


def test_without_a_file_any_source_may_trip_half_a_pool() -> None:
    assert from_environment(Settings).signal_rules() == Rules(sources={}, unnamed=Source(max_share=0.5))


def test_a_sources_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sources.yaml").write_text(FILE)
    monkeypatch.setenv("SLIPWAY_SIGNAL_SOURCES_FILE", str(tmp_path / "sources.yaml"))
    page = Source(targets=("zone",), kinds=("degraded", "recovered"), ids=("us-*",), max_share=0.25)
    rules = from_environment(Settings).signal_rules()
    assert rules == Rules(sources={"status-page": page, "pager": Source()}, unnamed=None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory; name a readable file"),
        ("source: {}", "source: unknown field; known: sources, unnamed"),
        ("- a", "must be a mapping with sources and unnamed"),
        ("sources: [a]", "sources: must be a mapping of source names"),
        ("sources: {a: {share: 1}}", "sources.a: Object contains unknown field `share`; known: targets, ids, kinds,"),
        ("sources: {a: {max_share: half}}", "sources.a: Expected `float`, got `str` - at `$.max_share`"),
        ("sources: {a: {max_share: 2}}", "sources.a.max_share: is 2; must be between 0 and 1"),
        ("unnamed: {targets: [planet]}", "unnamed.targets: unknown 'planet'; known: worker, config, pool, zone"),
        ("sources:\n  a: {kinds: [up]}", f"sources.a.kinds: unknown 'up'; known: {', '.join(KINDS)}"),
        ("sources: {a: {}, a: {}}", "sources.yaml:1: sources.a: "),
        ("sources: {", "sources.yaml:2: is not YAML"),
    ],
)
def test_a_wrong_sources_file_is_reported_at_start(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    message: str,
) -> None:
    file = tmp_path / "sources.yaml"
    if content is not None:
        file.write_text(content)
    monkeypatch.setenv("SLIPWAY_SIGNAL_SOURCES_FILE", str(file))
    with pytest.raises(SystemExit) as ended:
        from_environment(Settings)
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("SLIPWAY_SIGNAL_SOURCES_FILE: ")
    assert message in error


def test_rules_of_nothing_are_the_usual_ones() -> None:
    assert rules_of({}) == DEFAULT_RULES


# Effect of signals


def declared(config_id: str) -> LaunchConfigCreated:
    return LaunchConfigCreated(
        launch_config_id=config_id,
        name=config_id,
        pool_id="linux",
        account_id="sim-a",
        region="sim-1",
        zone=config_id,
        instance_type="m5.large",
        image_revision="linux-1",
        base_weight=1.0,
        price_factor=1.0,
        state="active",
        revision=1,
    )


IDS: dict[str, Any] = {
    "worker_id": "w-1",
    "pool_id": "linux",
    "launch_config_id": "zone-a",
    "account_id": "sim-a",
    "image_revision": "linux-1",
}


ID = "01981c6e-8f7a-7d53-9c55-2b7f3f9a12cd"


def signal_event(kind: str, target_kind: str = "worker", target_id: str = "w-1", **fields: Any) -> SignalRaised:
    usual: dict[str, Any] = {"observed_at": datetime.fromtimestamp(NOW, UTC), "ttl_seconds": 600.0, "source": "cloud"}
    return SignalRaised(kind=kind, target_kind=target_kind, target_id=target_id, reason="odd", **usual | fields)


def world(*, registered: bool = False) -> World:
    """Two configs of one pool; a worker of the first one boots, or runs."""
    world = World()
    draft = Draft(world)
    for config_id in ("zone-a", "zone-b"):
        declare(draft, declared(config_id), NOW)
    fold(draft, WorkerLaunched(instance_id="i", batch_id="b", outcome=Outcome(Stage.LAUNCH, Result.OK), **IDS), NOW)
    if registered:
        booted = Outcome(Stage.BOOT, Result.OK)
        fold(draft, WorkerRegistered(instance_id="i", boot_seconds=9.0, outcome=booted, **IDS), NOW + 9)
    commit(draft)
    return world


raised_signals = st.lists(
    st.tuples(
        st.sampled_from([kind for kind in KINDS if kind not in REQUESTS]),
        st.sampled_from([("config", "zone-a"), ("pool", "linux"), ("zone", "zone-a"), ("worker", "w-1")]),
        st.sampled_from([None, 0.0, 0.4, 1.0, 2.0, 50.0, float("nan")]),
        st.sampled_from(["page", "pager"]),
    ),
    max_size=8,
)


@given(raised_signals)
@example([("degraded", ("config", "zone-a"), 2.0, "page")])
def test_no_signal_raises_a_weight(given_signals: list[tuple[str, tuple[str, str], float | None, str]]) -> None:
    """No signal raises a window either; the lowest factor counts, not the product."""
    known = world()
    plain = record(Draft(known), known.configs["zone-a"], NOW)
    for kind, target, value, source in given_signals:
        draft = Draft(known)
        apply_signal(draft, signal_event(kind, *target, value=value, source=source), NOW)
        commit(draft)
    published = record(Draft(known), known.configs["zone-a"], NOW)
    assert 0 < published.weight <= plain.weight
    assert published.stages["launch"].window <= plain.stages["launch"].window
    values = [s.value for s in known.signals.values() if "zone-a" in s.configs and s.kind != "capacity_hint"]
    assert published.health == pytest.approx(plain.health * min(values, default=1.0))


def test_a_signal_expires() -> None:
    """An expired signal has no effect, and one that arrives after its expiry neither."""
    known = world(registered=True)
    plain = record(Draft(known), known.configs["zone-a"], NOW + 700)
    for received_at, state in ((NOW, "tripped"), (NOW + 650, "healthy")):
        draft = Draft(known)
        apply_signal(draft, signal_event("down", "config", "zone-a"), received_at)
        commit(draft)
        assert record(Draft(known), known.configs["zone-a"], received_at).state == state
        draft = Draft(known)
        advance(draft, received_at + 600)
        commit(draft)
        assert known.signals == {}
    after = record(Draft(known), known.configs["zone-a"], NOW + 700)
    assert (after.state, after.weight, after.signals) == ("healthy", plain.weight, ())


@pytest.mark.parametrize("kind", ["degraded", "down"])
def test_a_signal_on_a_booting_worker_counts_for_its_config(kind: str) -> None:
    """It trips nothing: a single machine that is down says little about its location."""
    known = world()
    draft = Draft(known)
    assert apply_signal(draft, signal_event(kind), NOW) == ""
    assert [(s.kind, s.value) for s in draft.signals_on("zone-a")] == [("degraded", 0.5)]
    assert draft.signals_on("zone-b") == []
    assert signals.down_signal(draft.signals_on("zone-a")) is None


def test_a_signal_on_a_worker_that_is_not_booting_is_refused() -> None:
    """Such a signal would have no effect. Interruptions are for the provisioner and are not checked here."""
    for known, signal, reason in (
        (world(registered=True), signal_event("down"), "unreached: worker 'w-1' is not booting"),
        (world(), signal_event("degraded", target_id="w-2"), "unreached: worker 'w-2' is not booting"),
        (world(), signal_event("recovered", target_id="w-2"), "unreached: worker 'w-2' is not booting"),
        (world(), signal_event("spot_interruption", target_id=ID), ""),
        (world(), signal_event("spot_interruption", target_id="i-0001"), "target: 'i-0001' is not a worker id"),
    ):
        draft = Draft(known)
        assert apply_signal(draft, signal, NOW).startswith(reason)
        assert bool(apply_signal(draft, signal, NOW)) is bool(reason)
        assert (draft.signals, known.signals) == ({}, {})


@pytest.mark.parametrize("kind", ["pause_request", "resume_request"])
@pytest.mark.parametrize("target_kind", ["worker", "pool", "zone", "account", "image"])
def test_a_request_of_anything_but_a_config_is_refused(kind: str, target_kind: str) -> None:
    """The provisioner would ignore such a request, so it must not be accepted."""
    reason = apply_signal(Draft(world()), signal_event(kind, target_kind, "zone-a"), NOW)
    assert reason == f"target: a {kind} needs target kind config, not {target_kind}"


@pytest.mark.parametrize(
    ("signal", "reason"),
    [
        (signal_event("up", "config", "zone-a"), f"kind: unknown kind 'up'; known: {', '.join(KINDS)}"),
        (signal_event("down", "planet", "mars"), "target: unknown target kind 'planet'; known: worker, config"),
        (signal_event("down", "config", "zone-z"), "unreached: there is no launch config 'zone-z'"),
        (signal_event("pause_request", "config", "zone-z"), "unreached: there is no launch config 'zone-z'"),
        (signal_event("down", "config", "zone-a", ttl_seconds=0), "ttl: ttl_seconds 0 must be above 0"),
        (
            signal_event("down", "config", "zone-a", source="other"),
            "source: 'other' may not raise down for target kind 'config'",
        ),
        (signal_event("down", "zone", "eu-1"), "source: 'cloud' may not raise signals for 'eu-1'"),
        (signal_event("degraded", "config", "zone-a", value=2.0), "value: 2 is not between 0 and 1"),
        (signal_event("capacity_hint", "config", "zone-a"), "value: a capacity_hint needs a value"),
        (
            signal_event("down", "pool", "linux"),
            "share: 'cloud' would trip 2 of 2 active launch configs of pool 'linux'; at most 50",
        ),
    ],
)
def test_each_refusal_begins_with_its_category(signal: SignalRaised, reason: str) -> None:
    """A refused signal changes nothing."""
    rules = Rules(sources={"cloud": Source(ids=("zone-*", "linux", "mars", "w-*"))}, unnamed=None)
    draft = Draft(world())
    given = apply_signal(draft, signal, NOW, rules)
    assert given.startswith(reason)
    assert given.partition(":")[0] in REASONS
    assert (draft.signals, draft.rows) == ({}, {})


def test_expired_and_future_signals_are_refused() -> None:
    draft = Draft(world())
    signal = signal_event("down", "config", "zone-a")
    for later, ago in ((0, "0 s"), (119, "119 s"), (120, "2 min"), (9000, "2 h"), (1_000_000, "12 d")):
        assert apply_signal(draft, signal, NOW + 600 + later) == f"expired: it expired {ago} ago"
    assert apply_signal(draft, signal, NOW - 61) == "future: observed_at is in the future"
    assert apply_signal(draft, signal, NOW) == ""
