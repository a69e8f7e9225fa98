"""Roll-outs: which revisions launch while one replaces another, when one is proven, and how a replaced one ends."""

from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import count, pairwise
from typing import Any, Final, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_common.events.alert import AlertRaised, AlertResolved
from slipway_common.events.scopes import Key
from slipway_provisioner.domain import headroom, planning, roll_out
from slipway_provisioner.domain.planning import Plan, check_plan
from slipway_provisioner.domain.pool import Config, Demand, Fleet, Idle, Observed, Pool, Shared, Stage
from slipway_provisioner.domain.roll_out import Progress, Replacement, Revision, Standing, replace, verdict

T = TypeVar("T", bound=msgspec.Struct)

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
STRATEGIES: Final[tuple[Replacement, ...]] = ("natural", "rolling", "now", "rollback")


# Replacement


def revision(id_: str, *, state: str = "active", current: bool = False, proven: bool = False) -> Revision:
    return Revision(id=id_, state=state, current=current, proven=proven)


GOOD = revision("good", current=True, proven=True)
UNPROVEN = revision("unproven", current=True)
FALLBACK = revision("fallback", proven=True)
GONE = revision("gone", state="archived", proven=True)
#           revisions, target, strategy                          fallback, draining ones
REPLACED = [
    ([], "new", "natural", None, ()),
    ([GOOD], "new", "natural", "good", ()),
    ([GOOD], "new", "rolling", "good", ()),
    ([GOOD], "new", "now", None, ("good",)),
    ([UNPROVEN], "new", "natural", "unproven", ()),  # better than none
    ([UNPROVEN, FALLBACK], "new", "natural", "fallback", ("unproven",)),
    ([UNPROVEN, revision("other")], "new", "natural", "unproven", ("other",)),
    ([GOOD, FALLBACK], "new", "natural", "good", ("fallback",)),
    ([UNPROVEN, FALLBACK], "fallback", "natural", None, ("unproven",)),  # back to a proven one
    ([GOOD, GONE], "gone", "natural", None, ("good",)),  # the same body again
    ([GOOD, revision("older", state="draining")], "new", "natural", "good", ()),
    ([GOOD, revision("older", state="draining")], "older", "natural", "good", ()),
    ([GOOD, revision("older", state="draining"), GONE], "new", "now", None, ("good", "older")),
    ([UNPROVEN, FALLBACK], "older", "rollback", "fallback", ("unproven",)),  # the target is not proven either
    ([UNPROVEN, FALLBACK], "fallback", "rollback", None, ("unproven",)),
    ([UNPROVEN, revision("other")], "older", "rollback", None, ("unproven", "other")),
    ([GOOD], "older", "rollback", None, ("good",)),  # what is rolled away from launches nothing
    ([GOOD, revision("older", state="draining")], "new", "rollback", None, ("good",)),
]


@pytest.mark.parametrize(("revisions", "target", "strategy", "fallback", "drains"), REPLACED)
def test_replacement(
    revisions: list[Revision], target: str, strategy: Replacement, fallback: str | None, drains: tuple[str, ...]
) -> None:
    """While the new revision is not proven, the one that is most likely to work stays as the fallback."""
    steps = replace(revisions, target, strategy, terminate=True)
    assert (steps.fallback_id, steps.drain_ids) == (fallback, drains)


Body = st.sampled_from("abcd")
Changes = st.lists(
    st.one_of(st.tuples(Body, st.sampled_from(STRATEGIES)), st.just("proof"), st.just("end")), max_size=12
)


