"""Images whose provider begins to name them otherwise: their health, windows, boots and probes go along."""

from collections.abc import Callable
from typing import Any, Final

import pytest
from msgspec.structs import replace

from slipway_api.events.launch_config import LaunchConfigState
from slipway_api.events.scopes import Key, image_key
from slipway_api.events.worker import Scope, Stage
from slipway_weight_calculator.domain.windows import size
from tests.support.worlds import (
    IMAGE,
    POLICY,
    T0,
    Story,
    config,
    fails,
    known_boots,
    launched,
    registered,
    reloaded,
    requested,
    stopping,
    stored,
)

NAMED: Final = image_key("aws/linux-1")
OTHER: Final = image_key("simulated/linux-1")
A, B, C = config("a"), config("b"), config("c")


def under(c: LaunchConfigState, key: Key = NAMED) -> LaunchConfigState:
    """The config after its provider has named its image otherwise."""
    return replace(c, image_key=key.id, revision=c.revision + 1)


def bad_boots(c: LaunchConfigState, number: int = 5, **names: Any) -> list[Any]:
    return [stopping(c, fails(Scope.IMAGE, Stage.BOOT, **names), f"{c.launch_config_id}{n}") for n in range(number)]


def tripped(*configs: LaunchConfigState) -> Story:
    """A world in which the image of these configs is tripped."""
    story = Story(*configs)
    story.fold(0, *bad_boots(configs[0]))
    assert story.trip(IMAGE, "boot").tripped
    return story


def test_a_tripped_image_stays_tripped() -> None:
    """With its window, its evidence, and the time of its next probe, and under a version that consumers take."""
    story = tripped(A)
    before = story.row(IMAGE)
    story.declare(under(A), 10)
    assert NAMED in story.world.rows
    after = story.row(NAMED)
    assert after.boot.trip == before.boot.trip
    assert (after.boot.window, after.boot.failures) == (before.boot.window, before.boot.failures)
    assert after.version == (T0 + 10) * 1000
    assert IMAGE not in story.world.rows
    shared = [each for each in story.record("a", 10).shared if each.kind == "image"]
    assert {(each.id, each.state) for each in shared if each.stage == "boot"} == {(NAMED.id, "tripped")}
    assert {each.id for each in shared} == {NAMED.id}


@pytest.mark.parametrize("order", [lambda holder, other: (holder, other), lambda holder, other: (other, holder)])
def test_it_is_probed_once(order: Callable[..., tuple[LaunchConfigState, ...]]) -> None:
    """A probe in flight is that of the new key, also if other configs move before and after it."""
    story = tripped(A, B)
    story.advance_to(60)
    holder, other = (A, B) if story.row("a").ready else (B, A)
    permit = story.row(holder.launch_config_id).permit
    story.fold(61, requested(holder, "probe", permit), launched(holder, "probe", permit))
    permit_at = story.row(holder.launch_config_id).permit_at
    for c in order(holder, other):
        story.declare(under(c), 62)
        story.advance_to(300)
        assert not story.row(other.launch_config_id).ready, "a second probe of one image"
    trip = story.trip(NAMED, "boot")
    assert (str(trip.probe), trip.probe_at) == (f"{holder.launch_config_id}#{permit}", permit_at)
    story.fold(301, registered(under(holder), "probe", permit, seconds=200.0))
    assert not story.trip(NAMED, "boot").tripped


@pytest.mark.parametrize("named", ["", "linux-1", NAMED.id])
def test_an_outcome_belongs_to_the_image_whatever_its_event_calls_it(named: str) -> None:
    """A start that is older than the key."""
    story = Story(A)
    story.fold(0, *known_boots(A), launched(A, "w"))
    story.declare(under(A), 10)
    story.fold(20, stopping(A, fails(Scope.IMAGE, Stage.BOOT, key=named), "w"))
    assert story.row(NAMED).boot.failed == 1
    assert IMAGE not in story.world.rows


def test_events_of_the_new_key_before_its_declaration() -> None:
    """Order is promised per topic only."""
    story = tripped(A)
    story.fold(5, *bad_boots(A, 2, key=NAMED.id))
    story.declare(under(A), 10)
    assert story.trip(NAMED, "boot").tripped


