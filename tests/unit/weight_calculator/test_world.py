"""Laws of the whole: what the state follows from, and what cannot move it."""

from random import Random
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_common.events.launch_config import LaunchConfigState
from slipway_common.events.worker import Scope
from slipway_weight_calculator.domain.evidence import remaining
from slipway_weight_calculator.domain.policy import PROFILES
from slipway_weight_calculator.domain.record import record
from slipway_weight_calculator.domain.rows import STAGES
from slipway_weight_calculator.domain.world import Draft, World
from tests.worlds import (
    CREDENTIAL,
    IMAGE,
    POLICY,
    QUOTA,
    T0,
    A,
    B,
    C,
    Fleet,
    Story,
    Told,
    claimed,
    config,
    gates_of,
    launched,
    lost,
    refused,
    registered,
    reloaded,
    requested,
    said,
    stored,
    tell,
)

# Two pools of one account, one of another with the same image, one that shares nothing.
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
    """A fleet's doings, with declarations and opinions between them."""
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
            story.signal(said(kind, *target, fleet.now, ttl_seconds=rng.choice([30.0, 900.0]), value=1.0), fleet.now)
    return fleet


def told(world: World, log: list[Told]) -> World:
    for each in log:
        draft = Draft(world)
        tell(draft, each)
        draft.commit()
    return world


def seen(world: World, now: float) -> dict[str, float]:
    """What places have seen of successes and of failures, at one instant."""
    found: dict[str, float] = {}
    for key, (successes, placed, at) in world.sums.items():
        share = remaining(now - at, PROFILES[key.split("/")[0]])
        found |= {f"{key} well": successes * share, f"{key} ill": placed * share}
    return {key: mass for key, mass in found.items() if abs(mass) > 1e-9}


@given(seeds)
@few
def test_the_same_told_gives_the_same_bytes(seed: int) -> None:
    """Event by event or many at once: where a commit ends is not part of the state."""
    fleet = played(seed)
    log, batched = fleet.story.log, World()
    rng, n = Random(seed), 0
    while n < len(log):
        draft, size = Draft(batched), rng.randint(1, 20)
        for each in log[n : n + size]:
            tell(draft, each)
        draft.commit()
        n += size
    assert stored(told(World(), log)) == stored(fleet.story.world)
    assert stored(batched) == stored(fleet.story.world)


@given(seeds)
@few
def test_a_crash_anywhere_changes_nothing(seed: int) -> None:
    """A draft that is not committed leaves no trace, and a world that was stored and read again goes on as the one that
    never ended: everything that time alone may do is found again."""
    fleet = played(seed)
    rng, world, log = Random(seed), World(), fleet.story.log
    for n in range(len(log)):
        if rng.random() < 0.3:
            before, lost_draft = stored(world), Draft(world)
            for each in log[n : n + rng.randint(1, 9)]:
                tell(lost_draft, each)
            lost_draft.discard()
            assert stored(world) == before
            if rng.random() < 0.5:
                world = reloaded(world)
        told(world, log[n : n + 1])
    assert stored(world) == stored(fleet.story.world)
    late = fleet.now + rng.choice([1, 600, 9 * 86_400])
    for one in (fleet.story.world, world, again := reloaded(world)):
        told(one, [("advance", None, T0 + late)])
    assert stored(world) == stored(fleet.story.world) == stored(again)


@given(seeds)
@few
def test_what_is_due_is_known_after_a_restart(seed: int) -> None:
    """Woken only at the instants that they name themselves, a world and its copy from storage do the same. One may wake
    in vain where the other sleeps."""
    fleet = played(seed)
    worlds = (fleet.story.world, reloaded(fleet.story.world))
    now = T0 + fleet.now
    for _ in range(60):
        now = max(now, min((due for world in worlds if (due := world.due()) is not None), default=now))
        for world in worlds:
            if (due := world.due()) is not None and due <= now:
                told(world, [("advance", None, now)])
        assert stored(worlds[0]) == stored(worlds[1])


@given(seeds)
@few
def test_sums_are_what_the_rows_say(seed: int) -> None:
    """What places have seen is kept as it changes, and could be added up from the rows at any time."""
    world = played(seed).story.world
    again = reloaded(world)
    now = T0 + 10_000
    for config_ in world.configs.values():
        kept, added = (record(Draft(each), config_, now) for each in (world, again))
        for name in STAGES:
            assert kept.stages[name].probability == pytest.approx(added.stages[name].probability, abs=1e-9)
    assert seen(world, now) == pytest.approx(seen(again, now), abs=1e-6)