@given(Changes)
def test_laws_of_replacement(changes: list[Any]) -> None:
    """Through any changes there is one current revision and at most one fallback, and unless it is replaced now or by
    a proven one, or rolled back, a launching revision always remains beside one without proof."""
    rows: dict[str, Revision] = {}
    for change in changes:
        if change == "end":
            ended = {id_: msgspec.structs.replace(row, state="archived") for id_, row in rows.items()}
            rows |= {id_: ended[id_] for id_, row in rows.items() if row.state == "draining"}
        elif change == "proof":
            rows = {id_: msgspec.structs.replace(row, proven=row.proven or row.current) for id_, row in rows.items()}
        else:
            target, strategy = change
            before = [row for row in rows.values() if row.state == "active" and row.id != target]
            steps = replace(list(rows.values()), target, strategy)
            proven = target in rows and rows[target].proven
            assert {*steps.drain_ids, *filter(None, [steps.fallback_id])} == {row.id for row in before}
            kept = [row for row in before if strategy != "rollback" or (row.proven and not row.current)]
            assert (steps.fallback_id is not None) == (bool(kept) and strategy != "now" and not proven)
            if any(row.proven for row in before) and steps.fallback_id is not None:
                assert rows[steps.fallback_id].proven
            rows = {id_: msgspec.structs.replace(row, current=False) for id_, row in rows.items()}
            for id_ in steps.drain_ids:
                rows[id_] = msgspec.structs.replace(rows[id_], state="draining")
            rows[target] = revision(target, current=True, proven=proven)
        launching = [row for row in rows.values() if row.state == "active"]
        assert len(launching) <= 2
        assert [row.current for row in rows.values()].count(True) == bool(rows)
        assert all(row.state == "active" for row in rows.values() if row.current)


# Proof and shares


def record(boots: int, claims: int | None = None, state: str = "healthy") -> dict[str, Any]:
    stages = {"boot": {"succeeded": boots}, "claim": {"succeeded": boots if claims is None else claims}}
    return {"state": state, "stages": stages}


#         record, claim evidence, strategy, maxima          proven?
PROOFS = [
    (None, "hook", "natural", [100, None], False),
    (record(4), "hook", "natural", [100, None], False),
    (record(5), "hook", "natural", [100, None], True),
    (record(5), "hook", "", [100, None], True),  # it may become a fallback later
    (record(5), "hook", "rolling", [100, None], False),
    (record(20), "hook", "rolling", [100, None], True),
    (record(5, 4), "hook", "natural", [100, None], False),
    (record(5, 0), "queue", "natural", [100, None], True),
    (record(99, state="tripped"), "hook", "natural", [100, None], False),
    (record(99, state="probing"), "hook", "natural", [100, None], False),
    (record(2), "hook", "natural", [2, None], True),  # more can never be alive at the same time
    (record(2), "hook", "rolling", [100, 2], True),
    (record(0), "hook", "natural", [0, None], False),
]


@pytest.mark.parametrize(("given_record", "evidence", "strategy", "maxima", "proven"), PROOFS)
def test_proof(
    given_record: dict[str, Any] | None, evidence: str, strategy: str, maxima: list[int | None], proven: bool
) -> None:
    """A revision is proven by successful starts, no more than can be had, while it is healthy."""
    needed = roll_out.needed_starts(strategy, maxima)
    assert roll_out.is_proven(given_record, evidence, needed) is proven


def test_shares_of_a_rolling_replacement() -> None:
    """The new revision's share grows with its boots, and both together launch all."""
    shares = [roll_out.share("rolling", booted, current=True) for booted in (0, 4, 5, 9, 10, 19, 20, 99)]
    assert shares == [0.1, 0.1, 0.25, 0.25, 0.5, 0.5, 0.5, 0.5]
    for booted in range(25):
        both = [roll_out.share("rolling", booted, current=current) for current in (True, False)]
        assert sum(both) == 1
    for strategy in ("natural", "now", ""):
        assert roll_out.share(strategy, 3, current=True) == roll_out.share(strategy, 3, current=False) == 1


# Drains


def progress(id_: str = "linux@old", **changes: Any) -> Progress:
    usual: dict[str, Any] = {
        "pool_id": "linux",
        "name": "linux",
        "id": id_,
        "state": "draining",
        "current": False,
        "replaced_by": "natural",
        "proven": True,
        "record": None,
        "claim_evidence": "hook",
        "maxima": [100, None],
        "drain_from": NOW - timedelta(seconds=60),
        "drain_until": NOW + timedelta(seconds=40),
        "drain_terminate": False,
        "drain_alerted": False,
        "live": 4,
        "stoppable": 3,
        "without_task": 2,
    }
    return Progress(**(usual | changes))


