"""Probes of tripped configs and shared keys: permits, delays, losses, and whole pools."""

from itertools import pairwise
from math import exp2
from typing import Final

import msgspec
import pytest

from slipway_api.events.launch_config import LaunchConfigState
from slipway_api.events.scopes import config_key
from slipway_api.events.worker import Scope, Stage, WorkerEvent
from slipway_weight_calculator.domain.trips import Probe
from tests.support.worlds import (
    CAPACITY,
    IMAGE,
    POLICY,
    QUOTA,
    T0,
    A,
    B,
    C,
    Story,
    capacity,
    claimed,
    config,
    delayed,
    fails,
    known_boots,
    launched,
    lost,
    refused,
    registered,
    requested,
    signal_event,
    stopped,
    stopping,
)


def tripped(*others: LaunchConfigState) -> Story:
    story = Story(A, *others)
    story.trip_config(A)
    return story


def test_first_probe_comes_within_the_initial_delay() -> None:
    """Equal jitter: between half of 15 s and all of it, the same for the same config."""
    story = tripped(B)
    due = story.next_probe(CAPACITY)
    assert 7.5 <= due <= 15
    assert due == tripped(B).next_probe(CAPACITY)
    story.advance_to(due - 0.01)
    assert not story.row("a").ready
    story.advance_to(due)
    assert (story.row("a").permit, story.row("a").ready, story.trip(CAPACITY).probe) == (1, True, Probe("a", 1))
    assert story.record("a", due).probe_ready
    before = story.trip(CAPACITY)
    story.advance_to(9999)
    assert story.trip(CAPACITY) == before, "an unspent permit waits for demand"


def test_backoff_doubles_up_to_its_maximum() -> None:
    """From 15 to 600 s; a permit number is never used twice."""
    story, now, delays = tripped(B), 0.0, []
    for permit in range(1, 9):
        delays.append((story.next_probe(CAPACITY) - now, story.trip(CAPACITY).backoff_seconds))
        now = story.next_probe(CAPACITY)
        assert story.probe("a", now) == permit
        story.fold(now, requested(A, f"p-{permit}", permit), refused(A, worker_id=f"p-{permit}", permit=permit))
        assert story.trip(CAPACITY).failed_probes == permit
    assert [backoff for _, backoff in delays] == [15, 30, 60, 120, 240, 480, 600, 600]
    assert all(backoff / 2 <= delay <= backoff for delay, backoff in delays)
    assert len({delay / backoff for delay, backoff in delays}) > 6, "each number has its own jitter"


def test_success_of_the_probe_recovers() -> None:
    """Healthy, with a small window that grows again."""
    story = tripped(B)
    permit = story.probe("a", 20)
    story.fold(20, requested(A, "p", permit))
    assert not story.record("a", 20).probe_ready, "it is spent"
    story.fold(22, launched(A, "p", permit))
    assert story.record("a", 22).state == "healthy"
    launch = story.row(CAPACITY).launch
    assert launch.window == 2
    left = 2 * exp2(-2 * 22 / POLICY.half_life_seconds)  # by time, and once more by the duration of the trip
    assert launch.failures == launch.place_failures == pytest.approx(left)
    story.fold(23, *(launched(A, f"w-{n}") for n in range(3)))
    assert story.row(CAPACITY).launch.window == 5
    story.trip_config(A, 30)
    assert story.probe("a", 60) == 2, "numbers continue over the config's life"


@pytest.mark.parametrize("permit", [None, 0, 2])
def test_success_without_the_permit_does_not_recover(permit: int | None) -> None:
    """A launch from before the outage may still succeed; only a probe proves that launching works again."""
    story = tripped(B)
    story.probe("a", 20)
    story.fold(20, launched(A, "w", permit))
    assert story.trip(CAPACITY).tripped


