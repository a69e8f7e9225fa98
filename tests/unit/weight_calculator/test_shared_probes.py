"""Probes of keys that several configs share: whose turn it is, and who lets a permit go."""

from typing import Final

import pytest
from msgspec.structs import replace

from slipway_api.events.worker import Scope, Stage
from slipway_weight_calculator.domain.trips import Probe
from tests.support.worlds import (
    CREDENTIAL,
    IMAGE,
    POLICY,
    QUOTA,
    T0,
    A,
    B,
    Story,
    capacity,
    config,
    delayed,
    fails,
    launched,
    refused,
    requested,
    signal_event,
    stopped,
    stopping,
)


def test_one_probe_for_a_shared_key() -> None:
    """Of ninety configs with one credential, one probes at a time, the busiest first; a success recovers all."""
    others = [config(f"c{n}", pool=f"p{n}", instance_type=f"t{n}.x") for n in range(90)]
    story = Story(*others)
    story.fold(0, launched(others[42], "busy"))
    story.trip_config(others[7], 1, Scope.CREDENTIAL)
    story.advance_to(100)
    ready = [c.launch_config_id for c in others if story.record(c.launch_config_id, 100).probe_ready]
    assert ready == ["c42"]
    story.fold(100, requested(others[42], "p", 1), launched(others[42], "p", 1))
    assert {story.record(c.launch_config_id, 101).state for c in others} == {"healthy"}


def test_a_config_waits_for_the_probe_of_another() -> None:
    """The probe of b is due, but its credential is being probed by a already."""
    story = Story(A, B)
    story.fold(0, launched(A, "v"))
    story.trip_config(A, 1, Scope.CREDENTIAL)
    story.fold(17, requested(A, "p", story.probe("a", 16)))
    story.trip_config(B, 18)
    story.advance_to(600)
    assert (story.trip(CREDENTIAL).probe, story.row("b").permit) == (Probe("a", 1), 0)
    story.fold(600, launched(A, "p", 1))
    story.advance(600)
    assert story.trip(capacity("b")).probe == Probe("b", 1)


def test_a_shared_permit_without_demand_goes_to_another() -> None:
    """A config that let a permit lapse comes last from then on; alone it keeps its permit."""
    in_turn, alone = [("b", 1), ("a", 2), ("b", 2)], [("a", 1)] * 3
    healthy, paused = config("c", account="sim-b"), config("b", state="paused")
    for others, permits in (((B,), in_turn), ((B, healthy), in_turn), ((), alone), ((paused,), alone)):
        story = Story(A, *others)
        story.fold(0, launched(A, "v"))
        story.trip_config(A, 1, Scope.CREDENTIAL)
        story.advance_to(16)
        assert story.trip(CREDENTIAL).probe == Probe("a", 1)
        since = story.trip(CREDENTIAL).probe_at - T0
        for n, (config_id, permit) in enumerate(permits, 1):
            story.advance_to(since + n * POLICY.permit_seconds - 1)
            story.advance_to(since + n * POLICY.permit_seconds)
            assert story.trip(CREDENTIAL).probe == Probe(config_id, permit)
            assert story.row("a").ready is (config_id == "a")


def test_a_permit_that_lapsed_in_an_earlier_trip_is_forgotten() -> None:
    """The busiest config probes first again."""
    story = Story(A, B, config("c", account="sim-b"))
    story.fold(0, launched(A, "v"))
    story.trip_config(A, 1, Scope.CREDENTIAL)
    story.advance_to(200)
    assert story.trip(CREDENTIAL).probe == Probe("b", 1)
    assert story.row("a").unanswered_at > 0.0
    story.fold(201, requested(B, "p", 1), launched(B, "p", 1), launched(A, "w"), launched(A, "x"))
    story.trip_config(A, 500, Scope.CREDENTIAL)
    story.advance_to(story.next_probe(CREDENTIAL))
    assert story.trip(CREDENTIAL).probe == Probe("a", 2)