LATE: Final[dict[str, Any]] = {"drain_from": NOW - timedelta(seconds=80), "drain_until": NOW + timedelta(seconds=20)}
OVER: Final[dict[str, Any]] = {"drain_from": NOW - timedelta(seconds=99), "drain_until": NOW, "drain_alerted": True}
#          changes                                                   due steps
NOTHING: Final[set[str]] = set()
DRAINING = [
    ({}, NOTHING),
    ({"live": 0, "stoppable": 0, "without_task": 0}, {"archive"}),
    ({"live": 1, "stoppable": 0, "without_task": 0}, NOTHING),
    (LATE, {"alert"}),
    (LATE | {"drain_alerted": True}, NOTHING),
    (LATE | {"live": 0, "stoppable": 0}, {"archive"}),
    (OVER, NOTHING),  # nobody asked to terminate
    (OVER | {"drain_terminate": True}, {"stop all"}),
    (OVER | {"drain_terminate": True, "stoppable": 0, "without_task": 0}, NOTHING),
    ({"drain_terminate": True}, NOTHING),  # a gradual replacement ends at its deadline
    ({"drain_terminate": True, "replaced_by": "now"}, {"stop"}),
    ({"drain_terminate": True, "replaced_by": "rollback"}, NOTHING),
    ({"drain_terminate": True, "replaced_by": "now", "without_task": 0}, NOTHING),
    ({"drain_terminate": False, "replaced_by": "now"}, NOTHING),
    (OVER | {"drain_terminate": True, "replaced_by": "now"}, {"stop all"}),
    ({"state": "active", "current": True}, NOTHING),
    ({"state": "active", "current": True, "drain_alerted": True}, {"resolve"}),
]


def due(*revisions: Progress) -> set[str]:
    made = verdict(revisions, NOW)
    named = {name for name in ("prove", "reinstate", "drain", "archive", "alert", "resolve") if getattr(made, name)}
    assert bool(made) == bool(named or made.stop)
    return named | {"stop all" if overdue else "stop" for _, overdue in made.stop}


@pytest.mark.parametrize(("changes", "steps"), DRAINING)
def test_drains(changes: dict[str, Any], steps: set[str]) -> None:
    """A drain raises an alert at 80 % of its time, terminates at its end only if asked, and ends without workers."""
    assert due(progress(**changes)) == steps


def test_a_fallback_drains_once_the_current_revision_is_proven() -> None:
    """The proof is recorded and the fallback drains in the same step, or in a later one."""
    fallback = progress("linux@old", state="active", drain_from=None, drain_until=None)
    current = progress("linux@new", state="active", current=True, proven=False, record=record(4))
    assert due(fallback, current) == set()
    assert due(fallback, msgspec.structs.replace(current, record=record(5))) == {"prove", "drain"}
    assert due(fallback, msgspec.structs.replace(current, proven=True)) == {"drain"}
    rolling = msgspec.structs.replace(fallback, replaced_by="rolling")
    assert due(rolling, msgspec.structs.replace(current, record=record(19))) == set()
    assert due(rolling, msgspec.structs.replace(current, record=record(20))) == {"prove", "drain"}


def tripped_by(by: str, stage: str) -> dict[str, Any]:
    return record(9) | {"state": "tripped", "tripped_by": by, "tripped_stage": stage}


#          changes of the current revision's record, changes of the draining one, does it return?
RETURNS = [
    (tripped_by("image", "boot"), {}, True),
    (tripped_by("image", "launch"), {}, True),
    (tripped_by("", "boot"), {}, True),
    (tripped_by("", "claim"), {"replaced_by": "rolling"}, True),
    (tripped_by("image", "boot") | {"state": "probing"}, {"record": record(9)}, True),
    (tripped_by("image", "boot"), {"live": 0}, True),
    (tripped_by("", "launch"), {}, False),  # no capacity: the image is not to blame
    (tripped_by("quota", "launch"), {}, False),
    (tripped_by("credential", "launch"), {}, False),
    (tripped_by("signal", "launch"), {}, False),
    (record(9), {}, False),
    (None, {}, False),
    (tripped_by("image", "boot"), {"replaced_by": "now"}, False),  # its secret is leaked
    (tripped_by("image", "boot"), {"replaced_by": "rollback"}, False),  # a person has left it
    (tripped_by("image", "boot"), {"replaced_by": ""}, False),  # a person drains it
    (tripped_by("image", "boot"), {"proven": False}, True),  # better than none
    (tripped_by("image", "boot"), {"record": tripped_by("image", "boot")}, False),
]


