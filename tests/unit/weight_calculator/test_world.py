"""Properties of the whole state: determinism, restarts, bounds and independence."""

from random import Random
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_api.events.launch_config import LaunchConfigState
from slipway_api.events.scopes import Key, config_key, image_key
from slipway_api.events.worker import Scope
from slipway_api.percent import decoded
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.evidence import remaining
from slipway_weight_calculator.domain.policy import PROFILES
from slipway_weight_calculator.domain.record import record
from slipway_weight_calculator.domain.rows import CONFIG, STAGES
from slipway_weight_calculator.domain.trips import Probe
from slipway_weight_calculator.domain.world import World, abandon_probe, commit, count_folded, discard
from tests.support.worlds import (
    CAPACITY,
    CREDENTIAL,
    IMAGE,
    POLICY,
    QUOTA,
    T0,
    A,
    B,
    C,
    Fleet,
    Step,
    Story,
    apply,
    claimed,
    config,
    launched,
    lost,
    refused,
    registered,
    reloaded,
    requested,
    signal_event,
    stored,
    trips_of,
)

# Two pools of one account, one of another with the same image, one that shares nothing.
A_KEY: Final = config_key("a")
CONFIGS: Final = (
    A,
    B,
    config("m", pool="mac", instance_type="mac1.metal", image_revision="mac-1", claim_evidence="none"),
    config("o", pool="other", account="sim-b", zone="a", profile="spot"),
    config("z", pool="far", account="far", region="far-1", zone="far", image_revision="far-1", profile="bare-metal"),
)
seeds = st.integers(0, 2**32)
few = settings(max_examples=30, deadline=None)


def played(seed: int, steps: int = 60, configs: tuple[LaunchConfigState, ...] = CONFIGS, name: str = "w") -> Fleet:
    """A fleet after some steps, with declarations and signals between them."""
    rng, story = Random(seed), Story(*configs)
    fleet = Fleet(story, configs, rng, name)
    for _ in range(steps):
        fleet.step()
        if rng.random() < 0.04:
            known = fleet.configs[rng.choice(sorted(fleet.configs))]
            state = rng.choice(["active", "active", "paused", "draining", "archived"])
            fleet.declare(msgspec.structs.replace(known, state=state, base_weight=rng.uniform(0.5, 2)))
        if rng.random() < 0.04:
            kind = rng.choice(["down", "degraded", "recovered", "capacity_hint"])
            target = rng.choice([("config", "a"), ("zone", "a"), ("account", "sim-b"), ("pool", "linux")])
            story.signal(
                signal_event(kind, *target, fleet.now, ttl_seconds=rng.choice([30.0, 900.0]), value=1.0), fleet.now
            )
    return fleet


def applied(world: World, log: list[Step]) -> World:
    for each in log:
        draft = Draft(world)
        apply(draft, each)
        commit(draft)
    return world


def seen(world: World, now: float) -> dict[str, float]:
    """Sums of successes and failures by location, at one time."""
    found: dict[str, float] = {}
    for key, (successes, failures, at) in world.sums.items():
        share = remaining(now - at, PROFILES[decoded(key)[0]])
        found |= {f"{key} successes": successes * share, f"{key} failures": failures * share}
    return {key: mass for key, mass in found.items() if abs(mass) > 1e-9}


@given(seeds)
@few
def test_same_log_gives_same_bytes(seed: int) -> None:
    """The state does not depend on how the events are divided into commits."""
    fleet = played(seed)
    log, batched = fleet.story.log, World()
    rng, n = Random(seed), 0
    while n < len(log):
        draft, size = Draft(batched), rng.randint(1, 20)
        for each in log[n : n + size]:
            apply(draft, each)
        commit(draft)
        n += size
    assert stored(applied(World(), log)) == stored(fleet.story.world)
    assert stored(batched) == stored(fleet.story.world)


@given(seeds)
@few
def test_a_crash_anywhere_changes_nothing(seed: int) -> None:
    """A discarded draft leaves no trace, and a world that was stored and loaded continues with all its timers."""
    fleet = played(seed)
    rng, world, log = Random(seed), World(), fleet.story.log
    for n in range(len(log)):
        if rng.random() < 0.3:
            before, lost_draft = stored(world), Draft(world)
            for each in log[n : n + rng.randint(1, 9)]:
                apply(lost_draft, each)
            discard(lost_draft)
            assert stored(world) == before
            if rng.random() < 0.5:
                world = reloaded(world)
        applied(world, log[n : n + 1])
    assert stored(world) == stored(fleet.story.world)
    late = fleet.now + rng.choice([1, 600, 9 * 86_400])
    for one in (fleet.story.world, world, again := reloaded(world)):
        applied(one, [("advance", None, T0 + late)])
    assert stored(world) == stored(fleet.story.world) == stored(again)