def test_a_shared_key_is_probed_by_the_first_config_that_can() -> None:
    """At the same time: one that is paused, is down by a signal, or has another trip to wait for keeps none of them."""
    for blocked in ("paused", "signal", "trip"):
        story = Story(A, B, config("c", account="sim-b"))
        story.fold(0, launched(A, "v"), launched(A, "w"))
        story.trip_config(A, 1, Scope.CREDENTIAL)
        due = story.next_probe(CREDENTIAL)
        if blocked == "paused":
            story.declare(config("a", state="paused", revision=2), 2)
        elif blocked == "signal":
            story.signal(signal_event("down", "config", "a"), 2)
        else:
            story.trip_config(A, due - 1)
        story.advance_to(due)
        assert story.trip(CREDENTIAL).probe == Probe("b", 1), blocked


def test_a_config_does_not_probe_a_key_while_another_of_its_keys_is_probed() -> None:
    other, unlike = config("x", account="sim-b"), config("b", image_revision="linux-2")
    story = Story(A, unlike, other)
    story.fold(-1, launched(other, "v"))
    story.fold(0, *(refused(other, Scope.IMAGE, str(n)) for n in range(5)))
    story.fold(16, requested(other, "p", story.probe("x", 16)))
    story.fold(17, launched(A, "w"))
    story.trip_config(A, 18, Scope.CREDENTIAL)
    story.advance_to(story.next_probe(CREDENTIAL))
    assert (story.trip(IMAGE).probe, story.trip(CREDENTIAL).probe) == (Probe("x", 1), Probe("b", 1))


def test_an_outcome_answers_for_the_keys_that_waited_for_it() -> None:
    """Also if another of the config's keys, before these, is probed by another config."""
    other = config("x", account="sim-b")
    story = Story(A, other)
    story.trip_config(A, 0, Scope.CREDENTIAL)
    permit = story.probe("a", 16)
    story.fold(17, requested(A, "p", permit))
    story.fold(18, *(stopping(other, fails(Scope.IMAGE, Stage.BOOT), str(n)) for n in range(5)))
    story.advance_to(60)
    assert story.trip(IMAGE, "boot").probe == Probe("x", 1)
    story.fold(61, launched(A, "p", permit))
    assert (story.trip(CREDENTIAL).tripped, story.trip(IMAGE, "boot").probe) == (False, Probe("x", 1))


def test_a_probe_that_is_delayed_is_lost_later() -> None:
    story = Story(A, B)
    story.trip_config(A, 0)
    permit = story.probe("a", 20)
    story.fold(20, requested(A, "p", permit))
    story.fold(100, delayed(A, "p", permit))
    for at, waits in ((20, True), (99, True), (100, False)):
        story.advance(at + POLICY.probe_timeout_seconds)
        assert (story.trip(capacity("a")).probe == Probe("a", permit)) is waits


def test_a_config_does_not_probe_a_stage_that_it_does_not_have() -> None:
    """An image whose claims fail is probed by a config whose workers claim."""
    idle = config("n", claim_evidence="none")
    story = Story(A, idle)
    story.fold(0, *(stopping(A, fails(Scope.IMAGE, Stage.CLAIM), str(n)) for n in range(5)))
    story.fold(1, launched(idle, "busiest"))
    story.advance_to(60)
    assert (story.trip(IMAGE, "claim").probe, story.row("n").permit) == (Probe("a", 1), 0)


def test_a_withdrawn_permit_that_was_spent() -> None:
    """A permit that was withdrawn too late covers the trips again that no other probe covers."""
    story = Story(A, B)
    story.fold(0, launched(A, "v"))
    story.trip_config(A, 1, Scope.CREDENTIAL)
    permit = story.probe("a", 16)
    story.declare(config("a", state="paused", revision=2), 17)
    assert story.trip(CREDENTIAL).probe is None
    story.fold(18, requested(A, "p", permit))
    trip, row = story.trip(CREDENTIAL), story.row("a")
    assert (trip.probe, trip.probe_at, row.ready, row.spent) == (Probe("a", 1), T0 + 18, True, True)
    story.advance_to(400)
    assert story.row("b").permit == 0
    story.fold(401, launched(A, "p", permit))
    assert story.record("b", 402).state == "healthy"


