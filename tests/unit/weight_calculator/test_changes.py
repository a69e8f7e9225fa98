"""Changes of rows in detail: what a success or a recovery moves beside its own row, what a draft knows before it is
committed, and what is left of a config."""

from typing import Final

import pytest
from msgspec.structs import replace

from slipway_api.events.launch_config import LaunchConfigState
from slipway_api.events.scopes import Key, config_key, image_key
from slipway_api.events.worker import Scope, Stage, WorkerEvent
from slipway_weight_calculator.domain import evidence, health
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.probes import UNDECLARED_KEPT_SECONDS
from slipway_weight_calculator.domain.record import failure_text
from slipway_weight_calculator.domain.rows import Boot, config_of, named_by, new_row, new_shared_row, undeclared
from slipway_weight_calculator.domain.trips import Failure
from slipway_weight_calculator.domain.weights import chances
from slipway_weight_calculator.domain.world import advance, commit, count_folded, discard, fold
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
    fails,
    known_boots,
    launched,
    refused,
    registered,
    reloaded,
    requested,
    stopping,
    stored,
)

# What an outcome moves.


def test_a_success_is_counted_in_a_shared_row_while_it_changes_something() -> None:
    """Until the window is as large as before, and that of a capacity until its failures lower no weight any more."""
    story = Story(A)
    story.fold(0, refused(A, Scope.QUOTA), refused(A))
    counted = {QUOTA: 0, CAPACITY: 0}
    for number in range(80):
        before = {key: story.row(key) for key in counted}
        story.fold(1, launched(A, f"w{number}"))
        for key, row in before.items():
            counted[key] += story.row(key) is not row
    assert (story.row(QUOTA).launch.window, story.row(CAPACITY).launch.window) == (64.0, 64.0)
    assert story.row(CAPACITY).launch.failures <= 0.01
    assert counted == {QUOTA: 32, CAPACITY: 64}


def test_claims_of_a_config_without_evidence_of_them_move_nothing() -> None:
    silent = config("a", claim_evidence="none")
    story = Story(silent)
    before = stored(story.world)
    story.fold(0, claimed(silent))
    assert stored(story.world) == before


def test_rows_that_trip_together_are_probed_one_after_another() -> None:
    """Each has a jitter of its own."""
    story = Story(A, B)
    for c in (A, B):
        story.fold(0, *(refused(c, Scope.CONFIG, f"{c.launch_config_id}{n}") for n in range(5)))
    assert story.next_probe("a") != story.next_probe("b")


SLOW_PROBES: Final = {"on-demand": replace(POLICY, probe_initial_seconds=900.0)}


def test_a_recovered_launch_brings_the_probes_of_siblings_forward() -> None:
    """Of those of its pool that tripped within three minutes of it, by their own launches or their capacity, since
    their outage may have ended, too; not those of their boots, and none for a recovered boot."""
    edge, early, far = config("e"), config("f"), config("g", pool="other")
    both = config("x", image_revision="linux-9")
    story = Story(A, B, edge, early, far, both, policies=SLOW_PROBES)
    for at, c in ((0, A), (50, B), (-180, edge), (-181, early), (50, far)):
        story.trip_config(c, at)
    story.fold(60, *(refused(both, Scope.CONFIG, f"l{n}") for n in range(5)))
    story.fold(60, *(stopping(both, fails(Scope.IMAGE, Stage.BOOT), f"b{n}") for n in range(5)))
    image = image_key("linux-9")
    trips: dict[str, tuple[Key | str, str]] = {
        "b": (capacity("b"), "launch"),
        "edge": (capacity("e"), "launch"),
        "early": (capacity("f"), "launch"),
        "far": (capacity("g"), "launch"),
        "x launch": ("x", "launch"),
        "x boot": ("x", "boot"),
        "x image": (image, "boot"),
    }

    def brought(recovered: str, key: Key, stage: str) -> set[str]:
        draft = Draft(story.world)
        health.recover(draft, story.world.configs[recovered], key, stage, T0 + 100)
        rows = {name: draft.row(key if isinstance(key, Key) else config_key(key)) for name, (key, _) in trips.items()}
        return {name for name, row in rows.items() if getattr(row, trips[name][1]).trip.next_probe_at == T0 + 100}

    assert all(story.next_probe(*trip) > 100 for trip in trips.values())
    assert brought("a", CAPACITY, "launch") == {"b", "edge", "x launch"}
    assert brought("x", image, "boot") == set()