@pytest.mark.parametrize(("known", "changes", "returns"), RETURNS)
def test_a_draining_revision_returns_if_the_image_of_the_current_one_goes_bad(
    known: dict[str, Any] | None, changes: dict[str, Any], returns: bool
) -> None:
    """As the fallback, if it is healthy and nobody has left it for a reason of its own."""
    current = progress("linux@new", state="active", current=True, record=known)
    draining = progress(**changes)
    made = verdict([draining, current], NOW)
    assert [revision.id for revision in made.reinstate] == (["linux@old"] if returns else [])
    assert not (made.reinstate and made.archive)


def test_the_newest_draining_revision_returns_and_only_without_a_fallback() -> None:
    """There is one fallback at a time."""
    current = progress("linux@new", state="active", current=True, record=tripped_by("image", "boot"))
    older, newer = progress("linux@older", drain_from=NOW - timedelta(days=1)), progress("linux@newer")
    made = verdict([older, newer, current], NOW)
    assert [revision.id for revision in made.reinstate] == ["linux@newer"]
    made = verdict([older, changed(newer, proven=False), current], NOW)
    assert [revision.id for revision in made.reinstate] == ["linux@older"]
    fallback = progress("linux@fallback", state="active", drain_from=None, drain_until=None)
    assert verdict([older, fallback, changed(current, proven=False)], NOW).reinstate == []


def test_a_revision_that_went_bad_proves_itself_by_more_starts() -> None:
    """Those before do not count again: half of its boots may have failed all the time."""
    fallback = progress("linux@old", state="active", drain_from=None, drain_until=None)
    current = progress("linux@new", state="active", current=True, proven=False, starts_before=9, record=record(13))
    assert due(fallback, current) == set()
    assert due(fallback, changed(current, record=record(14))) == {"prove", "drain"}


def test_starts_that_no_record_has_are_none() -> None:
    """A revision without a record, and a stage that has not begun; and one start at least proves a revision."""
    assert roll_out.succeeded_starts(None, "hook") == 0
    assert roll_out.succeeded_starts({"stages": {}}, "none") == 0
    assert roll_out.succeeded_starts({"stages": {"boot": {"succeeded": 3}, "claim": {}}}, "hook") == 0
    assert roll_out.succeeded_starts({"stages": {"boot": {"succeeded": 3}}}, "none") == 3
    assert [roll_out.needed_starts("natural", [maximum]) for maximum in (0, 1, 2, None)] == [1, 1, 2, 5]


def test_a_record_that_names_no_key_is_tripped_by_the_revision_itself() -> None:
    assert roll_out.has_bad_image({"state": "tripped", "tripped_stage": "boot"})
    assert not roll_out.has_bad_image({"state": "tripped", "tripped_stage": "launch"})


def test_the_alert_names_the_revision_and_the_workers_left() -> None:
    """The alert and its resolution share their key."""
    raised = roll_out.overdue(AlertRaised, progress(drain_terminate=True))
    assert raised.summary == "linux@old drains slowly: 4 workers are left"
    assert raised.doing == "asks them to stop at 2030-01-01T00:00:40+00:00"
    assert (raised.severity, raised.effect) == ("notice", "they still run the replaced revision")
    assert raised.command == "slipway worker ls --pool linux --state running"
    one = roll_out.overdue(AlertRaised, progress(live=1))
    assert (one.summary, one.doing) == ("linux@old drains slowly: 1 worker is left", "waits until their tasks end")
    resolved = roll_out.overdue(AlertResolved, progress(live=0))
    assert (resolved.dedup_key, resolved.subject_kind) == (raised.dedup_key, "config")
    assert (resolved.summary, resolved.effect) == ("linux@old no longer drains", "")


@pytest.mark.parametrize("state", ["active", "paused", "draining", "archived"])
@pytest.mark.parametrize("has_task", [True, False])
def test_workers_of_draining_revisions_leave_after_their_task(state: str, has_task: bool) -> None:
    """Those without a task wait until the plan stops them."""
    standing = Standing(id="linux@old", name="linux", current_id="linux@new", state=state, drain_until=NOW)
    leaves = has_task and state in ("draining", "archived")
    assert standing.leave_reason(has_task=has_task) == ("linux@old drains" if leaves else "")


