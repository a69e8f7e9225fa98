"""Rows of images while their configs take other ones: what moves them, and what they say of boots in progress."""

from collections.abc import Iterator
from random import Random
from typing import Final

import msgspec
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slipway_api.events.scopes import Key, image_key
from slipway_api.events.worker import Scope, Stage
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.policy import PROFILES
from slipway_weight_calculator.domain.rows import CONFIG, Row
from slipway_weight_calculator.domain.windows import size
from slipway_weight_calculator.domain.world import World, commit
from tests.simulation.weights_fleet import CHANGES, ImageStory, RollOutFleet
from tests.simulation.weights_images import TYPES, Change, Commit, Log, unexplained
from tests.support.worlds import (
    POLICY,
    Step,
    Story,
    apply,
    config,
    fails,
    known_boots,
    launched,
    registered,
    requested,
    stopping,
)

CONFIGS: Final = tuple(config(f"{name}@0", image_revision="linux-2") for name in "abc")
FEW: Final = settings(max_examples=30, deadline=None)


def played(seed: int, changes: tuple[str, ...] = CHANGES) -> list[Step]:
    """Steps of a fleet with roll-outs, in some of which workers run an image that their config does not declare."""
    rng = Random(seed)
    story = ImageStory(rng, *CONFIGS)
    fleet = RollOutFleet(story, CONFIGS, rng)
    for _ in range(80):
        fleet.step()
        if rng.random() < 0.15:
            fleet.change(changes)
    return story.log


def images(world: World) -> dict[str, Row]:
    return {key.id: row for key, row in world.rows.items() if key.kind == "image"}


def moves(log: list[Step]) -> Iterator[tuple[Step, Change, Commit]]:
    """Changes of images by steps that are commits of their own, each with what its event says."""
    world, texts = World(), Log()
    for step in log:
        transition, event, _ = step
        before, known = images(world), Commit(texts.booting if transition == "advance" else {})
        if transition == "fold":
            # An outcome may end a boot of the image that its event names; of others it moves nothing at all.
            known = Commit({event.worker_id: event.image_revision})
            texts.take_event(known, event.type.removeprefix(TYPES), msgspec.to_builtins(event))
        known.declares = transition == "declare"
        draft = Draft(world)
        apply(draft, step)
        commit(draft)
        after = images(world)
        for image in sorted(before.keys() | after.keys()):
            if before.get(image) != after.get(image):
                yield step, (image, before.get(image), after.get(image)), known


@given(st.integers(0, 2**32))
@FEW
def test_event_moves_only_the_image_that_it_names(seed: int) -> None:
    """An outcome moves the image of its worker, time those with boots in progress, a declaration none."""
    for step, change, known in moves(played(seed)):
        assert [*unexplained(change, known)] == [], step


@example(2200)  # slow boots hang over the end of an outage
@given(st.integers(0, 2**32))
@FEW
def test_rows_count_the_slow_and_late_boots_in_progress(seed: int) -> None:
    """Nothing is left of a slow boot that has ended, those that were slow in an outage that has ended are hung, and
    each boot of an image with known ones will be judged."""
    world = World()
    for step in played(seed, tuple(kind for kind in CHANGES if kind != "correct")):
        draft = Draft(world)
        apply(draft, step)
        commit(draft)
        boots, timers = world.boots, {*world.timers}
        for key, row in world.rows.items():
            if key.kind not in (CONFIG, "image"):
                continue
            mine = [boot for boot in boots.values() if key in (boot.image, Key(CONFIG, boot.config_id))]
            counted, place = row.boot.boots, int(key.kind == CONFIG)
            slow_since = [boot.slow[place] for boot in mine if boot.slow is not None]
            assert (counted.slow, counted.hung, row.boot.late) == (
                sum(outages == counted.outages for outages in slow_since),
                sum(outages < counted.outages for outages in slow_since),
                sum(b.late for b in mine),
            ), key
            if row.boot.boots.good or row.boot.boots.bad:
                assert row.boot.window == size(row.boot.boots, POLICY), key
        for worker_id, boot in boots.items():
            image = world.rows.get(boot.image)
            known = len(image.boots) if image is not None else 0
            judged = known >= POLICY.late_samples or (known and boot.slow is None)
            if judged and not (boot.registered or boot.late):
                assert (boot.judged_at, "boot", worker_id) in timers, "no timer judges it"