@pytest.mark.parametrize("scope", [Scope.IMAGE, Scope.QUOTA])
def test_a_config_that_joins_a_tripped_key_may_probe_it(scope: Scope) -> None:
    """Nothing else would: the only other one is archived."""
    story = Story(A)
    story.trip_config(A, 0, Scope.QUOTA) if scope is Scope.QUOTA else story.fold(
        0, *(refused(A, Scope.IMAGE, f"w{n}") for n in range(5))
    )
    story.declare(replace(A, state="archived", revision=2), 1)
    story.advance_to(100)
    story.declare(B, 101)
    story.advance_to(101)
    assert story.row("b").ready


def test_an_image_error_that_names_another_image_is_charged_to_its_config() -> None:
    """One that names the declared image, or none, to the image."""
    for named, charged in (("linux-9", "a"), ("linux-1", IMAGE), ("", IMAGE)):
        story = Story(A)
        story.fold(0, refused(A, Scope.IMAGE, key=named))
        assert story.row(charged).launch.failed == 1
        assert (IMAGE in story.world.rows) == (charged is IMAGE)


# Boots.


def unregistered(worker_id: str, scope: Scope = Scope.IMAGE) -> WorkerEvent:
    """A start that was terminated before it registered."""
    return replace(registered(A, worker_id), outcome=fails(scope, Stage.BOOT))


def test_a_registration_that_failed_is_a_failed_boot() -> None:
    story = Story(A)
    story.fold(0, launched(A, "w"))
    story.fold(60, unregistered("w"))
    boot = story.row("a").boot
    assert (boot.failed, boot.succeeded, boot.folded, boot.at) == (1, 0, 1, T0 + 60)
    assert (story.row(IMAGE).boot.failed, story.world.boots) == (1, {})


def test_a_registration_before_the_reply_of_the_launch_call_is_remembered() -> None:
    """With its config, so that it goes with that, and until the reply, also within one commit."""
    story = Story(A)
    draft = Draft(story.world)
    fold(draft, registered(A, "w"), T0)
    assert draft.boots == {"w": Boot("a", IMAGE, T0, registered=True)}
    fold(draft, launched(A, "w"), T0 + 1)
    commit(draft)
    assert story.world.boots == {}
    story.fold(2, registered(A, "w2"))
    story.forget("a", 3)
    assert story.world.boots == {}


def test_a_trip_by_late_boots_ends_when_one_registers() -> None:
    """At that time. One whose start fails after all keeps its failure, since when it was late."""
    story = Story(A)
    story.fold(-1000, *known_boots(A), *(launched(A, f"w{n}") for n in range(5)))
    story.advance_to(-800)
    assert story.trip(IMAGE, "boot").tripped
    story.fold(-600, registered(A, "w1", seconds=400.0))
    trip = story.trip(IMAGE, "boot")
    assert (trip.tripped, trip.recovered_at) == (False, T0 - 600)
    story.fold(-500, launched(A, "w"))
    story.advance_to(100)
    story.fold(200, stopping(A, fails(Scope.IMAGE, Stage.BOOT), "w"))
    (last,) = (failure for failure in story.trip(IMAGE, "boot").run if failure.worker_id == "w")
    assert (last.at, last.late) == (T0 + 100, False)


def test_a_proven_image_that_trips_by_its_boots_has_an_outage() -> None:
    """Its failures have one cause, and are forgotten at its end."""
    story = Story(A)
    story.fold(-1000, *known_boots(A, *[100.0] * 20))
    for number in range(5):
        story.fold(number, stopping(A, fails(Scope.IMAGE, Stage.BOOT), f"w{number}"))
    assert story.trip(IMAGE, "boot").tripped
    assert story.row(IMAGE).boot.boots.aside == 4.0


def test_a_boot_ends_a_run_of_failures() -> None:
    story = Story(A)
    story.fold(10, stopping(A, fails(Scope.IMAGE, Stage.BOOT), "w"))
    assert story.trip(IMAGE, "boot").unconfirmed == 1
    story.fold(20, registered(A, "v"))
    assert (story.trip(IMAGE, "boot").unconfirmed, story.trip(IMAGE, "boot").run) == (0, ())


def test_a_late_probe_that_registers_recovers_the_boots_that_waited_for_it() -> None:
    """And no launches, which have tripped meanwhile."""
    story = Story(A)
    story.fold(-1000, *known_boots(A))
    for number in range(5):
        story.fold(0, stopping(A, fails(Scope.IMAGE, Stage.BOOT), f"w{number}"))
    permit = story.probe("a", 60)
    story.fold(61, requested(A, "p", permit), launched(A, "p", permit))
    story.advance_to(300)
    assert story.world.boots["p"].late
    story.fold(301, *(refused(A, Scope.CONFIG, f"v{number}") for number in range(5)))
    story.fold(400, registered(A, "p", permit, seconds=339.0))
    tripped = {key: story.trip(*key).tripped for key in ((IMAGE, "boot"), ("a", "boot"), ("a", "launch"))}
    assert tripped == {(IMAGE, "boot"): False, ("a", "boot"): False, ("a", "launch"): True}