def test_an_old_permit_resolves_nothing() -> None:
    """A permit that was answered or withdrawn has no effect: the current probe decides."""
    story = tripped(B)
    story.fold(20, requested(A, "p", story.probe("a", 20)), refused(A, worker_id="p", permit=1))
    story.fold(99, requested(A, "q", story.probe("a", 99)))
    before = story.trip(CAPACITY)
    for late in (launched(A, "p", 1), refused(A, worker_id="p", permit=1), stopped(A, "p", 1), lost(A, None, "p", 1)):
        story.fold(100, late)
        assert story.trip(CAPACITY).tripped
        assert (story.trip(CAPACITY).probe, story.trip(CAPACITY).failed_probes) == (before.probe, before.failed_probes)


UNANSWERED: Final = [
    stopped(A, "q", 2),
    stopping(A, None, "q", 2),
    refused(A, Scope.LIMITER, "q", 2),
    refused(A, Scope.NOTHING, "q", 2),
    refused(A, Scope.UNKNOWN, "q", 2),
    refused(A, Scope.QUOTA, "q", 2),  # the answer for another row
    lost(A, None, "q", 2),
]


@pytest.mark.parametrize("event", UNANSWERED, ids=lambda event: type(event).__name__)
def test_permit_is_reissued_after_an_unanswered_probe(event: WorkerEvent) -> None:
    """The next permit comes soon, with a new number, and the backoff stays."""
    story = tripped(B)
    story.fold(20, requested(A, "p", story.probe("a", 20)), refused(A, worker_id="p", permit=1))
    story.fold(60, requested(A, "q", story.probe("a", 60)))
    story.fold(100, event)
    trip = story.trip(CAPACITY)
    assert (trip.tripped, trip.probe, trip.failed_probes, trip.backoff_seconds) == (True, None, 1, 30)
    assert 107.5 <= story.next_probe(CAPACITY) <= 115
    assert story.probe("a", 115) == 3


#        an event of the holder, its permit is ready still, and without an answer
ENDS: Final = [
    (delayed(A, "q", 2), True, True),
    (launched(A, "q", 2), False, False),
    (refused(A, worker_id="q", permit=2), False, False),
    (refused(A, Scope.NOTHING, "q", 2), False, True),
    (stopped(A, "q", 2), False, True),
]


@pytest.mark.parametrize(("event", "ready", "unanswered"), ENDS)
def test_an_answer_ends_a_permit_and_its_place_behind_all_others(
    event: WorkerEvent, ready: bool, unanswered: bool
) -> None:
    """Without one the config comes last, since it could keep others waiting again."""
    story = tripped(B)
    story.fold(20, requested(A, "p", story.probe("a", 20)), stopped(A, "p", 1))
    assert (story.row("a").ready, story.row("a").unanswered_at) == (False, T0 + 20)
    story.fold(60, requested(A, "q", story.probe("a", 60)), event)
    row = story.row("a")
    assert (row.ready, row.unanswered_at > 0.0) == (ready, unanswered)


def test_a_delayed_probe_keeps_its_permit() -> None:
    """A delayed probe waits for another attempt, so a second one would be too many."""
    story = tripped(B)
    story.fold(20, requested(A, "p", story.probe("a", 20)), delayed(A, "p", 1))
    for at in range(1000, 3600, 1000):
        story.advance_to(at)
        story.fold(at, delayed(A, "p", 1))
    story.advance_to(3600)
    assert (story.trip(CAPACITY).probe, story.row("a").permit) == (Probe("a", 1), 1)
    story.fold(3600, launched(A, "p", 1))
    assert not story.trip(CAPACITY).tripped


# Events of a probe before the rest is lost, the tripped stage, and the seconds until the probe counts as lost.
LOST_PROBES: Final[list[tuple[list[WorkerEvent], Stage, float]]] = [
    ([], Stage.LAUNCH, POLICY.permit_expiry_seconds),
    ([requested(A, "p", 1)], Stage.LAUNCH, POLICY.probe_timeout_seconds),
    ([requested(A, "p", 1), launched(A, "p", 1), registered(A, "p", 1)], Stage.CLAIM, POLICY.probe_timeout_seconds),
]