def test_late_boot_belongs_to_the_image_that_it_was_launched_with() -> None:
    """Its config declares another image meanwhile; being late and registering after all move the image before only."""
    story = Story(*CONFIGS)
    story.fold(0, *known_boots(CONFIGS[0]), launched(CONFIGS[0]))
    story.declare(replace(CONFIGS[0], image_revision="linux-3", revision=2), 10)
    other = replace(CONFIGS[0], image_revision="linux-3")
    story.fold(20, launched(other, "x"), registered(other, "x", seconds=9.0))
    new = story.row(image_key("linux-3"))
    healthy = story.row(image_key("linux-2")).boot
    story.advance_to(1000)
    late = story.row(image_key("linux-2")).boot
    assert (late.boots.slow, late.late, late.failed) == (1, 1, healthy.failed + 1)
    assert late.window < healthy.window
    story.fold(1001, registered(CONFIGS[0], seconds=1001.0))
    ended = story.row(image_key("linux-2")).boot
    assert (ended.boots.slow, ended.late, ended.failed) == (0, 0, healthy.failed)
    assert ended.window > healthy.window, "one more success, and no failure"
    assert story.row(image_key("linux-3")) == new


def test_probe_that_ran_another_image_answers_nothing_for_the_declared_one() -> None:
    """The tripped image is probed again later; the row of the config itself has its answer."""
    a = CONFIGS[0]
    story = Story(a)
    story.fold(0, *(stopping(a, fails(Scope.IMAGE, Stage.BOOT), f"w{n}") for n in range(5)))
    image = image_key("linux-2")
    before = story.trip(image, "boot")
    assert before.tripped
    assert story.trip(a.launch_config_id, "boot").tripped
    permit = story.probe(a.launch_config_id, 60)
    other = replace(a, image_revision="linux-9")
    story.fold(61, requested(other, "p", permit), launched(other, "p", permit), registered(other, "p", permit))
    assert not story.trip(a.launch_config_id, "boot").tripped
    trip = story.trip(image, "boot")
    assert (trip.tripped_at, trip.failed_probes, trip.run) == (before.tripped_at, 0, before.run)
    story.fold(62, stopping(other, fails(Scope.IMAGE, Stage.CLAIM), "p", permit))
    trip = story.trip(image, "boot")
    assert (trip.tripped_at, trip.failed_probes, trip.probe) == (before.tripped_at, 0, None)
    assert story.next_probe(image, "boot") > 62


def test_probe_may_boot_as_long_as_the_image_that_it_was_launched_with() -> None:
    """Its config declares another one of faster boots meanwhile."""
    a, faster = CONFIGS[0], replace(CONFIGS[0], image_revision="linux-3", revision=2)
    story = Story(*CONFIGS)
    story.fold(0, *known_boots(a, *[480.0] * 5), *known_boots(replace(CONFIGS[1], image_revision="linux-3")))
    story.fold(1, *(stopping(a, fails(Scope.CONFIG, Stage.BOOT), f"w{n}") for n in range(5)))
    permit = story.probe(a.launch_config_id, 60)
    story.fold(61, requested(a, "p", permit), launched(a, "p", permit))
    lost_at = story.row(a.launch_config_id).lost_at
    story.declare(faster, 62)
    story.advance_to(61 + 480 * POLICY.slow_factor)
    assert story.row(a.launch_config_id).boot.boots.slow == 1
    assert story.row(a.launch_config_id).lost_at == lost_at


def test_config_with_slower_machines_than_others_of_its_image() -> None:
    """Its boots are compared with those that it has seen itself, when faster configs have displaced them."""
    fast, slow = CONFIGS[0], replace(CONFIGS[1], profile="bare-metal")
    story = Story(fast, slow)
    story.fold(0, *known_boots(slow, 480.0))
    story.fold(0, *known_boots(fast, *[20.0] * POLICY.boot_samples))
    window = story.row(image_key("linux-2")).boot.window
    story.fold(0, launched(slow, "s"), launched(fast, "f"))
    story.fold(50, registered(fast, "f", seconds=50.0))
    story.advance_to(600)
    assert story.row(image_key("linux-2")).boot.boots.slow == 0
    assert story.row(image_key("linux-2")).boot.window >= window
    story.advance_to(719)
    assert (story.row(slow.launch_config_id).boot.boots.slow, story.row(slow.launch_config_id).boot.late) == (1, 0)
    story.advance_to(961)
    assert (story.row(slow.launch_config_id).boot.boots.slow, story.row(slow.launch_config_id).boot.late) == (1, 1)


