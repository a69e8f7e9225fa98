"""Outcomes and the images that their events name: after a roll-out, under one name, or beside another declaration."""

from collections.abc import Callable
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from slipway_api.events.launch_config import LaunchConfigState
from slipway_api.events.scopes import Key, image_key
from slipway_api.events.worker import Scope, Stage, WorkerEvent
from slipway_weight_calculator.domain.rows import Row
from slipway_weight_calculator.domain.trips import Probe
from tests.support.worlds import (
    IMAGE,
    B,
    Story,
    claimed,
    config,
    fails,
    known_boots,
    launched,
    lost,
    refused,
    registered,
    requested,
    stopped,
    stopping,
)

NEW: Final = image_key("linux-2")
OLD_REVISION, NEW_REVISION = config("a@1"), config("a@2", image_revision="linux-2")

Outcomes = Callable[[LaunchConfigState], list[WorkerEvent]]
# All ways in which a start of a config moves its image, but for a late boot.
MOVES: Final[dict[str, Outcomes]] = {
    "boot": lambda c: [launched(c, "w"), registered(c, "w", seconds=100.0)],
    "claim": lambda c: [claimed(c, "w")],
    "failed launch": lambda c: [refused(c, Scope.IMAGE)],
    "failed boot": lambda c: [stopping(c, fails(Scope.IMAGE, Stage.BOOT), "w")],
    "failed boot, image named": lambda c: [stopping(c, fails(Scope.IMAGE, Stage.BOOT, key=c.image_revision), "w")],
    "lost in boot": lambda c: [launched(c, "w"), lost(c, fails(Scope.IMAGE, Stage.BOOT), "w")],
    "failed claim": lambda c: [stopping(c, fails(Scope.IMAGE, Stage.CLAIM), "w")],
}


def images(story: Story) -> dict[Key, Row]:
    return {key: row for key, row in story.world.rows.items() if key.kind == "image"}


def changed(story: Story, change: Callable[[], Any]) -> set[Key]:
    """Image rows that a change moves."""
    before = images(story)
    change()
    return {key for key, row in images(story).items() if row is not before.get(key)}


def warm(*configs: LaunchConfigState) -> Story:
    """A world that knows the boots of the images of all these configs."""
    story = Story(*configs)
    for c in configs:
        story.fold(-1000, *known_boots(c))
    return story


@pytest.mark.parametrize("moves", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize(("old", "key"), [(True, IMAGE), (False, NEW)])
def test_two_revisions_of_a_name_have_an_image_each(moves: Outcomes, old: bool, key: Key) -> None:
    """After a roll-out, starts of the old revision tell nothing of the new image, and the reverse."""
    story = warm(OLD_REVISION, NEW_REVISION)
    assert changed(story, lambda: story.fold(0, *moves(OLD_REVISION if old else NEW_REVISION))) == {key}


@pytest.mark.parametrize("moves", MOVES.values(), ids=MOVES)
def test_an_outcome_moves_the_image_that_its_event_names(moves: Outcomes) -> None:
    """The start may be older than the declaration of its config."""
    before, now = config("a"), config("a", image_revision="linux-2", revision=2)
    story = warm(before, B)
    story.declare(now, 0)
    story.fold(1, *known_boots(now))
    assert changed(story, lambda: story.fold(2, *moves(before))) == {IMAGE}
    assert changed(story, lambda: story.fold(3, *moves(now))) == {NEW}


def test_a_late_boot_is_one_of_the_image_that_it_was_launched_with() -> None:
    """It is judged by the boots of that image, and its end withdraws it there."""
    before, now = config("a"), config("a", image_revision="linux-2", revision=2)
    story = warm(before, B)
    story.declare(now, -500)
    story.fold(-400, *known_boots(now, *[10.0] * 5))
    story.fold(0, launched(before, "w"))
    assert changed(story, lambda: story.advance_to(149)) == {IMAGE}, "slow after 130 s"
    assert (story.row(IMAGE).boot.boots.slow, story.row(IMAGE).boot.late) == (1, 0)
    assert changed(story, lambda: story.advance_to(150)) == {IMAGE}
    assert (story.row(IMAGE).boot.late, story.row(NEW).boot.late) == (1, 0)
    assert changed(story, lambda: story.fold(210, registered(before, "w"))) == {IMAGE}
    assert (story.row(IMAGE).boot.boots.slow, story.row(IMAGE).boot.late) == (0, 0)


@pytest.mark.parametrize("ok", [True, False])
def test_a_probe_of_another_image_answers_nothing(ok: bool) -> None:
    """Its permit ends without an answer for the declared image, which is probed again soon."""
    before, now = config("a"), config("a", image_revision="linux-2", revision=2)
    story = warm(before, B)
    story.declare(now, 0)
    story.fold(1, *(stopping(now, fails(Scope.IMAGE, Stage.BOOT), f"w-{n}") for n in range(5)))
    permit = story.probe("a", 20)
    assert story.trip(NEW, "boot").probe == Probe("a", permit)
    outcome = registered(before, "p", permit) if ok else stopping(before, fails(Scope.IMAGE, Stage.BOOT), "p", permit)
    story.fold(20, requested(before, "p", permit), launched(before, "p", permit), outcome, stopped(before, "p", permit))
    trip = story.trip(NEW, "boot")
    assert (trip.tripped, trip.probe, trip.failed_probes) == (True, None, 0)
    assert story.probe("a", 60) == permit + 1


def test_an_image_that_no_config_shares_gets_no_row() -> None:
    """Nobody would delete it."""
    story = warm(config("a"))
    elsewhere = config("a", image_revision="nobody's")
    for moves in MOVES.values():
        story.fold(0, *moves(elsewhere))
    assert set(images(story)) == {IMAGE}
    assert story.row("a").boot.succeeded == 6, "the config's own row counts"


@given(st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_an_image_moves_only_by_outcomes_that_name_it_and_by_its_late_boots(seed: int) -> None:
    """Of any events under changing declarations; each row of an image counts what named it."""
    rng, story = Random(seed), Story(config("a"), config("b", image_revision="linux-2"), config("c"))
    names = {IMAGE: "linux-1", NEW: "linux-2"}
    wanted = {key: [0, 0] for key in names}
    for n in range(120):
        key = rng.choice(sorted(names))
        c = replace(config(rng.choice("abc")), image_revision=names[key])
        ok = rng.random() < 0.7
        if rng.random() < 0.1:
            revision = story.world.configs["c"].declared.revision + 1
            story.declare(replace(config("c"), image_revision=names[key], revision=revision), n * 20)
        if rng.random() < 0.3:
            story.fold(n * 20, launched(c, f"w-{n}"))
            continue
        worker_id = f"w-{rng.randrange(n + 1)}"
        end = registered(c, worker_id, seconds=90.0) if ok else stopping(c, fails(Scope.IMAGE, Stage.BOOT), worker_id)
        wanted[key][0 if ok else 1] += 1
        story.fold(n * 20, end)
        story.advance(n * 20)
        for each, (good, bad) in wanted.items():
            stage = story.row(each).boot if each in story.world.rows else None
            if stage is not None:
                assert (stage.succeeded, stage.failed - stage.late) == (good, bad)
                assert (
                    stage.late
                    <= stage.boots.slow
                    == sum(boot.slow is not None and boot.image == each for boot in story.world.boots.values())
                )
