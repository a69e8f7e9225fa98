"""Roll-outs: which revisions launch while one replaces another, when one is proven, and how a replaced one ends."""

from datetime import timedelta
from itertools import pairwise
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_provisioner.domain import roll_out
from slipway_provisioner.domain.roll_out import Progress, Replacement, Revision, Standing, replace, verdict
from tests.support.roll_out_changes import NOW, changed

STRATEGIES: Final[tuple[Replacement, ...]] = ("natural", "rolling", "now", "rollback")


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
    """While the new revision is not proven, the one that is most likely to work stays as the fallback. Unless all must
    leave at once, those that drain already go on with it."""
    steps = replace(revisions, target, strategy, terminate=True)
    assert (steps.fallback_id, steps.drain_ids) == (fallback, drains)
    active = tuple(each.id for each in revisions if each.id in drains and each.state == "active")
    assert replace(revisions, target, strategy).drain_ids == active


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
    assert due(fallback, msgspec.structs.replace(current, record=record(5, 4))) == set(), "one has claimed nothing yet"
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
    resolved = roll_out.overdue(AlertResolved, progress(state="active", drain_from=None, drain_until=None))
    assert (resolved.dedup_key, resolved.subject_kind) == (raised.dedup_key, "config")
    assert (resolved.summary, resolved.effect) == ("linux@old no longer drains", "")


@pytest.mark.parametrize("state", ["active", "paused", "draining", "archived"])
@pytest.mark.parametrize("has_task", [True, False])
def test_workers_of_draining_revisions_leave_after_their_task(state: str, has_task: bool) -> None:
    """Those without a task wait until the plan stops them."""
    standing = Standing(id="linux@old", name="linux", current_id="linux@new", state=state, drain_until=NOW)
    leaves = has_task and state in ("draining", "archived")
    assert standing.leave_reason(has_task=has_task) == ("linux@old drains" if leaves else "")


def test_starts_to_prove_grow_with_the_shares() -> None:
    """The last share lasts until the proof of a rolling replacement."""
    boots = [boots for boots, _ in roll_out.SHARES]
    assert all(fewer < more for fewer, more in pairwise(boots))
    assert boots[-1] == roll_out.STARTS_TO_PROVE["rolling"]