def test_what_is_overdue_on_slower_machines_is_known_from_them() -> None:
    fast, slow = CONFIGS[0], replace(CONFIGS[1], profile="bare-metal")
    story = Story(fast, slow)
    story.fold(0, *known_boots(slow, 480.0), *known_boots(fast, *[20.0] * POLICY.boot_samples))
    story.fold(10, launched(slow, "s"))
    overdue = []
    for at in (465, 467):
        story.advance_to(at)
        overdue.append(len(story.row(image_key("linux-2")).overdue))
    assert overdue == [0, 1]


def test_a_slow_start_counts_no_more_once_slower_ones_are_known() -> None:
    """The windows are what they were, until it is slow by what is known now."""
    a = CONFIGS[0]
    story = Story(a)
    story.fold(-1000, *known_boots(a))
    story.fold(0, launched(a, "slow"))
    story.advance_to(130)
    rows = a.launch_config_id, image_key("linux-2")
    assert [story.row(key).boot.boots.slow for key in rows] == [1, 1]
    story.fold(131, registered(a, "slower", seconds=431.0))
    story.advance_to(150)
    for key in rows:
        boot = story.row(key).boot
        assert (boot.boots.slow, boot.window) == (0, size(boot.boots, POLICY))
    story.advance_to(POLICY.slow_factor * 431)
    assert [story.row(key).boot.boots.slow for key in rows] == [1, 1]
    assert "slow" in story.world.boots
    assert len(story.world.boots) == 2


def test_a_slow_start_is_late_by_what_is_known_by_then() -> None:
    a = CONFIGS[0]
    story = Story(a)
    story.fold(-1000, *known_boots(a))
    story.fold(0, launched(a, "slow"))
    story.advance_to(130)
    story.fold(140, registered(a, "slower", seconds=110.0))
    late = []
    for at in (150, 164, 165):
        story.advance_to(at)
        late.append(story.row(image_key("linux-2")).boot.late)
    assert late == [0, 0, 1]


def test_the_first_boot_of_an_image_judges_those_in_progress() -> None:
    """By the factor of lateness, since it is the fastest of them."""
    a = CONFIGS[0]
    story = Story(a)
    story.fold(0, launched(a, "w"), launched(a, "x"))
    story.advance_to(90)
    story.fold(100, registered(a, "w", seconds=100.0))
    slow = []
    for at in (149, 150, 9_000):
        story.advance_to(at)
        row = story.row(image_key("linux-2")).boot
        slow.append((row.boots.slow, row.late))
    assert slow == [(0, 0), (1, 0), (1, 0)]


def test_minimum_is_that_of_the_profile_of_the_judged_config() -> None:
    """Bare metal is not judged by the minimum of a cloud, even if the newest boot of the image was on one."""
    fast, metal = CONFIGS[0], replace(CONFIGS[1], profile="bare-metal")
    story = Story(fast, metal)
    story.fold(0, *known_boots(fast, *[20.0] * 5), launched(metal, "m"), launched(fast, "f"))
    seconds = PROFILES["bare-metal"].slowest_min_seconds
    story.advance_to(PROFILES["bare-metal"].slow_factor * seconds - 1)
    assert (story.row(metal.launch_config_id).boot.boots.slow, story.row(fast.launch_config_id).boot.boots.slow) == (
        0,
        1,
    )
    story.advance_to(PROFILES["bare-metal"].slow_factor * seconds + 1)
    assert story.row(metal.launch_config_id).boot.boots.slow == 1


def test_failures_alone_do_not_tell_how_long_a_boot_takes() -> None:
    a = CONFIGS[0]
    story = Story(a)
    story.fold(0, stopping(a, fails(Scope.IMAGE, Stage.BOOT), "v"), launched(a, "w"))
    story.advance_to(9_000)
    boot = story.row(image_key("linux-2")).boot
    assert (boot.failed, boot.boots.slow, boot.late) == (1, 0, 0)