@given(seeds)
@few
def test_bounds_of_any_history(seed: int) -> None:
    """Weights are positive, windows within their bounds, masses within the cap; a gate that is closed has a probe or an
    instant for the next one, never both."""
    fleet = played(seed)
    world, most = fleet.story.world, {"launch": 64.0, "boot": 1000.0, "claim": 1000.0}
    least = {"launch": POLICY.launch_window_min, "boot": POLICY.boot_window_min, "claim": POLICY.claim_window_min}
    for key, row in world.rows.items():
        for name, gate in gates_of(row):
            stage = getattr(row, name)
            assert least[name] <= stage.window <= most[name]
            assert 0 <= stage.successes + stage.failures <= POLICY.mass_cap + 1e-9
            assert 0 <= stage.placed <= stage.failures + 1e-9
            assert stage.late == sum(
                boot.late and key in (boot.image, boot.config_id) for boot in world.boots.values()
            ) * (name == "boot")
            assert bool(gate.probe) + bool(gate.next_probe_at) == gate.closed
            assert gate.backoff_seconds <= 1800
    for config_ in world.configs.values():
        now = record(Draft(world), config_, T0 + fleet.now)
        assert now.weight > 0
        assert all(0 < stage.probability < 1 for stage in now.stages.values())


class Lateness(Story):
    """Notices each worker whose boot turned late, also of one that is heard of at the next moment."""

    def __init__(self, *configs: LaunchConfigState) -> None:
        self.late: set[str] = set()
        super().__init__(*configs)

    def advance(self, at: float) -> None:
        super().advance(at)
        self.look()

    def look(self) -> None:
        self.late |= {worker_id for worker_id, boot in self.world.boots.items() if boot.late}


@given(seeds)
@few
def test_one_probe_at_a_time_for_what_is_shared(seed: int) -> None:
    """By the fleet's own book: of the workers that spent a permit while a shared gate was closed, at most one has still
    to answer it. A boot that was late has answered."""
    story = Lateness(*CONFIGS)
    fleet, closures = Fleet(story, CONFIGS, Random(seed)), {}
    unanswered = {"launch": {"requested"}, "boot": {"requested", "hasty", "starting"}}
    unanswered["claim"] = {*unanswered["boot"], "running"}
    for _ in range(80):
        fleet.step()
        for worker_id, (_, config_id, permit) in fleet.workers.items():
            if permit is not None and worker_id not in closures:
                closing = Draft(story.world).closing(story.world.configs[config_id])
                closures[worker_id] = {(key, name, gate.closed_at) for key, name, gate in closing if "/" in key}
        story.look()
        probing = [
            closure
            for worker_id, (state, _, _) in fleet.workers.items()
            for closure in closures.get(worker_id, ())
            if state in unanswered[closure[1]] and worker_id not in story.late
        ]
        assert len(probing) == len(set(probing))


@given(seeds)
@few
def test_a_permit_is_settled_once(seed: int) -> None:
    """No gate has ever waited twice for the same permit, and numbers only grow."""
    story = Story(*CONFIGS)
    fleet, held, settled = Fleet(story, CONFIGS, Random(seed)), dict[Any, str](), set[Any]()
    permits = dict.fromkeys(story.world.configs, 0)
    for _ in range(80):
        fleet.step()
        for key, row in story.world.rows.items():
            for name, gate in gates_of(row):
                if gate.probe != (before := held.get((key, name), "")):
                    settled.add((key, name, before))
                    assert not gate.probe or (key, name, gate.probe) not in settled
                held[key, name] = gate.probe
            if key in permits:
                assert permits[key] <= row.permit <= permits[key] + 1
                permits[key] = row.permit