@pytest.mark.parametrize(("events", "stage", "seconds"), LOST_PROBES)
def test_a_lost_probe_is_repeated(events: list[WorkerEvent], stage: Stage, seconds: float) -> None:
    """A probe whose outcome got lost ends without an answer, and the next one comes soon."""
    story = Story(A, B)
    story.fold(0, *(launched(A, str(n)) for n in range(5)), *(registered(A, str(n)) for n in range(5)))
    story.fold(1, *(stopping(A, fails(Scope.CONFIG, stage), str(n)) for n in range(5)))
    assert story.probe("a", 20) == 1
    since = story.trip("a", stage.value).probe_at - T0 if not events else 20.0
    story.fold(20, *events)
    story.advance_to(since + seconds - 1)
    assert (story.trip("a", stage.value).probe, story.row("a").ready) == (Probe("a", 1), True)
    story.advance_to(since + seconds)
    trip = story.trip("a", stage.value)
    assert (trip.tripped, trip.probe, trip.failed_probes, story.row("a").ready) == (True, None, 0, False)
    assert story.probe("a", since + seconds + 15) == 2


def test_a_probe_that_is_lost_after_one_of_its_answers_is_repeated() -> None:
    """Its launch succeeds, and nothing is heard of its boot, which is tripped as well."""
    story = Story(A, B)
    story.fold(0, *(launched(A, str(n)) for n in range(5)))
    story.fold(1, *(stopping(A, fails(Scope.CONFIG, Stage.BOOT), str(n)) for n in range(5)))
    story.fold(2, *(refused(A, Scope.CONFIG, str(n)) for n in range(5, 10)))
    permit = story.probe("a", 60)
    story.fold(60, requested(A, "p", permit), launched(A, "p", permit))
    assert (story.trip("a", "launch").tripped, story.trip("a", "boot").probe) == (False, Probe("a", permit))
    lost_at = story.row("a").lost_at - T0
    story.advance_to(lost_at)
    assert (story.trip("a", "boot").tripped, story.trip("a", "boot").probe) == (True, None)
    assert story.probe("a", lost_at + 60) == permit + 1


def test_a_probe_is_not_lost_while_it_boots() -> None:
    """It has the time in which boots of its image are not late; a late one resolves the probe anyway."""
    slow = POLICY.probe_timeout_seconds
    story = Story(A, B)
    story.fold(-1, *known_boots(A, *[slow] * 5))
    story.fold(0, *(launched(A, str(n)) for n in range(5)))
    story.fold(1, *(stopping(A, fails(Scope.CONFIG, Stage.BOOT), str(n)) for n in range(5)))
    permit = story.probe("a", 20)
    story.fold(20, requested(A, "p", permit), launched(A, "p", permit))
    story.advance_to(19 + POLICY.late_factor * slow)
    assert story.trip("a", "boot").probe == Probe("a", 1)
    story.fold(19 + POLICY.late_factor * slow, registered(A, "p", permit))
    assert not story.trip("a", "boot").tripped


def test_the_holder_of_an_old_permit_is_no_news_of_the_newest() -> None:
    story = tripped(B)
    story.fold(20, requested(A, "p", story.probe("a", 20)), stopped(A, "p", 1))
    assert story.probe("a", 55) == 2
    story.fold(56, requested(A, "o", 1))
    assert not story.row("a").spent
    story.fold(60, requested(A, "q", story.probe("a", 60)))
    before = story.row("a")
    story.fold(100, requested(A, "p", 1), delayed(A, "p", 1), requested(A, "q", 2))
    assert story.row("a") == before, "nor is one that is spent twice"
    story.fold(100, delayed(A, "q", 2))
    row = story.row("a")
    assert row.lost_at == T0 + 100 + POLICY.probe_timeout_seconds
    assert row.version > before.version