@given(seeds)
@few
def test_timers_are_known_after_a_restart(seed: int) -> None:
    """A world and its copy from storage do the same when advanced only at their due times.

    One of them may have an additional timer without effect.
    """
    fleet = played(seed)
    worlds = (fleet.story.world, reloaded(fleet.story.world))
    now = T0 + fleet.now
    for _ in range(60):
        now = max(now, min((due for world in worlds if (due := world.due()) is not None), default=now))
        for world in worlds:
            if (due := world.due()) is not None and due <= now:
                applied(world, [("advance", None, now)])
        assert stored(worlds[0]) == stored(worlds[1])


@given(seeds)
@few
def test_sums_match_the_rows(seed: int) -> None:
    """The incrementally maintained sums equal those computed from the rows."""
    world = played(seed).story.world
    again = reloaded(world)
    now = T0 + 10_000
    for config_ in world.configs.values():
        kept, added = (record(Draft(each), config_, now) for each in (world, again))
        for name in STAGES:
            assert kept.stages[name].probability == pytest.approx(added.stages[name].probability, abs=1e-9)
    assert seen(world, now) == pytest.approx(seen(again, now), abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_a_row_that_changes_has_a_newer_version(seed: int) -> None:
    """Consumers take no row that is as old as the one that they know."""
    world = World()
    for step in played(seed).story.log:
        before = dict(world.rows)
        applied(world, [step])
        for key, row in world.rows.items():
            was = before.get(key, row)
            assert was is row or was == row or was.version < row.version, (step, key)


@given(seeds)
@few
def test_bounds_of_any_history(seed: int) -> None:
    """Weights are positive, windows within their bounds, masses within the cap.

    A tripped stage has either a probe or a time for the next one.
    """
    fleet = played(seed)
    world, most = fleet.story.world, {"launch": 64.0, "boot": 1000.0, "claim": 1000.0}
    least = {"launch": POLICY.launch_window_min, "boot": POLICY.boot_window_min, "claim": POLICY.claim_window_min}
    for key, row in world.rows.items():
        for name, trip in trips_of(row):
            stage = getattr(row, name)
            assert least[name] <= stage.window <= most[name]
            assert 0 <= stage.successes + stage.failures <= POLICY.mass_cap + 1e-9
            assert 0 <= stage.place_failures <= stage.failures + 1e-9
            assert stage.late == sum(
                boot.late and key in (boot.image, config_key(boot.config_id)) for boot in world.boots.values()
            ) * (name == "boot")
            assert bool(trip.probe) + bool(trip.next_probe_at) == trip.tripped
            assert trip.backoff_seconds <= max(policy.probe_max_seconds for policy in PROFILES.values())
    for config_ in world.configs.values():
        now = record(Draft(world), config_, T0 + fleet.now)
        assert now.weight > 0
        assert all(0 < stage.probability < 1 for stage in now.stages.values())


class Lateness(Story):
    """Records each worker whose boot was late, even for a moment."""

    def __init__(self, *configs: LaunchConfigState) -> None:
        self.late: set[str] = set()
        super().__init__(*configs)

    def advance(self, at: float) -> None:
        super().advance(at)
        self.note()

    def note(self) -> None:
        self.late |= {worker_id for worker_id, boot in self.world.boots.items() if boot.late}


@given(seeds)
@few
def test_one_probe_at_a_time_per_shared_key(seed: int) -> None:
    """Of the workers that spent a permit of a shared trip, at most one is unanswered. A late boot has answered."""
    story = Lateness(*CONFIGS)
    fleet, trips = Fleet(story, CONFIGS, Random(seed)), {}
    unanswered = {"launch": {"requested"}, "boot": {"requested", "early", "starting"}}
    unanswered["claim"] = {*unanswered["boot"], "running"}
    for _ in range(80):
        fleet.step()
        for worker_id, (_, config_id, permit) in fleet.workers.items():
            if permit is not None and worker_id not in trips:
                active = Draft(story.world).trips_on(story.world.configs[config_id])
                trips[worker_id] = {(key, name, trip.tripped_at) for key, name, trip in active if key.kind != CONFIG}
        story.note()
        probing = [
            trip
            for worker_id, (state, _, _) in fleet.workers.items()
            for trip in trips.get(worker_id, ())
            if state in unanswered[trip[1]] and worker_id not in story.late
        ]
        assert len(probing) == len(set(probing))


@given(seeds)
@few
def test_a_permit_is_resolved_once(seed: int) -> None:
    """No trip waits twice for the same permit, and permit numbers only grow."""
    story = Story(*CONFIGS)
    fleet, probes, resolved = Fleet(story, CONFIGS, Random(seed)), dict[Any, Probe | None](), set[Any]()
    permits = dict.fromkeys(story.world.configs, 0)
    for _ in range(80):
        fleet.step()
        for key, row in story.world.rows.items():
            for name, trip in trips_of(row):
                if trip.probe != (before := probes.get((key, name))):
                    resolved.add((key, name, before))
                    assert not trip.probe or (key, name, trip.probe) not in resolved
                probes[key, name] = trip.probe
            if key.id in permits and key.kind == CONFIG:
                assert permits[key.id] <= row.permit <= permits[key.id] + 1
                permits[key.id] = row.permit


def test_a_failed_outcome_moves_what_is_in_its_scope_and_nothing_else() -> None:
    """For every scope: the rows that change, of all rows, and the configs that trip."""
    d, far = config("d", pool="other", instance_type="c5.large"), CONFIGS[-1]
    kin = config("e", pool="other", account="sim-b", image_revision="linux-1")
    moved = {
        Scope.CONFIG: {A_KEY},
        Scope.CAPACITY: {CAPACITY, A_KEY},  # the config only notes it, for its siblings
        Scope.QUOTA: {QUOTA},
        Scope.CREDENTIAL: {CREDENTIAL},
        Scope.IMAGE: {IMAGE},
        Scope.LIMITER: set(),
        Scope.NOTHING: set(),
        Scope.UNKNOWN: set(),
    }
    tripped = {
        Scope.CONFIG: {"a"},
        Scope.CAPACITY: {"a"},
        Scope.QUOTA: {"a", "b"},
        Scope.CREDENTIAL: {"a", "b", "d"},
        Scope.IMAGE: {"a", "b", "d", "e"},
    }
    assert set(moved) == set(Scope)
    for scope, keys in moved.items():
        story = Story(A, B, d, kin, far)
        for c in (A, B, d, kin, far):
            story.fold(0, *(refused(c, each) for each in (Scope.QUOTA, Scope.CREDENTIAL, Scope.IMAGE)))
            story.fold(1, launched(c, c.launch_config_id))
        before, world = stored(story.world), story.world
        for n in range(5):
            story.fold(2 + n, refused(A, scope, f"w-{n}"))
        after = stored(world)
        changed = {Key.of(key.removeprefix("row ")) for key in after if after[key] != before.get(key)}
        assert changed == keys | {A_KEY}, scope
        assert world.rows[A_KEY].launch.folded == 8
        if A_KEY not in keys:  # only the folded count, which frees the place in the window
            untouched = msgspec.structs.replace(world.rows[A_KEY].launch, folded=3)
            assert msgspec.json.encode(untouched) in before["row config/a"]
        now_tripped = {id_ for id_ in world.configs if story.record(id_, 9).state != "healthy"}
        assert now_tripped == tripped.get(scope, set()), scope


@given(seeds, seeds)
@few
def test_order_of_independent_events_is_irrelevant(seed: int, order: int) -> None:
    """The events of two fleets that share nothing can be interleaved in any way with the same result."""
    near = (A, B)
    far = tuple(config(id_, pool="far", account="far", region="far-1", image_revision="far-1") for id_ in ("y", "z"))
    logs = [
        [each for each in played(seed, 40, both, name).story.log if each[0] in ("declare", "fold")]
        for both, name in ((near, "near"), (far, "far"))
    ]
    rng, mixed = Random(order), []
    rest = [list(log) for log in logs]
    while any(rest):
        log = rng.choice([log for log in rest if log])
        mixed.append(log.pop(0))
    end: Step = ("advance", None, T0 + 10**5)
    assert stored(applied(World(), [*mixed, end])) == stored(applied(World(), [*logs[0], *logs[1], end]))


@given(seeds)
@few
def test_configs_that_share_nothing_are_untouched(seed: int) -> None:
    """A config without a pool, zone, account, image or quota in common keeps its bytes and its record."""
    far = config("z", pool="far", account="far", region="far-1", image_revision="far-1")
    story = Story(far)
    story.fold(0, launched(far), registered(far), claimed(far), refused(far))
    alone, before = story.record("z", 10**5), stored(story.world)
    log = [each for each in played(seed, 40, (A, B, C)).story.log if each[0] != "signal"]
    applied(story.world, log)
    assert stored(story.world)["row config/z"] == before["row config/z"]
    assert story.record("z", 10**5) == alone


def test_a_config_is_deleted_at_its_tombstone() -> None:
    """Rows that other configs share stay, others are deleted too. Until then an archived config keeps its health."""
    mac = config("m", pool="mac", image_revision="mac-1")
    story = Story(A, mac)
    for c, others in ((A, "1"), (mac, "2")):
        story.fold(1, launched(c, others), registered(c, others), launched(c, others * 2), refused(c, Scope.CREDENTIAL))
    story.declare(msgspec.structs.replace(mac, state="archived", revision=2), 10)
    story.advance_to(29 * 86_400)
    assert {config_key("m"), image_key("mac-1")} <= set(story.world.rows)
    story.forget("m", 30 * 86_400)
    assert set(story.world.configs) == {"a"}
    assert set(story.world.rows) == {A_KEY, IMAGE, CREDENTIAL}
    assert set(story.world.boots) == {"11"}


def test_an_outcome_introduces_its_config_until_it_is_declared() -> None:
    """Order is guaranteed per topic only. The config is not active, because it may be archived."""
    story = Story(A)
    story.fold(0, refused(B))
    assert not story.world.configs["b"].active
    story.declare(B, 300)
    assert story.world.configs["b"].active
    assert story.row("b").launch.folded == 1
    story.fold(301, lost(C))
    story.advance_to(301 + 8 * 86_400)
    assert set(story.world.configs) == {"a", "b"}


def test_a_moved_config_keeps_its_evidence() -> None:
    """After a change of pool and image, sums and memberships follow; probes of keys no longer shared are reissued."""
    story = Story(A, B)
    story.fold(0, launched(B, "y"), launched(A, "x"), registered(A, "x"))
    story.fold(1, *(refused(A, Scope.IMAGE, f"w-{n}") for n in range(5)), launched(A, "z"))
    story.fold(20, requested(A, "p", story.probe("a", 20)))
    assert story.trip(IMAGE).probe == Probe("a", 1)
    story.declare(config("a", pool="mac", image_revision="mac-1", revision=2), 41)
    story.advance(41)
    assert story.trip(IMAGE).probe == Probe("b", 1)
    again = reloaded(story.world)
    assert again.members == story.world.members
    assert seen(story.world, T0 + 41) == pytest.approx(seen(again, T0 + 41), abs=1e-9)
    story.declare(config("b", image_revision="mac-1", revision=2), 43)
    assert IMAGE not in story.world.rows, "no config uses it any more"


def test_a_probe_without_an_outcome_is_abandoned() -> None:
    """Only the one with that permit; the next one comes soon."""
    story = Story(A)
    story.trip_config(A)
    permit = story.probe("a", 20)
    for number, waits in ((permit + 1, True), (permit, False)):
        draft = Draft(story.world)
        abandon_probe(draft, "a", number, T0 + 30)
        commit(draft)
        assert (story.trip(CAPACITY).probe is not None) is waits
    assert T0 + 30 < story.trip(CAPACITY).next_probe_at <= T0 + 45


def test_failures_that_were_not_folded_count_as_seen() -> None:
    story = Story(A)
    for by, folded in ((1, 1), (2, 3), (-1, 2)):
        draft = Draft(story.world)
        count_folded(draft, "a", "boot", by)
        count_folded(draft, "unknown", "boot", by)
        commit(draft)
        assert (story.row("a").boot.folded, story.row("a").launch.folded) == (folded, 0)


def test_nothing_is_left_of_a_signal_that_has_expired() -> None:
    story = Story(A, B, C)
    for at, ttl in ((0, 60.0), (10, 80.0)):
        assert story.signal(signal_event("down", "config", "a", at, ttl_seconds=ttl), at) == ""
    story.advance_to(89)
    assert [*story.world.signal_keys] == ["a"]
    story.advance_to(90)
    assert (story.world.signals, story.world.signal_keys) == ({}, {})
