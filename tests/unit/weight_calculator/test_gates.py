"""Trips, permits, their backoff, and who may probe what: the laws by which a gate closes and opens."""

from itertools import pairwise, permutations
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_common.events.launch_config import LaunchConfigState
from slipway_common.events.worker import Scope, Stage, WorkerEvent
from slipway_common.scopes import FORGOTTEN_AFTER_SECONDS
from slipway_weight_calculator.domain import gates
from slipway_weight_calculator.domain.gates import OPEN, Failure
from tests.worlds import (
    CREDENTIAL,
    IMAGE,
    POLICY,
    QUOTA,
    T0,
    A,
    B,
    C,
    Story,
    claimed,
    config,
    delayed,
    fails,
    launched,
    lost,
    refused,
    registered,
    requested,
    said,
    stopped,
    stopping,
)

# Trips

C_, Q, X, M, K = Scope.CAPACITY, Scope.QUOTA, Scope.CONFIG, Scope.IMAGE, Scope.CREDENTIAL
L, N, U = Scope.LIMITER, Scope.NOTHING, Scope.UNKNOWN
#        failures in a row, or None for a success   closes after the last, and not before
TRIPS: Final[list[tuple[list[Scope | None], bool]]] = [
    ([C_], False),
    ([C_, C_], True),
    ([Q, Q], True),
    ([K, K], True),
    ([Q, C_], False),  # one of the quota, one of its own
    ([C_, None, C_], False),
    ([C_, None, C_, C_], True),
    ([X, X, X, X], False),
    ([X, X, X, X, X], True),
    ([X, C_, X, C_], True),  # the second definite one, wherever the others stand
    ([M, M, M, M, M], True),
    ([M, M, X, M, M], False),  # the image has four, the config one
    ([X, X, X, X, None, X], False),
    ([L, L, L, L, L, L, L], False),
    ([N, U, N, U, N, U], False),
    ([C_, L, N, U, C_], True),  # neither do they end a row
]


@pytest.mark.parametrize(("scopes", "closes"), TRIPS)
def test_trip(scopes: list[Scope | None], closes: bool) -> None:
    """Two definite refusals in a row, or any five that say something about the same."""
    story = Story(A)
    for n, scope in enumerate(scopes):
        assert story.record("a", n).state == "open"
        story.fold(n, refused(A, scope, f"w-{n}") if scope else launched(A, f"w-{n}"))
    assert (story.record("a", 99).state == "closed") is closes


def test_unclassified_capacity_is_not_definite() -> None:
    """A failure that no table knows may be anything: five, not two."""
    story = Story(A)
    for n in range(5):
        assert not story.gate("a").closed
        story.fold(n, refused(A, Scope.CAPACITY, f"w-{n}", classified=False))
    assert story.gate("a").closed


@pytest.mark.parametrize("stage", [Stage.BOOT, Stage.CLAIM])
def test_five_boots_or_claims_close_the_config_and_the_image(stage: Stage) -> None:
    story = Story(A, config("o", pool="other", account="sim-b"))
    for n in range(5):
        assert story.record("o", n).state == "open"
        story.fold(n, stopping(A, fails(Scope.IMAGE, stage), f"w-{n}"))
    assert story.gate("a", stage.value).closed
    assert story.record("o", 9).closed_by == IMAGE
    assert story.record("o", 9).closed_stage == stage.value


def test_late_boots_close_too() -> None:
    """Without waiting for their time-out, however long it is."""
    story = Story(A)
    story.fold(0, *(launched(A, f"w-{n}") for n in range(5)))
    story.advance_to(299)
    assert story.record("a", 299).state == "open"
    story.advance_to(300)
    assert (story.record("a", 300).state, story.record("a", 300).closed_stage) == ("closed", "boot")


def test_row_is_counted_in_event_time() -> None:
    """A success between two failures counts as between, also when it arrives last but one, or first."""
    events: list[tuple[float, WorkerEvent]] = [(5, refused(A)), (6, launched(A, "v")), (7, refused(A))]
    for order in permutations(events):
        if order[2][0] != 6:  # then it has closed before the success was known
            story = Story(A)
            for at, event in order:
                story.fold(at, event)
            assert not story.gate("a").closed


def test_failures_beside_a_success_of_the_same_instant_count() -> None:
    """One call, eight asked, five given, three refused: capacity has ended, in whatever order this is told."""
    for order in permutations([launched(A, "v"), refused(A, worker_id="x"), refused(A, worker_id="y")]):
        story = Story(A)
        story.fold(1, *order)
        assert story.gate("a").closed