def test_a_probe_of_an_unknown_image_may_boot_as_long_as_its_profile_allows() -> None:
    """Then it counts as lost, so that one machine that hangs for days does not end all probes."""
    story = Story(A)
    story.fold(0, *(stopping(A, fails(Scope.CONFIG, Stage.BOOT), str(n)) for n in range(5)))
    permit = story.probe("a", 20)
    story.fold(20, requested(A, "p", permit), launched(A, "p", permit))
    lost_at = 20 + POLICY.boot_seconds + POLICY.probe_timeout_seconds
    story.advance_to(lost_at - 1)
    assert story.trip("a", "boot").probe == Probe("a", 1)
    story.advance_to(lost_at)
    assert story.trip("a", "boot").probe is None
    assert story.probe("a", lost_at + 15) == 2


def test_permit_numbers_continue_after_a_config_was_deleted() -> None:
    """Consumers remember spent permits for longer, so a repeated number would never be spent."""
    for outcome_first in (False, True):
        story = tripped(B)
        given = story.probe("a", 20)
        story.declare(config("a", state="archived", revision=2), 30)
        back = 40 + 30 * 86_400
        story.forget("a", back)
        assert config_key("a") not in story.world.rows
        if outcome_first:
            story.fold(back, stopped(A, "late"))
        story.declare(config("a", revision=3), back)
        assert story.record("a", back).probe_permit is None
        story.trip_config(A, back)
        assert story.probe("a", back + 15) > given


def test_end_of_a_resolved_probe_changes_nothing() -> None:
    """Later events of the worker carry the permit too."""
    story = tripped(B)
    story.fold(20, requested(A, "p", story.probe("a", 20)), launched(A, "p", 1))
    story.trip_config(A, 30)
    before = story.trip(CAPACITY)
    story.fold(40, registered(A, "p", 1), claimed(A, "p", 1), stopping(A, None, "p", 1), stopped(A, "p", 1))
    assert story.trip(CAPACITY) == msgspec.structs.replace(before, unconfirmed=story.trip(CAPACITY).unconfirmed)


def test_a_relapse_continues_with_its_delay() -> None:
    """The delay is halved per half hour since the last probe; one refusal trips until the window has grown."""
    story, now = tripped(B), 0.0
    for permit in range(1, 6):
        now = story.next_probe(CAPACITY)
        story.fold(now, requested(A, f"p-{permit}", story.probe("a", now)))
        if permit < 5:
            story.fold(now, refused(A, worker_id=f"p-{permit}", permit=permit))
    story.fold(now, launched(A, "p-5", 5))
    for later, delay in ((60, 234.5), (1800, 120), (9000, 15)):
        again = Story(A, B)
        for method, argument, at in story.log[2:]:
            again.advance(at - T0) if method == "advance" else again.fold(at - T0, argument)
        again.fold(now + later, refused(A, worker_id="x"))
        assert again.trip(CAPACITY).tripped
        assert again.trip(CAPACITY).backoff_seconds == pytest.approx(delay, rel=0.01)
    story.fold(now + 1, launched(A, "w-1"))
    story.fold(now + 2, refused(A, worker_id="x"))
    assert not story.trip(CAPACITY).tripped, "proven again by the probe and one more"


def test_a_probe_of_a_boot_is_answered_by_its_boot() -> None:
    """An accepted launch is no evidence for an image; a late boot fails the probe until it registers."""
    story = Story(A)
    story.fold(-1000, *known_boots(A))
    story.fold(0, *(launched(A, f"w-{n}") for n in range(5)))
    permit = story.probe("a", 220)
    story.fold(220, requested(A, "p", permit), launched(A, "p", permit))
    assert story.trip("a", "boot").probe == story.trip(IMAGE, "boot").probe == Probe("a", 1)
    story.advance_to(420)
    assert story.trip(IMAGE, "boot").failed_probes == story.trip("a", "boot").failed_probes == 1
    story.fold(510, registered(A, "p", permit, seconds=290.0))
    assert story.record("a", 510).state == "healthy"


