"""Effects of signals on the world, and their limits."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.signal_kinds import KINDS, REQUESTS, TTL_SECONDS_MAX
from slipway_api.events.worker import Scope
from slipway_api.limits import NAME, REASON
from slipway_common.base.signal_rules import Rules, Source
from slipway_common.messaging import outbox
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.world import commit, enforce_shares
from tests.support.worlds import (
    CAPACITY,
    T0,
    A,
    B,
    C,
    Story,
    apply,
    config,
    launched,
    refused,
    reloaded,
    requested,
    signal_event,
    stored,
)

ZONES = [config(f"c{n}", zone=f"z{n % 2}", account=f"acc-{n // 2}", image_revision=f"i{n % 3}") for n in range(4)]
OTHER = config("o", pool="other", zone="z0", region="far-1")


def tripped(story: Story, at: float = 0.0) -> set[str]:
    return {id_ for id_ in story.world.configs if story.record(id_, at).state != "healthy"}


#   target                    reaches
REACHED: list[tuple[tuple[str, str], set[str]]] = [
    (("config", "c1"), {"c1"}),
    (("pool", "linux"), {"c0", "c1", "c2", "c3"}),
    (("zone", "z0"), {"c0", "c2", "o"}),
    (("zone", "sim-1/z0"), {"c0", "c2"}),
    (("account", "acc-1"), {"c2", "c3"}),
    (("image", "i0"), {"c0", "c3"}),
]


@pytest.mark.parametrize(("target", "ids"), REACHED)
def test_configs_reached_by_a_signal(target: tuple[str, str], ids: set[str]) -> None:
    """A signal reaches the configs of its target, and changes no other record and no row."""
    story = Story(*ZONES, OTHER)
    before = {id_: story.record(id_, 0) for id_ in story.world.configs}
    rows = dict(story.world.rows)
    assert story.signal(signal_event("degraded", *target)) == ""
    after = {id_: story.record(id_, 0) for id_ in story.world.configs}
    assert {id_ for id_ in after if after[id_] != before[id_]} == ids
    assert all(after[id_].health == pytest.approx(before[id_].health / 2) for id_ in ids)
    assert story.world.rows == rows


#   kind, value, and the factor by which it multiplies the health of a config
FACTORS: list[tuple[str, float | None, float]] = [
    ("degraded", None, 0.5),
    ("degraded", 0.3, 0.3),
    ("down", None, 0.0),
    ("recovered", None, 1.0),
    ("capacity_hint", 3.0, 1.0),
    ("spot_interruption", None, 0.5),
    ("spot_interruption", 0.3, 0.3),
]


@pytest.mark.parametrize(("kind", "value", "factor"), FACTORS)
def test_factor_of_a_signal(kind: str, value: float | None, factor: float) -> None:
    story = Story(A, B, C)
    before = story.record("a", 0).health
    assert story.signal(signal_event(kind, "config", "a", value=value)) == ""
    assert story.record("a", 0).health == pytest.approx(before * factor)


def test_a_signal_that_is_dropped_is_refused_as_it_was_raised() -> None:
    """Whoever raised it finds it by its fields."""
    story = Story(A, B, C)
    raised = signal_event("degraded", "config", "a", at=5.0, value=0.25, ttl_seconds=60.0)
    assert story.signal(raised) == ""
    (signal,) = story.world.signals.values()
    assert signal.event() == raised


def test_a_record_with_many_signals_fits() -> None:
    """Each signal is from a source of its own, with the longest name and reason."""
    story = Story(A, B)
    for number in range(40):
        source = f"{number:03}" + "s" * (NAME.characters - 3)
        event = signal_event("degraded", "config", "a", source=source, reason="r" * REASON.characters)
        assert story.signal(event) == ""
    record = story.record("a", 0)
    assert len(record.signals) == 20
    assert " and 35 more" in record.reason
    assert outbox.refusal(record, msgspec.json.encode(record)) == ""


def test_every_kind_has_its_factor_here_and_its_effect_in_the_guide() -> None:
    assert {kind for kind, _, _ in FACTORS} == KINDS.keys() - REQUESTS
    guide = (Path(__file__).parents[3] / "docs/guides/monitors.md").read_text()
    described = "".join(line.partition(" | ")[0] for line in guide.splitlines() if line.startswith("| `"))
    assert [kind for kind in KINDS if f"`{kind}`" not in described] == []


def test_an_archived_config_is_not_reached() -> None:
    story = Story(A, B)
    story.declare(config("a", state="archived", revision=2), 1)
    told = story.signal(signal_event("degraded", "config", "a", 2), 2)
    assert told.startswith("unreached: ")


def test_down_trips_without_probes_until_it_expires() -> None:
    """A `down` has no effect from its expiry on, even before the timer fires."""
    story = Story(A, B, C)
    story.trip_config(A)
    story.advance_to(15)
    story.signal(signal_event("down", "config", "a", 15, ttl_seconds=60.0, reason="power cut"), 15)
    told = story.record("a", 16)
    assert (told.state, told.tripped_by, told.probe_ready, told.next_probe_at) == ("tripped", "signal", False, None)
    assert (told.reason, told.signals) == (
        "a tripped: down from monitor (power cut)",
        ("down from monitor (power cut)",),
    )
    assert not story.record("a", 75).signals
    assert story.record("a", 75).probe_ready
    story.advance_to(75)
    assert story.world.signals == {}


def test_a_hint_leaves_room_for_one() -> None:
    """At least one start remains, otherwise nothing would show that the hint is wrong."""
    story = Story(A)
    story.fold(0, *(launched(A, f"w-{n}") for n in range(30)))
    for value, window in ((20.0, 20), (0.0, 1), (500.0, 34)):
        story.signal(signal_event("capacity_hint", "config", "a", value=value))
        assert story.record("a", 0).stages["launch"].window == window
    assert story.record("a", 0).stages["boot"].window == 48


@pytest.mark.parametrize("kind", ["pause_request", "resume_request"])
def test_a_request_is_the_provisioner_s(kind: str) -> None:
    """The request is accepted and changes nothing in the weight-calculator."""
    story = Story(A)
    before, told = stored(story.world), story.record("a", 0)
    assert story.signal(signal_event(kind, "config", "a")) == ""
    assert (stored(story.world), story.record("a", 0)) == (before, told)


def test_the_newest_signal_of_a_source_counts() -> None:
    """The newest by observation time, in whatever order the signals arrive."""
    story = Story(A)
    story.signal(signal_event("degraded", "config", "a", 10, value=0.9), 10)
    assert story.signal(signal_event("degraded", "config", "a", 5, value=0.1), 11).startswith("newer: ")
    story.signal(signal_event("degraded", "config", "a", 12, value=0.3), 12)
    assert [signal.value for signal in story.world.signals.values()] == [0.3]


def test_recovered_clears_earlier_signals_of_its_source() -> None:
    """Signals of other sources, later ones and those on other targets stay."""
    story = Story(A, B, C)
    story.signal(signal_event("down", "config", "a", 1), 10)
    story.signal(signal_event("degraded", "config", "a", 8), 10)
    story.signal(signal_event("degraded", "config", "a", 1, source="other"), 10)
    story.signal(signal_event("degraded", "zone", "a", 1), 10)
    story.signal(signal_event("recovered", "config", "a", 5), 10)
    left = {(s.source, s.kind, s.target_kind) for s in story.world.signals.values() if s.kind != "recovered"}
    assert left == {("monitor", "degraded", "config"), ("other", "degraded", "config"), ("monitor", "degraded", "zone")}
    assert story.record("a", 10).state == "healthy"


def test_a_signal_may_arrive_after_its_recovered() -> None:
    """The log keeps no order between the processes of a source, so the older signal is refused.

    The `recovered` that is stored for this is not published.
    """
    story = Story(A, B, C)
    before = story.record("a", 10)
    assert story.signal(signal_event("recovered", "config", "a", 5, ttl_seconds=20.0), 10) == ""
    for at in (1, 5):
        told = story.signal(signal_event("down", "config", "a", at), 11)
        assert told == "newer: 'monitor' has raised a newer signal on config 'a'"
    assert story.record("a", 10) == before
    assert story.signal(signal_event("degraded", "config", "b", 1), 11) == "", "another target"
    assert story.signal(signal_event("down", "config", "a", 1, source="other"), 11) == "", "another source"
    assert story.signal(signal_event("down", "config", "a", 6), 11) == "", "it is down again"
    assert tripped(story) == {"a"}
    story.advance_to(906)
    assert {signal.kind for signal in story.world.signals.values()} == {"recovered"}
    told = story.signal(signal_event("down", "config", "a", 4, ttl_seconds=2000.0), 906)
    assert told.startswith("newer: "), "whatever the ttl of the `recovered` itself"
    story.advance_to(5 + TTL_SECONDS_MAX)
    assert story.world.signals == {}


raised_signals = st.lists(
    st.tuples(
        st.sampled_from(["degraded", "down", "recovered", "capacity_hint"]),
        st.integers(0, 5),
        st.sampled_from(["monitor", "other"]),
        st.sampled_from([("config", "a"), ("zone", "a")]),
    ),
    max_size=6,
)


@given(st.data(), raised_signals)
def test_order_of_signals_is_irrelevant(data: st.DataObject, first: list[Any]) -> None:
    """Of signals with the same ttl, only the observation times decide."""
    ends = []
    for order in (first, data.draw(st.permutations(first))):
        story = Story(A, B, C)
        for kind, at, source, target in order:
            value = 5.0 if kind == "capacity_hint" else None
            story.signal(signal_event(kind, target[0], target[1], at, source=source, value=value), 10)
        ends.append((story.world.signals, story.record("a", 10)))
    assert ends[0] == ends[1]


def test_recovered_only_brings_the_probe_forward() -> None:
    """Outcomes decide: the config stays tripped until the probe succeeds."""
    story = Story(A, B)
    story.trip_config(A)
    for permit in range(1, 7):
        at = story.next_probe(CAPACITY)
        story.fold(at, requested(A, "p", story.probe("a", at)), refused(A, worker_id="p", permit=permit))
    at += 60
    assert story.next_probe(CAPACITY) > at + 100
    weight = story.record("a", at).weight
    story.signal(signal_event("recovered", "config", "a", at), at)
    assert (story.record("a", at).weight, tripped(story, at)) == (weight, {"a"})
    story.advance(at)
    assert story.record("a", at).probe_ready


def test_a_source_trips_half_a_pool_at_most() -> None:
    """The limit applies to one signal or many, on any targets; a config that is tripped already counts once."""
    story = Story(*ZONES)
    assert story.signal(signal_event("down", "pool", "linux")).startswith(
        "share: 'monitor' would trip 4 of 4 active launch configs"
    )
    assert story.signal(signal_event("down", "config", "c0")) == ""
    assert story.signal(signal_event("down", "zone", "z0")) == ""
    assert tripped(story) == {"c0", "c2"}
    for target in (("config", "c1"), ("zone", "z1"), ("account", "acc-0"), ("image", "i1")):
        assert story.signal(signal_event("down", *target)).startswith("share: ")
    named = Rules(sources={"other": Source()})
    assert story.signal(signal_event("down", "config", "c1", source="other"), rules=named) == ""
    assert tripped(story) == {"c0", "c1", "c2"}
    story.advance_to(900)
    assert story.signal(signal_event("down", "config", "c1", 900), 900) == "", "its earlier signals have expired"


def test_a_source_has_its_share_of_each_pool() -> None:
    """A signal on a zone reaches half of one pool, and all of another."""
    story = Story(*ZONES, OTHER)
    assert story.signal(signal_event("down", "zone", "z0")).startswith(
        "share: 'monitor' would trip 1 of 1 active launch configs of pool 'other'"
    )


def test_unnamed_sources_have_one_share_together() -> None:
    """Otherwise a monitor that uses a new name for each signal could trip all."""
    story, rules = Story(*ZONES), Rules(sources={"page": Source()})
    for n in (0, 1):
        assert story.signal(signal_event("down", "config", f"c{n}", source=f"s{n}"), rules=rules) == ""
    told = story.signal(signal_event("down", "config", "c2", source="s2"), rules=rules)
    assert told.startswith("share: 's2' would trip 3 of 4 active launch configs")
    assert story.signal(signal_event("down", "config", "c2", source="page"), rules=rules) == "", "a share of its own"
    assert tripped(story) == {"c0", "c1", "c2"}


def test_paused_configs_do_not_raise_a_share() -> None:
    """The share limits both the active configs and all declared ones."""
    story = Story(*ZONES)
    for n in (0, 1):
        story.declare(config(f"c{n}", state="paused", revision=2), 1)
    assert story.signal(signal_event("down", "config", "c2")) == ""
    told = story.signal(signal_event("down", "config", "c3"))
    assert told.startswith("share: 'monitor' would trip 2 of 2 active launch configs")
    assert story.signal(signal_event("down", "config", "c0")) == ""
    assert story.signal(signal_event("down", "config", "c1")).startswith(
        "share: 'monitor' would trip 3 of 4 declared launch configs"
    )


@pytest.mark.parametrize("state", ["archived", "paused"])
def test_a_smaller_pool_has_a_smaller_share(state: str) -> None:
    """The newest signals of the source are dropped; its older ones and those of other sources stay."""
    story, rules = Story(*ZONES), Rules(sources={"other": Source()})
    for n, source in enumerate(("monitor", "other", "somebody")):
        assert story.signal(signal_event("down", "config", f"c{n}", n, source=source), n, rules) == ""
    story.declare(config("c3", state=state, revision=2), 5)
    draft = Draft(story.world)
    ((dropped, reason),) = enforce_shares(draft, "c3", T0 + 5, rules)
    commit(draft)
    assert (dropped.source, dropped.configs) == ("somebody", ("c2",))
    assert reason.startswith(
        "share: by now 'somebody' would trip 2 of 3 active launch configs of pool 'linux'; at most 50%"
    )
    assert tripped(story, 5) == {"c0", "c1"}
    assert enforce_shares(Draft(story.world), "c3", T0 + 5, rules) == []


@pytest.mark.parametrize(
    ("change", "pool", "excess"),
    [
        (("declare", config("c3", pool="other", revision=2)), "linux", "2 of 3"),
        (("forget", "c3"), "linux", "2 of 3"),
        (("declare", config("c1@2", pool="other")), "other", "1 of 1"),
    ],
)
def test_a_share_holds_in_the_pools_of_a_config_before_and_after(
    change: tuple[str, Any], pool: str, excess: str
) -> None:
    """In the draft of the change itself: the pool that it leaves has become smaller, and the one that it joins gets the
    signals on its name."""
    story = Story(*ZONES)
    for n in range(2):
        assert story.signal(signal_event("down", "config", f"c{n}", n), n) == ""
    draft = Draft(story.world)
    apply(draft, (*change, T0 + 5))
    config_id = getattr(change[1], "launch_config_id", change[1])
    assert enforce_shares(draft, config_id, T0 + 5, Rules(sources={"monitor": Source(max_share=1.0)})) == []
    ((dropped, reason),) = enforce_shares(draft, config_id, T0 + 5)
    assert dropped.target_id == "c1"
    assert reason.startswith(f"share: by now 'monitor' would trip {excess} active launch configs of pool '{pool}'")


def test_a_config_tripped_by_a_signal_does_not_probe_for_others() -> None:
    """Such a config would not spend the permit, so another config with the credential gets it at once."""
    story = Story(A, B)
    story.fold(0, launched(A, "busy"))
    assert story.signal(signal_event("down", "config", "a", 1), 1) == ""
    story.trip_config(B, 2, Scope.CREDENTIAL)
    story.advance_to(17)
    assert (story.row("a").ready, story.row("b").ready) == (False, True)
    story = Story(A)
    story.trip_config(A, 0)
    assert story.signal(signal_event("down", "config", "a", 1), 1, Rules(unnamed=Source(max_share=1.0))) == ""
    story.advance_to(100)
    assert not story.row("a").ready
    story.signal(signal_event("recovered", "config", "a", 101), 101)
    story.advance_to(101)
    assert story.record("a", 101).probe_ready


def test_repeated_recovered_costs_little() -> None:
    """One probe comes at once; after that at most half the delay is saved, and the delay grows with each failure."""
    failed = {}
    for flood in (False, True):
        story, count = Story(*ZONES), 0
        for c in ZONES:
            story.trip_config(c)
        for at in range(1, 1800):
            for c in ZONES if flood else ():
                story.signal(signal_event("recovered", "config", c.launch_config_id, at), at)
            story.advance_to(at)
            for c in ZONES:
                row = story.row(c.launch_config_id)
                if row.ready and not row.spent:
                    count += 1
                    story.fold(at, requested(c, "p", row.permit), refused(c, worker_id="p", permit=row.permit))
        failed[flood] = count
    assert failed[True] <= 1.2 * failed[False]


def test_a_source_has_its_configured_share() -> None:
    for share, problem in ((1.0, ""), (0.0, "share: ")):
        story = Story(*ZONES)
        rules = Rules(sources={"monitor": Source(max_share=share)})
        assert story.signal(signal_event("down", "pool", "linux"), rules=rules).startswith(problem)
        assert tripped(story) == ({"c0", "c1", "c2", "c3"} if share else set())


def test_names_cannot_run_into_each_other() -> None:
    """A signal never replaces one of another source, whatever characters the names contain."""
    story = Story(config("a", zone='x","zone","x'), config("b", zone="x"))
    first: dict[str, Any] = {"source": 'm","degraded","zone'}
    story.signal(signal_event("degraded", "zone", "x", **first))
    story.signal(signal_event("degraded", "zone", 'x","zone","x', source="m"))
    assert len(story.world.signals) == 2


def test_signals_survive_a_restart() -> None:
    story = Story(*ZONES)
    story.signal(signal_event("down", "zone", "z0", ttl_seconds=60.0))
    story.trip_config(ZONES[1], 0, Scope.CAPACITY)
    again = reloaded(story.world)
    assert again.signal_keys == {id_: keys for id_, keys in story.world.signal_keys.items() if keys}
    story.world = again
    assert tripped(story) == {"c0", "c1", "c2"}
    assert again.due() is not None
    story.advance_to(60)
    assert (again.signals, tripped(story, 60)) == ({}, {"c1"})
    assert T0 + 60 not in {when for when, kind, _ in again.timers if kind == "signal"}