# Plans


def config(id_: str, current_id: str, *, window: int = 64, **changes: Any) -> Config:
    usual: dict[str, Any] = {
        "id": id_,
        "name": id_.partition("@")[0],
        "current_id": current_id,
        "account_id": "sim-a",
        "lease_pool_id": "sim-a",
        "image_revision": id_,
        "weight": 1.0,
        "prior_weight": 1.0,
        "launch": Stage(window=window),
        "boot": Stage(window=64),
        "claim": Stage(window=64),
    }
    return Config(**(usual | changes))


def observed(pending: int, *configs: Config, serving: int = 0, leaving: int = 0, **changes: Any) -> Observed:
    return Observed(
        pool=Pool(id="linux", min_capacity=0, max_capacity=100, scaling_ratio=Fraction(1)),
        demands=[Demand(source="q", pending=pending, claimed=0, gone=0, stale=False)],
        fleet=Fleet(serving=serving, leaving=leaving),
        configs=configs,
        idle_timeout_seconds=120.0,
        **changes,
    )


def plan(given_observed: Observed) -> Plan:
    made = planning.plan(given_observed, now=NOW)
    assert check_plan(given_observed, made) == []
    return made


def launched(made: Plan) -> dict[str, int]:
    return {launch.config.id: launch.units for launch in made.launches}


NEW: Final = config("a@2", "a@2")
OLD: Final = config("a@1", "a@2", replaced_by="natural")
FIRST: Final = "the current revision a@2 launches first"


def changed(given_value: T, **changes: Any) -> T:
    return msgspec.structs.replace(given_value, **changes)


def narrow(given_config: Config, window: int) -> Config:
    return changed(given_config, launch=Stage(window=window))


#          configs, launches, reason of the fallback
FALLBACKS = [
    ([NEW, OLD], {"a@2": 10}, FIRST),
    ([narrow(NEW, 4), OLD], {"a@2": 4, "a@1": 6}, None),  # what is left over
    ([changed(NEW, tripped=True), OLD], {"a@1": 10}, None),
    ([changed(NEW, tripped=True, permit=1, last_permit=1), OLD], {"a@2": 1, "a@1": 9}, None),
    ([NEW, changed(OLD, tripped=True, permit=1, last_permit=1)], {"a@2": 10}, "tripped; its probe waits for demand"),
    ([narrow(NEW, 4), OLD, config("b@1", "b@1")], {"a@2": 4, "b@1": 6}, FIRST),  # no revision of another name waits
    ([NEW, changed(OLD, state="draining")], {"a@2": 10}, "draining"),
    ([changed(NEW, tripped=True), changed(OLD, state="draining")], {}, "draining"),
    ([changed(NEW, state="paused"), changed(OLD, state="paused")], {}, "paused"),
]


@pytest.mark.parametrize(("configs", "launches", "reason"), FALLBACKS)
def test_a_fallback_launches_what_the_current_revisions_do_not(
    configs: list[Config], launches: dict[str, int], reason: str | None
) -> None:
    """Only what is left over, by full windows or by a trip of the new revision."""
    made = plan(observed(10, *configs))
    assert launched(made) == launches
    assert made.details["configs"]["a@1"].get("reason") == reason