def test_failures_while_closed_do_not_compound() -> None:
    """What was in flight when it closed tells nothing new; it is counted, for whoever freezes by that."""
    story = Story(A)
    story.close(A)
    before = story.gate("a")
    story.fold(1, *(refused(A, worker_id=f"w-{n}") for n in range(8)))
    assert story.gate("a") == msgspec.structs.replace(before, unconfirmed=10)


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from([C_, X, M]), st.booleans()), max_size=9))
def test_order_of_failures_is_irrelevant_until_it_closes(told: list[tuple[int, Scope, bool]]) -> None:
    failures = [Failure(T0 + at, scope, "", sure, f"w-{n}") for n, (at, scope, sure) in enumerate(told)]
    seen = []
    for order in (failures, sorted(failures), failures[::-1]):
        gate = OPEN
        for failure in order:
            gate = gates.failed(gate, failure, 99, "a", msgspec.structs.replace(POLICY, trip_capacity=99))
        seen.append(gate)
    assert seen[0] == seen[1] == seen[2]


# Permits of one config


def closed(*others: LaunchConfigState) -> Story:
    story = Story(A, *others)
    story.close(A)
    return story


def test_first_probe_comes_within_the_initial_delay() -> None:
    """Equal jitter: between half of 15 s and all of it, the same for the same config."""
    story = closed(B)
    due = story.next_probe("a")
    assert 7.5 <= due <= 15
    assert due == closed(B).next_probe("a")
    story.advance_to(due - 0.01)
    assert not story.row("a").ready
    story.advance_to(due)
    assert (story.row("a").permit, story.row("a").ready, story.gate("a").probe) == (1, True, "a#1")
    assert story.record("a", due).probe_ready
    before = story.gate("a")
    story.advance_to(9999)
    assert story.gate("a") == before, "a permit that nobody spends waits for demand"


def test_backoff_doubles_up_to_its_maximum() -> None:
    """15 → 600 s; a permit's number is never given twice."""
    story, now, delays = closed(B), 0.0, []
    for permit in range(1, 9):
        delays.append((story.next_probe("a") - now, story.gate("a").backoff_seconds))
        now = story.next_probe("a")
        assert story.probe("a", now) == permit
        story.fold(now, requested(A, f"p-{permit}", permit), refused(A, worker_id=f"p-{permit}", permit=permit))
        assert story.gate("a").failed_probes == permit
    assert [backoff for _, backoff in delays] == [15, 30, 60, 120, 240, 480, 600, 600]
    assert all(backoff / 2 <= delay <= backoff for delay, backoff in delays)
    assert len({delay / backoff for delay, backoff in delays}) > 6, "each number has its own jitter"


def test_success_of_the_permit_opens() -> None:
    """Open again with a small window that grows again."""
    story = closed(B)
    permit = story.probe("a", 20)
    story.fold(20, requested(A, "p", permit))
    assert not story.record("a", 20).probe_ready, "it is spent"
    story.fold(22, launched(A, "p", permit))
    assert story.record("a", 22).state == "open"
    assert story.row("a").launch.window == 2
    story.fold(23, *(launched(A, f"w-{n}") for n in range(3)))
    assert story.row("a").launch.window == 5
    story.close(A, 30)
    assert story.probe("a", 60) == 2, "numbers go on over the config's life"


@pytest.mark.parametrize("permit", [None, 0, 2])
def test_success_without_the_permit_does_not_open(permit: int | None) -> None:
    """A launch begun before the outage may still succeed; only a probe proves that launching works again."""
    story = closed(B)
    story.probe("a", 20)
    story.fold(20, launched(A, "w", permit))
    assert story.gate("a").closed


def test_an_old_permit_settles_nothing() -> None:
    """Its number was answered, or taken back: the one that is under way decides."""
    story = closed(B)
    story.fold(20, requested(A, "p", story.probe("a", 20)), refused(A, worker_id="p", permit=1))
    story.fold(99, requested(A, "q", story.probe("a", 99)))
    before = story.gate("a")
    for late in (launched(A, "p", 1), refused(A, worker_id="p", permit=1), stopped(A, "p", 1), lost(A, None, "p", 1)):
        story.fold(100, late)
        assert story.gate("a").closed
        assert (story.gate("a").probe, story.gate("a").failed_probes) == (before.probe, before.failed_probes)