def test_an_overdue_start_changes_its_image() -> None:
    """Consumers take the new window by its version."""
    story = Story(A)
    story.fold(-9000, *known_boots(A, *[100.0] * POLICY.boot_samples))
    story.fold(0, launched(A, "w"))
    before = story.row(IMAGE)
    story.advance_to(POLICY.overdue_factor * 100)
    after = story.row(IMAGE)
    assert (len(after.overdue), after.version) == (1, before.version + 1)


# Drafts.


def test_a_draft_knows_its_own_outcomes() -> None:
    """Before it is committed: a record that is published in that commit includes them, also those of siblings."""
    story = Story(A, B)
    draft, b = Draft(story.world), story.world.configs["b"]
    before = chances(draft, b, T0)["launch"]
    for number in range(3):
        fold(draft, refused(A, worker_id=f"w{number}"), T0)
    within = chances(draft, b, T0)["launch"]
    assert within < before
    commit(draft)
    assert chances(Draft(story.world), b, T0)["launch"] == within
    assert chances(Draft(story.world), b, T0 - 600)["launch"] == within  # evidence is never worth more than at its time
    story.forget("a", 1)
    assert chances(Draft(story.world), b, T0)["launch"] == before


def test_positions_of_a_draft_are_those_of_each_partition() -> None:
    draft = Draft(Story(A).world)
    for partition, offset in (("t/0", 5), ("t/1", 7), ("t/0", 6)):
        fold(draft, launched(A, f"w{offset}"), T0, partition, offset)
    fold(draft, launched(A, "w"), T0)
    assert draft.seen == {"a": {"t/0": 6, "t/1": 7}}


def test_a_draft_that_is_dropped_restores_its_timers() -> None:
    story = Story(A)
    story.trip_config(A, 0)
    due = story.world.due()
    draft = Draft(story.world)
    advance(draft, T0 + 900)
    assert draft.rows
    assert story.world.due() != due
    discard(draft)
    assert story.world.due() == due


def test_failures_are_counted_one_at_a_time() -> None:
    story = Story(A)
    draft = Draft(story.world)
    count_folded(draft, "a", "boot")
    commit(draft)
    assert story.row("a").boot.folded == 1


# What is loaded, and what is forgotten.


def test_a_world_is_loaded_with_all_that_time_alone_changes() -> None:
    """Archived configs, starts that become overdue or late, and probes that may be lost."""
    story = Story(A, B)
    story.declare(replace(B, state="archived", revision=2), 1)
    story.fold(2, *known_boots(A, *[100.0] * POLICY.boot_samples), launched(A, "w"))
    story.trip_config(A, 3)
    story.fold(20, requested(A, "p", story.probe("a", 20)))
    again = reloaded(story.world)
    assert again.configs == story.world.configs
    boot = story.world.boots["w"]
    assert boot.overdue_at == T0 + 2 + POLICY.overdue_factor * 100
    lost_at = T0 + 20 + POLICY.probe_timeout_seconds
    for world in (story.world, again):
        timers = {(boot.overdue_at, "overdue", "w"), (boot.judged_at, "boot", "w"), (lost_at, "lost", config_key("a"))}
        assert timers <= {*world.timers}


def test_a_probe_that_was_answered_is_waited_for_no_longer() -> None:
    """It may be lost only until then."""
    story = Story(A, B)
    story.trip_config(A, 0)
    story.fold(20, requested(A, "p", story.probe("a", 20)))
    story.advance_to(300)
    assert story.world.due() == T0 + 20 + POLICY.probe_timeout_seconds
    story.fold(301, launched(A, "p", 1))
    assert story.world.due() is None


def test_a_config_is_archived_once() -> None:
    """Since the first of its states that say so, until it is active again."""
    story = Story(A)
    times = []
    for revision, (at, state) in enumerate(((10, "archived"), (20, "archived"), (30, "active"), (40, "archived")), 2):
        story.declare(replace(A, state=state, revision=revision), at)
        archived_at = story.world.configs["a"].archived_at
        times.append(archived_at - T0 if archived_at else 0.0)
    assert times == [10, 10, 0, 40]


