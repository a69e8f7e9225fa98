"""Slow and late boots in detail: what a config's own boots say, what a late one counts as, and what is left of it."""

from typing import Any, Final

import pytest

from slipway_api.events.worker import Scope, Stage
from slipway_weight_calculator.domain import boots
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.trips import Failure
from tests.support.worlds import (
    IMAGE,
    POLICY,
    T0,
    A,
    B,
    Story,
    config,
    fails,
    known_boots,
    launched,
    registered,
    requested,
    stopping,
)

FAST: Final = [100.0] * (POLICY.boot_samples + 1)


def slower(*seconds: float) -> Story:
    """A world in which b has booted in these times, and faster boots of a have displaced them among those known."""
    story = Story(A, B)
    story.fold(-9000, *known_boots(B, *seconds), *known_boots(A, *FAST))
    assert story.row(IMAGE).slowest_seconds == 100.0
    return story


def test_a_config_whose_machines_are_slower_is_judged_by_its_own_boots() -> None:
    """From its launch on, and until it is late."""
    story = slower(300.0)
    story.fold(0, launched(B, "b"), launched(A, "a"))
    assert {name: boot.judged_at - T0 for name, boot in story.world.boots.items()} == {"b": 390.0, "a": 130.0}
    story.advance_to(389)
    assert story.row("b").boot.boots.slow == 0
    story.advance_to(390)
    assert (story.row("b").boot.boots.slow, story.world.boots["b"].judged_at - T0) == (1, 450.0)
    story.advance_to(449)
    assert not story.world.boots["b"].late
    story.advance_to(450)
    boot = story.world.boots["b"]
    assert (boot.late_at, boot.judged_at) == (T0 + 450, 0.0)


@pytest.mark.parametrize("known_at", [350, 400])
def test_a_boot_is_slow_no_longer_once_slower_ones_of_its_config_are_known(known_at: float) -> None:
    """Known before it would have been slow, or afterwards."""
    story = slower(300.0)
    story.fold(0, launched(B, "b"))
    story.advance_to(known_at)
    story.fold(known_at, *known_boots(B, 500.0), *known_boots(A, *FAST))
    story.advance_to(649)
    assert (story.world.boots["b"].slow, story.row("b").boot.boots.slow, story.row(IMAGE).boot.boots.slow) == (
        None,
        0,
        0,
    )
    story.advance_to(650)
    assert story.row("b").boot.boots.slow == 1


def test_a_probe_may_boot_until_it_would_be_late() -> None:
    """By the boots of its own config."""
    story = slower(300.0)
    for number in range(5):
        story.fold(-10, stopping(B, fails(Scope.CONFIG, Stage.BOOT), f"w{number}"))
    story.fold(20, requested(B, "p", story.probe("b", 20)), launched(B, "p", 1))
    assert story.row("b").lost_at == T0 + 20 + 450 + POLICY.probe_timeout_seconds


def test_a_late_boot_is_a_failure_of_its_image_and_config() -> None:
    """Until it registers, then only the others are left."""
    story = Story(A)
    story.fold(-1000, *known_boots(A), stopping(A, fails(Scope.IMAGE, Stage.BOOT), "failed"))
    story.fold(0, launched(A, "w"))
    story.advance_to(150)
    late = Failure(T0 + 150, Scope.IMAGE, "boot_timeout", True, "w", late=True, instance_id="i-w")
    for key in (IMAGE, "a"):
        stage = story.row(key).boot
        assert (stage.trip.run[-1], stage.failed, stage.late) == (late, 2, 1)
        assert stage.place_failures > 1.0
    story.fold(160, registered(A, "w", seconds=160.0))
    for key in (IMAGE, "a"):
        stage = story.row(key).boot
        assert (stage.failed, stage.late, stage.trip.unconfirmed) == (1, 0, 0)
        assert stage.place_failures < 1.0


def test_a_late_probe_has_answered() -> None:
    """For the boots that it was to probe; claims that waited for it, too, get another one."""
    story = Story(A, B)
    story.fold(-1000, *known_boots(A))
    for stage in (Stage.BOOT, Stage.CLAIM):
        story.fold(0, *(stopping(A, fails(Scope.IMAGE, stage), f"{stage}{number}") for number in range(5)))
    story.advance_to(60)
    holder = A if story.row("a").ready else B
    permit = story.row(holder.launch_config_id).permit
    of_it: tuple[Any, ...] = (holder, "p", permit)
    story.fold(61, requested(*of_it), launched(*of_it))
    assert story.trip(IMAGE, "claim").probe == story.trip(IMAGE, "boot").probe is not None
    story.advance_to(210)
    draft = Draft(story.world)
    boots.judge(draft, "p", T0 + 61 + 150, T0 + 61 + 150)
    for name in ("boot", "claim"):
        row = draft.row(IMAGE)
        assert row is not None
        trip = getattr(row, name).trip
        assert (trip.probe, trip.next_probe_at > T0) == (None, True)
    row = draft.row(story.world.configs[holder.launch_config_id].key)
    assert row is not None
    assert not row.ready


def test_a_slow_boot_of_an_image_that_is_gone_ends_for_its_config() -> None:
    story = Story(A)
    story.fold(-1000, *known_boots(A))
    story.fold(0, launched(A, "w"))
    story.advance_to(140)
    story.declare(config("a", image_revision="linux-2", revision=2), 141)
    assert IMAGE not in story.world.rows
    assert story.row("a").boot.boots.slow == 1
    story.fold(142, registered(A, "w", seconds=142.0))
    assert story.row("a").boot.boots.slow == 0


def test_a_timer_of_another_time_makes_no_start_overdue() -> None:
    story = Story(A)
    story.fold(-9000, *known_boots(A, *FAST))
    story.fold(0, launched(A, "w"))
    due = story.world.boots["w"].overdue_at
    for when, overdue in ((due - 1, ()), (due, (T0,))):
        draft = Draft(story.world)
        boots.judge_overdue(draft, "w", when, due)
        row = draft.row(IMAGE)
        assert row is not None
        assert row.overdue == overdue