GIVEN_BACK: Final = [
    stopped(A, "q", 2),
    stopping(A, None, "q", 2),
    refused(A, Scope.LIMITER, "q", 2),
    refused(A, Scope.NOTHING, "q", 2),
    refused(A, Scope.UNKNOWN, "q", 2),
    refused(A, Scope.QUOTA, "q", 2),  # that is another gate's answer
    lost(A, None, "q", 2),
]


@pytest.mark.parametrize("event", GIVEN_BACK, ids=lambda event: type(event).__name__)
def test_permit_is_given_again_when_nothing_was_learned(event: WorkerEvent) -> None:
    """Under a new number, soon, and the backoff stays."""
    story = closed(B)
    story.fold(20, requested(A, "p", story.probe("a", 20)), refused(A, worker_id="p", permit=1))
    story.fold(60, requested(A, "q", story.probe("a", 60)))
    story.fold(100, event)
    gate = story.gate("a")
    assert (gate.closed, gate.probe, gate.failed_probes, gate.backoff_seconds) == (True, "", 1, 30)
    assert 107.5 <= story.next_probe("a") <= 115
    assert story.probe("a", 115) == 3


def test_a_delayed_probe_keeps_its_permit() -> None:
    """It waits for another attempt: a second one beside it would be one too many."""
    story = closed(B)
    story.fold(20, requested(A, "p", story.probe("a", 20)), delayed(A, "p", 1))
    for at in range(1000, 3600, 1000):
        story.advance_to(at)
        story.fold(at, delayed(A, "p", 1))
    story.advance_to(3600)
    assert (story.gate("a").probe, story.row("a").permit) == ("a#1", 1)
    story.fold(3600, launched(A, "p", 1))
    assert not story.gate("a").closed


# What is heard of a probe before the rest is lost, what closes, and when the last word is over.
LOST_PROBES: Final[list[tuple[list[WorkerEvent], Stage, float]]] = [
    ([], Stage.LAUNCH, POLICY.unspent_seconds),
    ([requested(A, "p", 1)], Stage.LAUNCH, POLICY.unheard_seconds),
    ([requested(A, "p", 1), launched(A, "p", 1), registered(A, "p", 1)], Stage.CLAIM, POLICY.unheard_seconds),
]


@pytest.mark.parametrize(("heard", "stage", "seconds"), LOST_PROBES)
def test_a_probe_that_is_lost_is_made_again(heard: list[WorkerEvent], stage: Stage, seconds: float) -> None:
    """Its outcome may have died on its way. It is given back without an answer: the next one comes soon."""
    story = Story(A, B)
    story.fold(0, *(launched(A, str(n)) for n in range(5)), *(registered(A, str(n)) for n in range(5)))
    story.fold(1, *(stopping(A, fails(Scope.CONFIG, stage), str(n)) for n in range(5)))
    assert story.probe("a", 20) == 1
    since = story.gate("a", stage.value).probe_at - T0 if not heard else 20.0
    story.fold(20, *heard)
    story.advance_to(since + seconds - 1)
    assert (story.gate("a", stage.value).probe, story.row("a").ready) == ("a#1", True)
    story.advance_to(since + seconds)
    gate = story.gate("a", stage.value)
    assert (gate.closed, gate.probe, gate.failed_probes, story.row("a").ready) == (True, "", 0, False)
    assert story.probe("a", since + seconds + 15) == 2


def test_a_probe_is_not_lost_while_it_boots() -> None:
    """However long that may take: late it is settled anyway."""
    slow = POLICY.unheard_seconds * 3
    story = Story(A, B, policies={"on-demand": msgspec.structs.replace(POLICY, late_seconds=slow)})
    story.fold(0, *(launched(A, str(n)) for n in range(5)))
    story.fold(1, *(stopping(A, fails(Scope.CONFIG, Stage.BOOT), str(n)) for n in range(5)))
    permit = story.probe("a", 20)
    story.fold(20, requested(A, "p", permit), launched(A, "p", permit))
    story.advance_to(slow)
    assert story.gate("a", "boot").probe == "a#1"
    story.fold(slow, registered(A, "p", permit))
    assert not story.gate("a", "boot").closed