IMAGE: Final = (Key("image", "new"), "boot")
FULL_IMAGE: Final = Shared(key=IMAGE[0], stage=IMAGE[1], window=12, in_flight=12)
BOOTING: Final = changed(NEW, boot=Stage(window=64, in_flight=12), live=12, shares=[IMAGE])
OTHER: Final = config("b@2", "b@2", shares=[IMAGE])
OTHER_OLD: Final = config("b@1", "b@2", replaced_by="natural")
#          configs, shares, launches for ten tasks without a worker
EXPLORED = [
    ([changed(NEW, boot=Stage(window=12, in_flight=12)), OLD], [], {"a@1": 10}),  # its own window binds
    ([changed(NEW, claim=Stage(window=64, in_flight=60, unfolded=2)), OLD], [], {"a@2": 2, "a@1": 8}),
    ([BOOTING, OLD], [FULL_IMAGE], {"a@1": 10}),  # the window of its image binds
    ([BOOTING, OLD], [changed(FULL_IMAGE, in_flight=9)], {"a@2": 3, "a@1": 7}),
    ([BOOTING, OLD], [changed(FULL_IMAGE, in_flight=0, tripped=True)], {"a@1": 10}),  # known from its image alone
    ([changed(BOOTING, tripped=True, permit=1, last_permit=1), OLD], [FULL_IMAGE], {"a@2": 1, "a@1": 9}),
    ([BOOTING, OLD, OTHER, OTHER_OLD], [FULL_IMAGE], {"a@1": 5, "b@1": 5}),  # both changed
    ([BOOTING, OLD, config("c@1", "c@1", window=3)], [FULL_IMAGE], {"c@1": 3, "a@1": 7}),  # one did not change
    ([changed(BOOTING, max_capacity=20), changed(OLD, max_capacity=20, live=4)], [FULL_IMAGE], {"a@1": 4}),
    ([changed(BOOTING, max_capacity=16), changed(OLD, max_capacity=16, live=4)], [FULL_IMAGE], {}),
]


@pytest.mark.parametrize(("configs", "shared", "launches"), EXPLORED)
def test_while_an_image_proves_itself_the_old_one_takes_the_demand(
    configs: list[Config], shared: list[Shared], launches: dict[str, int]
) -> None:
    """The new one is held back by its own window, by its image's, by a trip or by the room of its name."""
    assert launched(plan(observed(10, *configs, shared=shared))) == launches


def trials(maximum: int, *configs: Config, pending: int = 40, serving: int = 0) -> dict[str, int]:
    """Launches in a pool with this maximum."""
    given_observed = observed(pending, *configs, serving=serving)
    limits = Pool(id="linux", min_capacity=0, max_capacity=maximum, scaling_ratio=Fraction(1))
    return launched(plan(changed(given_observed, pool=limits)))


def test_starts_of_new_images_leave_half_of_a_small_pool_to_the_old_ones() -> None:
    """However many names change at a time: otherwise a bad image would stop all work until its starts time out."""
    assert trials(10, NEW, OLD) == {"a@2": 5, "a@1": 5}
    assert trials(1, NEW, OLD) == {"a@2": 1}
    got = trials(10, NEW, OLD, config("b@2", "b@2"), config("b@1", "b@2", replaced_by="natural"))
    assert got["a@2"] + got["b@2"] == got["a@1"] + got["b@1"] == 5
    hanging = changed(NEW, boot=Stage(window=64, in_flight=5), live=5)
    assert trials(10, hanging, OLD, serving=5) == {"a@1": 5}
    made = plan(observed(10, changed(hanging, max_capacity=10), changed(OLD, max_capacity=10), serving=5))
    assert launched(made) == {"a@1": 5}
    assert made.details["configs"]["a@2"]["reason"] == "the half for new revisions of launch config a is full"


def test_a_revision_without_a_stand_in_may_fill_its_pool() -> None:
    """The first one of a name, and one whose predecessor drains, is tripped or may not launch."""
    assert trials(10, config("c@1", "c@1")) == {"c@1": 10}
    for changes in ({"state": "draining"}, {"tripped": True}, {"stopped": "drill"}, {"state": "paused"}):
        assert trials(10, NEW, changed(OLD, **changes)) == {"a@2": 10}


#        wanted, minimum, idle old ones, starts that hang, idle ones that stop
HANGING = [
    (0, 0, 8, 12, 8),  # nothing is wanted
    (5, 0, 8, 12, 3),
    (8, 0, 8, 12, 0),
    (0, 8, 8, 12, 0),  # the minimum is wanted although there is no task
    (30, 0, 8, 12, 0),
    (0, 4, 8, 0, 4),
]