SLOW: Final = {"on-demand": replace(POLICY, probe_initial_seconds=900.0)}  # but for probes of whole pools
EVERY: Final = POLICY.pool_probe_seconds


@pytest.mark.parametrize(("waits", "gets"), [("a", "b"), ("b", "a")])
def test_a_permit_that_waits_for_demand_blocks_no_other_config_of_a_tripped_pool(waits: str, gets: str) -> None:
    """The one that would be probed first by its own delay comes first."""
    story = Story(A, B, policies=SLOW)
    story.trip_config(story.world.configs[waits].declared, 0)
    story.trip_config(story.world.configs[gets].declared, 400)
    assert story.next_probe(capacity(waits)) < story.next_probe(capacity(gets))
    story.advance_to(400 + EVERY)
    assert {id_ for id_ in "ab" if story.row(id_).ready} == {waits}
    story.advance_to(400 + 2 * EVERY)
    assert {id_ for id_ in "ab" if story.row(id_).ready} == {waits, gets}


def test_a_tripped_pool_probes_no_key_that_another_pool_has_just_probed() -> None:
    """It waits for that answer as for one of its own, and probes another of its keys meanwhile, if it has one."""
    unlike = config("b", instance_type="c5.large")
    for others, gets, at in (((), "a", 2 * EVERY), ((unlike,), "b", 20 + EVERY)):
        far = config("x", pool="far")
        story = Story(A, far, *others, policies=SLOW)
        story.trip_config(A, 0, Scope.QUOTA)
        if others:
            story.trip_config(unlike, 20)
        story.advance_to(EVERY)
        assert story.trip(QUOTA).probe == Probe("x", 1)
        story.fold(EVERY + 1, requested(far, "p", 1), refused(far, Scope.QUOTA, "p", 1))
        story.declare(config("y", pool="far", instance_type="c5.large"), EVERY + 1)
        story.advance_to(at - 0.1)
        assert not any(story.row(id_).ready for id_ in ("a", gets))
        story.advance_to(at)
        assert [id_ for id_ in ("a", *(c.launch_config_id for c in others)) if story.row(id_).ready] == [gets]


@pytest.mark.parametrize("state", ["paused", "draining", "archived"])
def test_an_inactive_config_returns_its_permit(state: str) -> None:
    """Other configs wait for the answer; a permit that is spent already will still be answered."""
    for spends in (False, True):
        story = Story(A, B)
        story.fold(0, launched(A, "v"))
        story.trip_config(A, 1, Scope.CREDENTIAL)
        permit = story.probe("a", 16)
        if spends:
            story.fold(17, requested(A, "p", permit))
        story.declare(config("a", state=state, revision=2), 18)
        row = story.row("a")
        assert (row.ready, row.unanswered_at) == ((True, 0.0) if spends else (False, T0 + 18))
        story.advance(18)
        assert story.trip(CREDENTIAL).probe == (Probe("a", 1) if spends else Probe("b", 1))
        story.fold(19, stopped(A, "p", permit))
        story.advance_to(60)
        assert story.trip(CREDENTIAL).probe == Probe("b", 1)
    story.declare(config("a", revision=3), 61)
    assert story.record("a", 61).state != "healthy"


def test_a_config_without_a_permit_has_none_to_return() -> None:
    """Else it would come last, as if it had let one lapse."""
    story = Story(A, B)
    before = story.row("a")
    story.declare(config("a", state="paused", revision=2), 18)
    assert story.row("a") == before


def test_no_probe_without_active_configs() -> None:
    """An overdue probe is issued at once to the next config that becomes active."""
    paused = config("a", state="paused")
    story = Story(paused)
    story.trip_config(paused, 0, Scope.QUOTA)
    story.advance_to(3000)
    assert story.row("a").permit == 0
    story.declare(B, 3000)
    story.advance(3000)
    assert story.trip(QUOTA).probe == Probe("b", 1)
    again = Story(paused)
    again.trip_config(paused)
    again.declare(config("a", revision=2), 3000)
    again.advance(3000)
    assert again.row("a").ready