def test_a_config_that_was_forgotten_and_comes_back_goes_on_with_its_numbers() -> None:
    """Whoever has spent one of them remembers it for longer: the same number again would never be spent."""
    for outcome_first in (False, True):
        story = closed(B)
        given = story.probe("a", 20)
        story.declare(config("a", state="archived", revision=2), 30)
        back = 40 + FORGOTTEN_AFTER_SECONDS
        story.advance_to(back)
        assert "a" not in story.world.rows
        if outcome_first:
            story.fold(back, stopped(A, "late"))
        story.declare(config("a", revision=3), back)
        assert story.record("a", back).probe_permit is None
        story.close(A, back)
        assert story.probe("a", back + 15) > given


def test_end_of_a_settled_probe_s_worker_changes_nothing() -> None:
    """Its later events carry the number too."""
    story = closed(B)
    story.fold(20, requested(A, "p", story.probe("a", 20)), launched(A, "p", 1))
    story.close(A, 30)
    before = story.gate("a")
    story.fold(40, registered(A, "p", 1), claimed(A, "p", 1), stopping(A, None, "p", 1), stopped(A, "p", 1))
    assert story.gate("a") == msgspec.structs.replace(before, unconfirmed=story.gate("a").unconfirmed)


def test_a_relapse_goes_on_with_its_delay() -> None:
    """Halved per half hour since the last probe; and one refusal is enough until it has proven itself."""
    story, now = closed(B), 0.0
    for permit in range(1, 6):
        now = story.next_probe("a")
        story.fold(now, requested(A, f"p-{permit}", story.probe("a", now)))
        if permit < 5:
            story.fold(now, refused(A, worker_id=f"p-{permit}", permit=permit))
    story.fold(now, launched(A, "p-5", 5))
    for later, delay in ((60, 234.5), (1800, 120), (9000, 15)):
        again = Story(A, B)
        for word, what, at in story.log[2:]:
            again.advance(at - T0) if word == "advance" else again.fold(at - T0, what)
        again.fold(now + later, refused(A, worker_id="x"))
        assert again.gate("a").closed
        assert again.gate("a").backoff_seconds == pytest.approx(delay, rel=0.01)
    story.fold(now + 1, launched(A, "w-1"))
    story.fold(now + 2, refused(A, worker_id="x"))
    assert not story.gate("a").closed, "proven again by the probe and one more"


def test_a_probe_of_a_boot_is_answered_by_its_boot() -> None:
    """A launch that is accepted says nothing of an image; a late boot answers no until it comes after all."""
    story = Story(A)
    story.fold(0, *(launched(A, f"w-{n}") for n in range(5)))
    permit = story.probe("a", 320)
    story.fold(320, requested(A, "p", permit), launched(A, "p", permit))
    assert story.gate("a", "boot").probe == story.gate(IMAGE, "boot").probe == "a#1"
    story.advance_to(620)
    assert story.gate(IMAGE, "boot").failed_probes == story.gate("a", "boot").failed_probes == 1
    story.fold(710, registered(A, "p", permit, seconds=390.0))
    assert story.record("a", 710).state == "open"
    assert story.row(IMAGE).boot.window == 2


def test_a_gate_closed_by_late_boots_opens_when_they_come_and_not_when_we_end_them() -> None:
    """Slow is not bad. But that we have given up on them says nothing for them."""
    for ends, opens in ((registered, True), (stopped, False)):
        story = Story(A)
        story.fold(0, *(launched(A, f"w-{n}") for n in range(7)))
        story.advance_to(301)
        story.fold(302, ends(A, "w-0"), ends(A, "w-1"))
        assert story.record("a", 303).state == "closed", "five are still late"
        story.fold(304, ends(A, "w-2"))
        assert (story.record("a", 305).state == "open") is opens


# Several gates, several configs


def test_a_permit_answers_for_all_that_closes_its_config() -> None:
    """It comes when everything is due; each gate takes the answer that concerns it."""
    story = closed()
    story.close(A, 1, Scope.QUOTA)
    story.advance_to(min(story.next_probe("a"), story.next_probe(QUOTA)))
    assert not story.row("a").ready
    permit = story.probe("a", 16)
    assert story.gate("a").probe == story.gate(QUOTA).probe == "a#1"
    story.fold(20, requested(A, "p", permit), refused(A, Scope.QUOTA, "p", permit))
    assert story.gate(QUOTA).failed_probes == 1
    assert story.gate("a").failed_probes == 0
    permit = story.probe("a", 60)
    story.fold(60, requested(A, "q", permit), launched(A, "q", permit))
    assert story.record("a", 61).state == "open"