def test_a_failed_outcome_moves_what_is_in_its_scope_and_nothing_else() -> None:
    """For every scope: which rows change, of all there are; and configs that share nothing see the same health."""
    d, far = config("d", pool="other", instance_type="c5.large"), CONFIGS[-1]
    kin = config("e", pool="other", account="sim-b", image_revision="linux-1")
    moved = {
        Scope.CONFIG: {"a"},
        Scope.CAPACITY: {"a"},
        Scope.QUOTA: {QUOTA},
        Scope.CREDENTIAL: {CREDENTIAL},
        Scope.IMAGE: {IMAGE},
        Scope.LIMITER: set(),
        Scope.NOTHING: set(),
        Scope.UNKNOWN: set(),
    }
    closed = {
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
        changed = {key.removeprefix("row ") for key in after if after[key] != before[key]}
        assert changed == keys | {"a"}, scope
        assert world.rows["a"].launch.folded == 8
        if "a" not in keys:  # its number alone: that frees the place in the window
            untouched = msgspec.structs.replace(world.rows["a"].launch, folded=3)
            assert msgspec.json.encode(untouched) in before["row a"]
        now_closed = {id_ for id_ in world.configs if story.record(id_, 9).state == "closed"}
        assert now_closed == closed.get(scope, set()), scope


@given(seeds, seeds)
@few
def test_order_of_independent_events_is_irrelevant(seed: int, order: int) -> None:
    """Two fleets that share neither pool nor place nor account nor image nor quota: however their events are mixed, all
    ends in the same bytes."""
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
    end: Told = ("advance", None, T0 + 10**5)
    assert stored(told(World(), [*mixed, end])) == stored(told(World(), [*logs[0], *logs[1], end]))


@given(seeds)
@few
def test_configs_that_share_nothing_are_untouched(seed: int) -> None:
    """Whatever happens to one fleet, a config without pool, zone, account, image or quota in common keeps its bytes and
    its record."""
    far = config("z", pool="far", account="far", region="far-1", image_revision="far-1")
    story = Story(far)
    story.fold(0, launched(far), registered(far), claimed(far), refused(far))
    alone, before = story.record("z", 10**5), stored(story.world)
    log = [each for each in played(seed, 40, (A, B, C)).story.log if each[0] != "signal"]
    told(story.world, log)
    assert stored(story.world)["row z"] == before["row z"]
    assert story.record("z", 10**5) == alone


def test_what_is_archived_is_forgotten_in_the_end() -> None:
    """Its last workers have ended by then; what others still share stays, what nobody shares goes too."""
    mac = config("m", pool="mac", image_revision="mac-1")
    story = Story(A, mac)
    for c, others in ((A, "1"), (mac, "2")):
        story.fold(1, launched(c, others), registered(c, others), launched(c, others * 2), refused(c, Scope.CREDENTIAL))
    story.declare(msgspec.structs.replace(mac, state="archived", revision=2), 10)
    story.advance_to(8 * 86_400)
    assert "m" in story.world.rows
    story.advance_to(8 * 86_400 + 10)
    assert set(story.world.configs) == {"a"}
    assert set(story.world.rows) == {"a", IMAGE, CREDENTIAL}
    assert set(story.world.boots) == {"11"}


def test_an_outcome_introduces_its_config_until_it_is_declared() -> None:
    """Order is promised per topic only. It counts for nothing in its pool: it may be one that is long archived."""
    story = Story(A)
    story.fold(0, refused(B))
    assert not story.world.configs["b"].active
    story.declare(B, 300)
    assert story.world.configs["b"].active
    assert story.row("b").launch.folded == 1
    story.fold(301, lost(C))
    story.advance_to(301 + 8 * 86_400)
    assert set(story.world.configs) == {"a", "b"}


def test_a_config_that_is_declared_elsewhere_takes_its_evidence_along() -> None:
    """Other pool, other image: the sums of its places, and who shares what, follow; and a probe that it held of what it
    shares no more is somebody else's."""
    story = Story(A, B)
    story.fold(0, launched(B, "y"), launched(A, "x"), registered(A, "x"))
    story.fold(1, *(refused(A, Scope.IMAGE, f"w-{n}") for n in range(5)), launched(A, "z"))
    story.fold(20, requested(A, "p", story.probe("a", 20)))
    assert story.gate(IMAGE).probe == "a#1"
    story.declare(config("a", pool="mac", image_revision="mac-1", revision=2), 41)
    story.advance(41)
    assert story.gate(IMAGE).probe == "b#1"
    again = reloaded(story.world)
    assert again.members == story.world.members
    assert seen(story.world, T0 + 41) == pytest.approx(seen(again, T0 + 41), abs=1e-9)
    story.declare(config("b", image_revision="mac-1", revision=2), 43)
    assert IMAGE not in story.world.rows, "nobody has it any more"