def test_two_providers_part() -> None:
    """Each gets what was known under their common name; from then on neither stops the other."""
    story = tripped(A, B)
    story.declare(under(A), 10)
    assert story.trip(IMAGE, "boot").tripped
    story.declare(under(B, OTHER), 11)
    permit = story.probe("b", 700)
    story.fold(701, requested(B, "p", permit), launched(B, "p", permit), registered(B, "p", permit, seconds=60.0))
    assert story.trip(NAMED, "boot").tripped
    assert not story.trip(OTHER, "boot").tripped
    fresh = Story(under(A), under(B, OTHER))
    fresh.fold(0, *bad_boots(under(A)))
    assert fresh.record("a", 1).state == "tripped"
    assert fresh.record("b", 1).state == "healthy"


def test_boots_in_progress_go_along() -> None:
    """Slow and late ones count under the new key until they end, and then no more."""
    story = Story(A, B)
    story.fold(-1000, *known_boots(A))
    story.fold(0, launched(A, "a1"), launched(B, "b1"))
    story.advance_to(200)
    assert (story.row(IMAGE).boot.late, story.row(IMAGE).boot.boots.slow) == (2, 2)
    story.declare(under(A), 210)
    assert (story.row(NAMED).boot.late, story.row(NAMED).boot.boots.slow) == (1, 1)
    assert (story.row(IMAGE).boot.late, story.row(IMAGE).boot.boots.slow) == (1, 1)
    story.declare(under(B), 211)
    assert (story.row(NAMED).boot.late, story.row(NAMED).boot.boots.slow) == (2, 2)
    story.fold(220, registered(A, "a1", seconds=220.0), registered(B, "b1", seconds=220.0))
    stage = story.row(NAMED).boot
    assert (stage.late, stage.boots.slow) == (0, 0)
    assert stage.window == size(stage.boots, POLICY)


def with_boots(story: Story, key: Key, **changes: Any) -> None:
    """Change what is known of the boots of a key, as after an outage."""
    row = story.row(key)
    boots = replace(row.boot.boots, **changes)
    story.world.rows[key] = replace(row, boot=replace(row.boot, boots=boots, window=size(boots, POLICY)))


def test_what_is_counted_for_boots_of_others_stays_behind() -> None:
    """The first config to move takes what is known of the image, its own boots, and no others."""
    story = Story(A, B)
    story.fold(-9000, *known_boots(A, *[100.0] * POLICY.boot_samples))
    story.fold(0, launched(B, "b1"), launched(A, "a1"))
    story.fold(50, launched(A, "young"))
    with_boots(story, IMAGE, hung=3)
    story.advance_to(140)
    with_boots(story, IMAGE, overdue=0)
    story.world.rows[IMAGE] = replace(story.row(IMAGE), overdue=())
    assert story.row(IMAGE).boot.boots.slow == 2
    story.declare(under(A), 141)
    stage = story.row(NAMED).boot
    assert (stage.boots.slow, stage.boots.hung, stage.boots.overdue, stage.late) == (1, 0, 0, 0)
    assert stage.window == size(stage.boots, POLICY)
    assert (story.row(IMAGE).boot.boots.slow, story.row(IMAGE).boot.boots.hung) == (1, 3)
    assert {worker_id: boot.slow for worker_id, boot in story.world.boots.items()} == {
        "a1": (0, 0),
        "b1": (0, 0),
        "young": None,
    }


def test_a_slow_boot_ends_under_the_outages_of_its_new_key() -> None:
    """Those that the key has had when it comes, and its config those of its own."""
    story = Story(A, B, C)
    story.fold(-1000, *known_boots(A))
    with_boots(story, IMAGE, outages=1)
    story.fold(0, launched(A, "a1"))
    story.advance_to(140)
    story.declare(under(B), 141)
    with_boots(story, NAMED, outages=2)
    assert (story.world.boots["a1"].slow, story.row(IMAGE).boot.boots.slow) == ((1, 0), 1)
    story.declare(under(A), 142)
    assert (story.world.boots["a1"].slow, story.row(NAMED).boot.boots.slow) == ((2, 0), 1)
    assert story.row(IMAGE).boot.boots.slow == 0
    story.fold(143, registered(A, "a1", seconds=143.0))
    assert (story.row(NAMED).boot.boots.slow, story.row(NAMED).boot.boots.hung) == (0, 0)