def test_a_permit_that_nobody_has_spent_makes_way_when_something_else_closes() -> None:
    """Or a start would be made where a probe of somebody else is under way."""
    story = closed(B)
    assert story.probe("a", 20) == 1
    story.fold(21, refused(A, Scope.QUOTA, "x"), refused(A, Scope.QUOTA, "y"))
    assert not story.record("a", 21).probe_ready
    story.advance_to(40)
    holders = {story.gate(key).probe for key in ("a", QUOTA)}
    assert holders in ({"a#2"}, {"a#1", "b#1"})
    assert story.record("a", 40).probe_ready is (holders == {"a#2"})


def test_one_probe_for_what_many_share() -> None:
    """Of a credential's ninety configs one is asked at a time, the busiest first; a success opens all."""
    others = [config(f"c{n}", pool=f"p{n}", instance_type=f"t{n}.x") for n in range(90)]
    story = Story(*others)
    story.fold(0, launched(others[42], "busy"))
    story.close(others[7], 1, Scope.CREDENTIAL)
    story.advance_to(100)
    ready = [c.launch_config_id for c in others if story.record(c.launch_config_id, 100).probe_ready]
    assert ready == ["c42"]
    story.fold(100, requested(others[42], "p", 1), launched(others[42], "p", 1))
    assert {story.record(c.launch_config_id, 101).state for c in others} == {"open"}


def test_what_somebody_else_probes_is_waited_for() -> None:
    """b is due by its own gate; the credential that closes it too is being asked already."""
    story = Story(A, B)
    story.fold(0, launched(A, "v"))
    story.close(A, 1, Scope.CREDENTIAL)
    story.fold(17, requested(A, "p", story.probe("a", 16)))
    story.close(B, 18)
    story.advance_to(600)
    assert (story.gate(CREDENTIAL).probe, story.row("b").permit) == ("a#1", 0)
    story.fold(600, launched(A, "p", 1))
    story.advance(600)
    assert story.gate("b").probe == "b#1"


def test_a_shared_permit_without_demand_goes_to_another() -> None:
    """Whoever let one lapse comes last from then on; alone it keeps it."""
    for others, permits in (((B,), [("b", 1), ("a", 2), ("b", 2)]), ((), [("a", 1)] * 3)):
        story = Story(A, *others)
        story.fold(0, launched(A, "v"))
        story.close(A, 1, Scope.CREDENTIAL)
        story.advance_to(16)
        assert story.gate(CREDENTIAL).probe == "a#1"
        since = story.gate(CREDENTIAL).probe_at - T0
        for n, (config_id, permit) in enumerate(permits, 1):
            story.advance_to(since + n * POLICY.permit_seconds - 1)
            story.advance_to(since + n * POLICY.permit_seconds)
            assert story.gate(CREDENTIAL).probe == f"{config_id}#{permit}"


def test_a_permit_that_was_taken_back_and_spent_all_the_same() -> None:
    """The order reached the provisioner too late: it holds again what nobody else has got, else it settles nothing."""
    story = Story(A, B)
    story.fold(0, launched(A, "v"))
    story.close(A, 1, Scope.CREDENTIAL)
    permit = story.probe("a", 16)
    story.declare(config("a", state="paused", revision=2), 17)
    assert story.gate(CREDENTIAL).probe == ""
    story.fold(18, requested(A, "p", permit))
    assert story.gate(CREDENTIAL).probe == "a#1"
    story.advance_to(400)
    assert story.row("b").permit == 0
    story.fold(401, launched(A, "p", permit))
    assert story.record("b", 402).state == "open"


@pytest.mark.parametrize("state", ["paused", "draining", "archived"])
def test_a_config_that_is_not_active_gives_its_permit_back(state: str) -> None:
    """Others wait for the answer. One that is spent already will still tell."""
    for spends in (False, True):
        story = Story(A, B)
        story.fold(0, launched(A, "v"))
        story.close(A, 1, Scope.CREDENTIAL)
        permit = story.probe("a", 16)
        if spends:
            story.fold(17, requested(A, "p", permit))
        story.declare(config("a", state=state, revision=2), 18)
        story.advance(18)
        assert story.gate(CREDENTIAL).probe == ("a#1" if spends else "b#1")
        story.fold(19, stopped(A, "p", permit))
        story.advance_to(60)
        assert story.gate(CREDENTIAL).probe == "b#1"
    story.declare(config("a", revision=3), 61)
    assert story.record("a", 61).state == "closed"