def test_a_probe_of_claims_is_answered_by_its_claim() -> None:
    """Neither by its boot, nor by the claim of another worker or one that proves nothing."""
    story = Story(A, B)
    story.fold(0, *(launched(A, str(n)) for n in range(5)), *(registered(A, str(n)) for n in range(5)))
    story.fold(1, *(stopping(A, fails(Scope.CONFIG, Stage.CLAIM), str(n)) for n in range(5)))
    permit = story.probe("a", 20)
    story.fold(20, requested(A, "p", permit), launched(A, "p", permit), registered(A, "p", permit))
    before = story.row("a").claim.succeeded
    story.fold(25, msgspec.structs.replace(claimed(A, "p", permit), outcome=None))
    assert (story.row("a").claim.succeeded, story.trip("a", "claim").probe) == (before, Probe("a", permit))
    story.fold(30, claimed(A, "other"))
    assert story.trip("a", "claim").tripped
    story.fold(40, claimed(A, "p", permit))
    assert (story.trip("a", "claim").tripped, story.trip("a", "claim").recovered_at) == (False, T0 + 40)


def test_a_trip_by_late_boots_ends_when_they_register_and_not_when_we_stop_them() -> None:
    """Slow boots are not failures, but stopping them ourselves is no evidence of success."""
    for ends, recovers in ((registered, True), (stopped, False)):
        story = Story(A)
        story.fold(-1000, *known_boots(A))
        story.fold(0, *(launched(A, f"w-{n}") for n in range(7)))
        story.advance_to(201)
        story.fold(202, ends(A, "w-0"), ends(A, "w-1"))
        assert story.record("a", 203).state != "healthy", "five are still late"
        story.fold(204, ends(A, "w-2"))
        assert (story.record("a", 205).state == "healthy") is recovers


def test_a_permit_covers_all_trips_of_its_config() -> None:
    """The permit is issued when all trips are due; each trip uses the answer for its own stage and row."""
    story = tripped()
    story.trip_config(A, 1, Scope.QUOTA)
    story.advance_to(min(story.next_probe(CAPACITY), story.next_probe(QUOTA)))
    assert not story.row("a").ready
    permit = story.probe("a", 16)
    assert story.trip(CAPACITY).probe == story.trip(QUOTA).probe == Probe("a", 1)
    story.fold(20, requested(A, "p", permit), refused(A, Scope.QUOTA, "p", permit))
    assert story.trip(QUOTA).failed_probes == 1
    assert story.trip(CAPACITY).failed_probes == 0
    permit = story.probe("a", 60)
    story.fold(60, requested(A, "q", permit), launched(A, "q", permit))
    assert story.record("a", 61).state == "healthy"


def test_an_answer_for_one_stage_leaves_the_other_to_the_rest_of_the_start() -> None:
    story = Story(A, config("c", account="sim-b"))
    story.fold(0, *(stopping(A, fails(Scope.CONFIG, Stage.BOOT), str(n)) for n in range(5)))
    story.trip_config(A, 1)
    permit = story.probe("a", 30)
    story.fold(30, requested(A, "p", permit), launched(A, "p", permit))
    assert (story.trip(CAPACITY).tripped, story.trip("a", "boot").probe) == (False, Probe("a", permit))
    story.fold(90, registered(A, "p", permit))
    assert story.record("a", 90).state == "healthy"


def test_an_unspent_permit_of_one_trip_becomes_one_of_two() -> None:
    story = tripped(config("c", account="sim-b"))
    assert story.probe("a", 20) == 1
    story.trip_config(A, 21, Scope.QUOTA)
    story.advance_to(story.next_probe(QUOTA))
    assert story.trip(CAPACITY).probe == story.trip(QUOTA).probe == Probe("a", 2)


def test_an_unspent_permit_is_replaced_when_another_row_trips() -> None:
    """Otherwise a start would be made while another config probes the same row."""
    story = tripped(B)
    assert story.probe("a", 20) == 1
    story.fold(21, refused(A, Scope.QUOTA, "x"), refused(A, Scope.QUOTA, "y"))
    assert not story.record("a", 21).probe_ready
    story.advance_to(40)
    holders = {story.trip(key).probe for key in (CAPACITY, QUOTA)}
    assert holders in ({Probe("a", 2)}, {Probe("a", 1), Probe("b", 1)})
    assert story.record("a", 40).probe_ready is (holders == {Probe("a", 2)})