@pytest.mark.parametrize(("wanted", "minimum", "idle_ones", "hanging", "stopped"), HANGING)
@pytest.mark.parametrize("state", ["active", "draining"])
def test_no_idle_worker_stops_for_a_start_that_may_hang(
    wanted: int, minimum: int, idle_ones: int, hanging: int, stopped: int, state: str
) -> None:
    """Starts of a new image fill the pool to its maximum of 20: the idle workers that are wanted stay."""
    limits = Pool(id="linux", min_capacity=minimum, max_capacity=20, scaling_ratio=Fraction(1))
    booting = changed(NEW, boot=Stage(window=12, in_flight=hanging), live=hanging)
    old = changed(OLD, state=state, live=idle_ones)
    overdue = [changed(worker, since=NOW - timedelta(hours=1)) for worker in idle(*range(idle_ones))]
    given_observed = observed(wanted, booting, old, serving=hanging + idle_ones, idle=overdue)
    made = plan(msgspec.structs.replace(given_observed, pool=limits))
    assert len(made.stop) == stopped
    assert len({*made.stop, *made.drain}) == stopped


def test_a_rolling_replacement_launches_by_shares() -> None:
    """Both revisions launch, by weight times share."""
    new, old = changed(NEW, share=0.25), changed(OLD, replaced_by="rolling", share=0.75)
    got = launched(plan(observed(40, new, old)))
    assert got["a@2"] + got["a@1"] == 40
    assert got["a@2"] == pytest.approx(10, abs=2)
    assert launched(plan(observed(40, changed(new, tripped=True), old))) == {"a@1": 40}


def test_a_maximum_is_shared_by_all_revisions() -> None:
    """Workers of every revision count, also those that drain, and other launch configs get the rest."""
    limit: dict[str, Any] = {"max_capacity": 10}
    revisions = [
        changed(NEW, live=1, **limit),
        changed(OLD, live=2, **limit),
        config("a@0", "a@2", state="draining", live=3, **limit),
    ]
    made = plan(observed(20, *revisions, config("b@1", "b@1"), serving=6))
    assert sum(launched(made).values()) == 14
    assert launched(made)["a@2"] == 4
    full = [changed(revision, live=4) for revision in revisions]
    made = plan(observed(20, *full, serving=12))
    assert launched(made) == {}
    assert made.details["configs"]["a@2"]["reason"] == "the maximum of launch config a is full"
    probe = [changed(revision, tripped=True, permit=1, last_permit=1) for revision in full]
    assert launched(plan(observed(20, *probe, serving=12))) == {}
    assert launched(plan(observed(20, *full, serving=12, calculator_unavailable_seconds=99.0))) == {}


def idle(*counts: int, config_id: str = "a@1") -> list[Idle]:
    return [Idle(worker_id=f"w{n}", config_id=config_id, since=NOW) for n in counts]


DRAINED: Final = changed(OLD, state="draining")
#       wanted, serving, leaving, idle ones          stopped
PARTS = [
    (40, 40, 0, 30, 10),
    (40, 40, 7, 30, 3),
    (40, 40, 10, 30, 0),
    (40, 40, 0, 5, 5),
    (2, 2, 0, 2, 1),  # at least one at a time
    (2, 2, 1, 2, 0),
    (41, 40, 0, 30, 9),  # one more is launched
]


@pytest.mark.parametrize(("wanted", "serving", "leaving", "idle_ones", "stopped"), PARTS)
def test_idle_workers_of_draining_revisions_leave_in_parts(
    wanted: int, serving: int, leaving: int, idle_ones: int, stopped: int
) -> None:
    """At most a quarter of the wanted workers leaves at a time, although they are wanted."""
    given_observed = observed(wanted, NEW, DRAINED, serving=serving, leaving=leaving, idle=idle(*range(idle_ones)))
    assert len(plan(given_observed).drain) == stopped
    assert plan(given_observed).stop == []


def test_no_idle_worker_leaves_that_nothing_could_replace() -> None:
    """Where nothing may launch, workers of a draining revision are better than none."""
    workers: dict[str, Any] = {"serving": 8, "idle": idle(*range(8))}
    assert len(plan(observed(9, NEW, DRAINED, **workers)).drain) == 1, "one of two parts is launched"
    assert plan(observed(9, changed(NEW, tripped=True), DRAINED, **workers)).drain == []
    assert plan(observed(9, NEW, DRAINED, stopped="launching is stopped: drill", **workers)).drain == []
    assert plan(observed(9, NEW, OLD, **workers)).drain == []  # a fallback keeps its workers