def test_nobody_probes_for_what_is_not_active_and_who_comes_later_does() -> None:
    """Whatever was due meanwhile is due at once for the next that is active."""
    paused = config("a", state="paused")
    story = Story(paused)
    story.close(paused, 0, Scope.QUOTA)
    story.advance_to(3000)
    assert story.row("a").permit == 0
    story.declare(B, 3000)
    story.advance(3000)
    assert story.gate(QUOTA).probe == "b#1"
    again = Story(paused)
    again.close(paused)
    again.declare(config("a", revision=2), 3000)
    again.advance(3000)
    assert again.row("a").ready


# The whole pool


def all_closed(scope: Scope = Scope.CAPACITY, *, long: bool = True) -> Story:
    """Everything in the pool is closed; `long`: and has been probed until its delays are long."""
    story = Story(A, B)
    for c in (A, B):
        story.close(c, 0, scope)
    if long:
        spend(story, 1800)
    return story


def spend(story: Story, until: float, *configs: LaunchConfigState) -> list[float]:
    """Spend every permit at once until then, in vain; when each was."""
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


def test_a_pool_that_is_closed_altogether_is_tried_every_30_seconds() -> None:
    """Whatever the delay of each has grown to; and not sooner than that once the delays are longer."""
    story = all_closed()
    assert all(story.gate(id_).backoff_seconds == 600 for id_ in ("a", "b"))
    spent = spend(story, 3600)
    gaps = [later - sooner for sooner, later in pairwise(spent)]
    assert len(spent) == pytest.approx(1800 / 30, abs=4)
    assert max(gaps) <= 30 + 1e-6


def test_one_open_config_is_enough_for_a_pool() -> None:
    """Then each waits for its own delay."""
    story = all_closed()
    story.declare(C, 1800)
    assert len(spend(story, 3600)) <= 10


def test_the_only_open_config_is_paused() -> None:
    """Then everything that is left is closed, and owed a probe in 30 s."""
    story = all_closed()
    story.declare(C, 1800)
    story.advance(1810)
    before = story.row("a").permit + story.row("b").permit
    story.declare(config("c", state="paused", revision=2), 1810)
    story.advance_to(1841)
    assert story.row("a").permit + story.row("b").permit > before


def test_a_pool_closed_by_boots_is_not_tried_sooner() -> None:
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


def test_a_signal_that_closes_the_rest_of_a_pool_counts() -> None:
    """And its end is an opening."""
    story = all_closed()
    story.declare(C, 1800)
    assert story.signal(said("down", "config", "c", 1801, ttl_seconds=300.0), 1801) == ""
    assert len(spend(story, 2100)) >= 8
    assert len(spend(story, 2400)) <= 2


def test_a_re_open_has_peers_probed_that_closed_with_it() -> None:
    """Within three minutes of each other, in the same pool, and for their launches alone."""
    later, other = config("d"), config("o", pool="other")
    story = Story(A, B, C, later, other)
    for c, at in ((A, 0.0), (B, 170.0), (later, 190.0), (other, 0.0)):
        story.close(c, at)
    story.fold(170, *(lost(B, fails(Scope.CONFIG, Stage.BOOT), f"w-{n}") for n in range(5)))
    spend(story, 3600, A, B, later, other)
    at = story.next_probe("a")
    spend(story, at - 0.001, B, later, other)
    before, boot = {id_: story.gate(id_) for id_ in ("b", "d", "o")}, story.gate("b", "boot")
    story.fold(at, requested(A, "p", story.probe("a", at)), launched(A, "p", story.row("a").permit))
    assert before["b"].next_probe_at > T0 + at
    assert story.gate("b") == msgspec.structs.replace(before["b"], next_probe_at=T0 + at)
    assert (story.gate("d"), story.gate("o"), story.gate("b", "boot")) == (before["d"], before["o"], boot)


def test_a_probe_that_failed_just_now_is_not_pulled() -> None:
    """However often somebody says that all is well: a delay lies between two probes."""
    story = closed(B)
    story.fold(20, requested(A, "p", story.probe("a", 20)), refused(A, worker_id="p", permit=1))
    for at in (21, 22, 23):
        story.signal(said("recovered", "config", "a", at), at)
    assert story.next_probe("a") == pytest.approx(story.gate("a").probe_at - T0 + 15)