def test_overdue_starts_go_along() -> None:
    """And count no more under the former key, whose windows are those of the starts that stay. A config that has none
    takes none along."""
    story = Story(A, B, C)
    story.fold(-9000, *known_boots(A, *[100.0] * POLICY.boot_samples))
    story.fold(0, launched(A, "a1"))
    story.fold(1, launched(B, "b1"))
    story.advance_to(100)
    assert len(story.row(IMAGE).overdue) == 2
    story.declare(under(C), 109)
    row = story.row(NAMED)
    assert (row.overdue, row.boot.boots.overdue, row.boot.window) == ((), 0, size(row.boot.boots, POLICY))
    story.declare(under(A), 110)
    for key, overdue in ((NAMED, (T0,)), (IMAGE, (T0 + 1,))):
        row = story.row(key)
        assert (row.overdue, row.boot.boots.overdue, row.boot.late) == (overdue, 1, 0)
        assert row.boot.window == size(row.boot.boots, POLICY)
    story.fold(120, registered(A, "a1", seconds=120.0))
    assert [(story.row(key).overdue, story.row(key).boot.boots.overdue) for key in (NAMED, IMAGE)] == [
        ((), 0),
        ((T0 + 1,), 1),
    ]


def test_a_config_that_stays_behind_waits_for_the_probe_of_the_one_that_has_moved() -> None:
    """For a spent permit until it would be lost, for another one until it would be withdrawn."""
    for spends in (True, False):
        story = tripped(A, B)
        story.advance_to(60)
        holder = A if story.row("a").ready else B
        row = story.row(holder.launch_config_id)
        if spends:
            story.fold(61, requested(holder, "probe", row.permit))
        story.declare(under(holder), 62)
        row = story.row(holder.launch_config_id)
        trip, moved = story.trip(IMAGE, "boot"), story.trip(NAMED, "boot")
        over_at = row.lost_at if spends else row.permit_at + POLICY.permit_seconds
        assert (trip.probe, trip.next_probe_at) == (None, over_at)
        assert (str(moved.probe), moved.probe_at) == (f"{holder.launch_config_id}#{row.permit}", row.permit_at)


def test_a_config_that_moves_first_waits_for_the_probe_of_the_one_that_stays() -> None:
    """Only configs that come along answer for the new key. Once one has recovered it, no probe trips it again."""
    story = tripped(A, B)
    story.advance_to(60)
    holder, other = (A, B) if story.row("a").ready else (B, A)
    row = story.row(holder.launch_config_id)
    story.declare(under(other), 62)
    trip = story.trip(NAMED, "boot")
    assert (trip.probe, trip.next_probe_at) == (None, row.permit_at + POLICY.permit_seconds)
    permit = story.probe(other.launch_config_id, 300)
    of_it = (under(other), "probe", permit)
    story.fold(301, requested(*of_it), launched(*of_it), registered(*of_it, seconds=60.0))
    before = story.trip(NAMED, "boot")
    story.declare(under(holder), 400)
    assert (before.tripped, story.trip(NAMED, "boot")) == (False, before)


def test_a_moved_row_has_a_newer_version_within_the_same_instant() -> None:
    story = tripped(A)
    before = story.row(IMAGE).version
    story.declare(under(A), 0)
    assert story.row(NAMED).version == before + 1


def test_a_move_is_the_same_after_a_restart() -> None:
    story = tripped(A, B)
    story.declare(under(A), 10)
    world = reloaded(story.world)
    assert stored(world) == stored(story.world)


def test_another_image_takes_nothing_along() -> None:
    story = tripped(A)
    story.declare(replace(under(A), image_revision="linux-2", image_key="aws/linux-2"), 10)
    assert image_key("aws/linux-2") not in story.world.rows