def all_tripped(scope: Scope = Scope.CAPACITY, *, long: bool = True) -> Story:
    """A pool with all configs tripped; `long`: probed until the delays are long."""
    story = Story(A, B)
    for c in (A, B):
        story.trip_config(c, 0, scope)
    if long:
        spend(story, 1800)
    return story


def spend(story: Story, until: float, *configs: LaunchConfigState) -> list[float]:
    """Spend every permit at once and fail, until then; returns the times."""
    spent: list[float] = []
    while (due := story.world.due()) is not None and due <= T0 + until:
        now = due - T0
        story.advance(now)
        for c in configs or (A, B):
            if story.record(c.launch_config_id, now).probe_ready:
                permit = story.row(c.launch_config_id).permit
                story.fold(now, requested(c, "p", permit), refused(c, worker_id="p", permit=permit))
                spent.append(now)
    return spent


def test_a_tripped_pool_is_probed_every_30_seconds() -> None:
    """Every 30 s whatever the delays of its configs have grown to, and not sooner."""
    story = all_tripped()
    assert all(story.trip(capacity(id_)).backoff_seconds == 600 for id_ in ("a", "b"))
    spent = spend(story, 3600)
    gaps = [later - sooner for sooner, later in pairwise(spent)]
    assert len(spent) == pytest.approx(1800 / 30, abs=4)
    assert max(gaps) <= 30 + 1e-6


def test_one_healthy_config_is_enough_for_a_pool() -> None:
    """With a healthy config in the pool, each tripped one waits for its own delay."""
    story = all_tripped()
    story.declare(C, 1800)
    assert len(spend(story, 3600)) <= 10


def test_the_only_healthy_config_is_paused() -> None:
    """All remaining configs are tripped then, and the pool is probed within 30 s."""
    story = all_tripped()
    story.declare(C, 1800)
    story.advance(1810)
    before = story.row("a").permit + story.row("b").permit
    story.declare(config("c", state="paused", revision=2), 1810)
    story.advance_to(1841)
    assert story.row("a").permit + story.row("b").permit > before


def test_a_pool_tripped_by_boots_is_not_probed_sooner() -> None:
    """Each attempt would cost a machine."""
    story = Story(A, B)
    for c in (A, B):
        story.fold(0, *(lost(c, fails(Scope.CONFIG, Stage.BOOT), f"w-{n}") for n in range(5)))
    for n in range(40):
        story.advance_to(60 * n)
        for c in (A, B):
            if story.record(c.launch_config_id, 60 * n).probe_ready:
                permit = story.row(c.launch_config_id).permit
                failure = lost(c, fails(Scope.CONFIG, Stage.BOOT), "p", permit)
                story.fold(60 * n, requested(c, "p", permit), launched(c, "p", permit), failure)
    assert story.row("a").permit + story.row("b").permit <= 20


def test_a_signal_that_trips_the_rest_of_a_pool_counts() -> None:
    """The pool counts as tripped until the signal ends."""
    story = all_tripped()
    story.declare(C, 1800)
    assert story.signal(signal_event("down", "config", "c", 1801, ttl_seconds=300.0), 1801) == ""
    assert len(spend(story, 2100)) >= 8
    assert len(spend(story, 2400)) <= 2


def test_a_probe_after_a_failed_one_is_not_brought_forward() -> None:
    """Repeated `recovered` signals do not shorten the initial delay between two probes."""
    story = tripped(B)
    story.fold(20, requested(A, "p", story.probe("a", 20)), refused(A, worker_id="p", permit=1))
    for at in (21, 22, 23):
        story.signal(signal_event("recovered", "config", "a", at), at)
    assert story.next_probe(CAPACITY) == pytest.approx(story.trip(CAPACITY).probe_at - T0 + 15)