def test_check_plan_knows_drains_and_maxima() -> None:
    """Each violation is reported by its own message."""
    given_observed = observed(8, NEW, DRAINED, serving=8, idle=[*idle(0, 1, 2), *idle(9, config_id="a@2")])
    empty = plan(observed(0, NEW))
    for drain, problem in (
        (("w0", "w1", "w2"), "drains 3 workers at a time, with 0 missing"),
        (("w9",), "drains a worker whose revision does not drain"),
        (("busy",), "stops a worker that is not idle"),
    ):
        broken = msgspec.structs.replace(empty, drain=drain, wanted=8)
        assert problem in check_plan(given_observed, broken)
    limited = changed(NEW, max_capacity=2, live=1)
    broken = msgspec.structs.replace(empty, launches=[headroom.Launch(config=limited, units=2)])
    assert check_plan(observed(8, limited), broken) == ["3 workers of launch config a exceed its maximum of 2"]


REVISION = st.fixed_dictionaries(
    {
        "state": st.sampled_from(("active", "active", "draining", "paused")),
        "replaced_by": st.sampled_from(("natural", "rolling")),
        "live": st.integers(0, 6),
        "tripped": st.booleans(),
        "permit": st.one_of(st.none(), st.just(1)),
        "share": st.sampled_from((0.1, 0.5, 1.0)),
    }
)


@given(
    st.lists(
        st.tuples(st.lists(REVISION, min_size=1, max_size=3), st.one_of(st.none(), st.integers(0, 8))),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 40),
    st.integers(0, 12),
    st.booleans(),
)
def test_laws_of_plans(
    names: list[tuple[list[dict[str, Any]], int | None]], pending: int, window: int, unavailable: bool
) -> None:
    """In every plan draining and paused revisions launch nothing, no launch config exceeds its maximum, and a natural
    fallback launches only where the current revisions have no room left."""
    configs, numbers = [], count()
    for place, (revisions, maximum) in enumerate(names):
        ids = [f"name-{place}@{next(numbers)}" for _ in revisions]
        configs += [
            config(id_, ids[0], window=window, max_capacity=maximum, last_permit=values["permit"], **values)
            for id_, values in zip(ids, revisions, strict=True)
        ]
    serving = sum(given_config.live for given_config in configs)
    idle_ones = [
        Idle(worker_id=f"w{n}", config_id=given_config.id, since=NOW) for n, given_config in enumerate(configs)
    ]
    given_observed = observed(
        pending,
        *configs,
        serving=serving,
        idle=idle_ones,
        calculator_unavailable_seconds=float(unavailable),
        attempt_in_seconds=0.0,
    )
    made = plan(given_observed)
    got = launched(made)
    by_id = {given_config.id: given_config for given_config in configs}
    assert all(by_id[id_].state == "active" for id_ in got)
    for place, (_, maximum) in enumerate(names):
        of_name = [given_config for given_config in configs if given_config.name == f"name-{place}"]
        live, added = sum(c.live for c in of_name), sum(got.get(c.id, 0) for c in of_name)
        assert maximum is None or not added or live + added <= maximum
    assert sum(got.values()) <= max(0, pending - serving)
    notes = made.details["configs"]
    if not unavailable and any(by_id[id_].is_fallback for id_ in got):
        rooms = {id_: notes[id_]["room"] - got.get(id_, 0) for id_ in by_id}
        free = [c for c in configs if c.active and not c.is_fallback and not c.tripped and rooms[c.id] > 0]
        assert all(c.max_capacity is not None for c in free)  # filled by another revision of its name
    assert all(by_id[w.config_id].state == "draining" for w in idle_ones if w.worker_id in made.drain)


def test_no_plan_launches_for_a_name_that_only_drains() -> None:
    """Not even while the calculator is unavailable."""
    only = [changed(NEW, state="draining"), DRAINED]
    for seconds in (0.0, 99.0):
        assert launched(plan(observed(9, *only, calculator_unavailable_seconds=seconds))) == {}


def test_starts_to_prove_grow_with_the_shares() -> None:
    """The last share lasts until the proof of a rolling replacement."""
    boots = [boots for boots, _ in roll_out.SHARES]
    assert all(fewer < more for fewer, more in pairwise(boots))
    assert boots[-1] == roll_out.STARTS_TO_PROVE["rolling"]