def test_a_config_known_from_an_outcome_alone() -> None:
    """It has the event's image, no place, and weighs as any; its tombstone may come before its time."""
    event = replace(refused(A), launch_config_id="a@1")
    state = LaunchConfigState(
        launch_config_id="a@1",
        name="a",
        pool_id="linux",
        account_id="sim-a",
        region="",
        zone="",
        instance_type="",
        image_revision="linux-1",
        base_weight=1.0,
        price_factor=1.0,
        state="undeclared",
        revision=0,
    )
    assert undeclared(event, T0) == config_of(state, archived_at=T0)
    story = Story()
    story.fold(0, event)
    story.forget("a@1", 1)
    story.advance_to(UNDECLARED_KEPT_SECONDS)
    assert (story.world.configs, story.world.rows) == ({}, {})


def test_numbers_of_a_row_that_comes_back_continue_above_those_that_are_known() -> None:
    """At its milliseconds: permits of a config that is not at its first revision, versions of a shared key."""
    assert [new_row(POLICY, revision, 1.5).permit for revision in (0, 1, 2)] == [1500, 0, 1500]
    assert new_shared_row(POLICY, 1.5).version == 1500
    story = Story(A)
    story.fold(0, refused(A, Scope.QUOTA))
    assert story.row(QUOTA).version == T0 * 1000 + 1


@pytest.mark.parametrize(
    ("key", "named"), [("", "linux-2"), ("aws/linux-1", "aws/linux-2"), ("sha256:1", "linux-2"), ("linux-1", "linux-2")]
)
def test_an_event_names_its_image_as_the_provider_does(key: str, named: str) -> None:
    """Before the revision that was declared, if the key ends with that."""
    declared = config_of(replace(A, image_key=key))
    event = replace(launched(A), image_revision="linux-2")
    found = named_by(event, declared)
    assert found.shared["image"] == image_key(named)
    assert found.keys == (declared.key, *found.shared.values())
    assert image_key(named) in found.credited["boot"]


# Evidence and texts.


def test_masses_stay_within_their_cap_after_any_pause() -> None:
    """Older masses are reduced by time, and then as far as needed."""
    full = evidence.Stage(successes=POLICY.mass_cap - 2, failures=2.0, place_failures=1.0, at=T0)
    for pause in (0.0, 30.0, 60.0, 600.0, -60.0):
        for failed in (False, True):
            then = evidence.after(full, T0 + pause, 1.0, full.trip, POLICY, failed=failed, place=failed)
            left = evidence.remaining(max(0.0, pause), POLICY) * POLICY.mass_cap
            newest = evidence.remaining(max(0.0, -pause), POLICY)
            assert then.successes + then.failures == pytest.approx(min(POLICY.mass_cap, left + newest))
    assert evidence.change(None, None, POLICY) == evidence.NOTHING


def failure(scope: Scope, code: str, worker_id: str = "w") -> Failure:
    return Failure(T0, scope, code, True, worker_id)


CAPACITY_ERROR: Final = failure(Scope.CAPACITY, "Insufficient")
#   failures in a row → text
RUNS: Final[list[tuple[tuple[Failure, ...], str]]] = [
    ((), "no start has succeeded"),
    ((CAPACITY_ERROR,), "1 capacity error (Insufficient)"),
    ((CAPACITY_ERROR, failure(Scope.CAPACITY, "")), "2 capacity errors (Insufficient)"),
    ((failure(Scope.QUOTA, ""), failure(Scope.QUOTA, "")), "2 quota errors"),
    (
        (CAPACITY_ERROR, failure(Scope.QUOTA, "Limit"), failure(Scope.QUOTA, "Exceeded")),
        "1 capacity error (Insufficient), 2 quota errors (Exceeded, Limit)",
    ),
]


@pytest.mark.parametrize(("run", "text"), RUNS)
def test_failures_are_named_by_their_scopes_and_codes(run: tuple[Failure, ...], text: str) -> None:
    assert failure_text(run) == text


def test_a_record_says_whose_trip_it_is() -> None:
    """Of a shared key, but not of the config itself."""
    story = Story(A, C)
    story.trip_config(A)
    assert story.record("a", 1).reason == f"a tripped: {CAPACITY}: 2 capacity errors (capacity)"
    story.fold(0, *(refused(C, Scope.CONFIG, f"w{n}") for n in range(5)))
    assert story.record("c", 1).reason == "c tripped: 5 config errors (config)"
    permit = story.probe("c", 60)
    story.fold(61, requested(C, "p", permit), replace(refused(C, Scope.CONFIG, "p", permit), outcome=SILENT))
    assert story.record("c", 62).reason == "c tripped: 5 config errors (config); 1 failed probe"
    shared = {each.kind: each.probability for each in Story(A).record("a", 1).shared}
    assert shared == {}
    story.fold(62, refused(A, Scope.QUOTA))
    assert {each.kind: each.probability == 1.0 for each in story.record("a", 63).shared} == {
        "quota": True,
        "capacity": False,
    }


SILENT: Final = replace(fails(Scope.CONFIG), code="")
