"""Questions to a person after a restore: orphan instances, and tasks that the database knows nothing of."""

from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pytest

from slipway_provisioner.domain.recovery import (
    Action,
    LiveRevision,
    LostClaims,
    Orphan,
    Proposal,
    by_batch,
    cannot_adopt,
    lost_claims,
    proposals,
)

BATCH: Final = "00000000-0000-4000-8000-000000000001"
ORPHAN: Final = Orphan(
    account_id="a",
    instance_id="i-1",
    batch_id=BATCH,
    launch_config_id="c@1",
    created_at=datetime(2030, 1, 1, tzinfo=UTC),
    reason="its launch batch is unknown",
)
REVISION: Final = LiveRevision("c@1", "p", "a", "image-1")

#            what differs, the revision, instances whose worker has ended, the obstacle
OBSTACLES: Final = [
    ({}, REVISION, set(), ""),
    ({"batch_id": ""}, REVISION, set(), "it has no tag of a launch batch"),
    ({"batch_id": f"{BATCH}0"}, REVISION, set(), "it has no tag of a launch batch"),
    ({"launch_config_id": ""}, None, set(), "it has no tag of a launch config"),
    ({}, None, set(), "its launch config c@1 is unknown or archived"),
    ({"account_id": "b"}, REVISION, set(), "its launch config c@1 is of account a"),
    ({}, REVISION, {("a", "i-1")}, "its worker has ended"),
    ({}, REVISION, {("b", "i-1"), ("a", "i-2")}, ""),
]


@pytest.mark.parametrize(("changes", "revision", "ended", "obstacle"), OBSTACLES)
def test_an_instance_is_adopted_unless_something_is_in_the_way(
    changes: dict[str, Any], revision: LiveRevision | None, ended: set[tuple[str, str]], obstacle: str
) -> None:
    """Its default is to become a worker of its launch config; otherwise it is left alone, with the reason."""
    orphan = msgspec.structs.replace(ORPHAN, **changes)
    assert cannot_adopt(orphan, revision, ended) == obstacle
    expected = (
        Proposal(orphan, Action.LEAVE, obstacle)
        if obstacle
        else Proposal(orphan, Action.ADOPT, "it becomes a worker of c@1")
    )
    assert proposals([orphan], {"c@1": revision} if revision else {}, ended) == [expected]


def test_a_decision_stands() -> None:
    """Also where the default would be another one by now; the others are proposed as usual."""
    decided = msgspec.structs.replace(ORPHAN, decision="terminate")
    assert proposals([decided, ORPHAN], {"c@1": REVISION}, ()) == [
        Proposal(decided, Action.TERMINATE, "decided before"),
        Proposal(ORPHAN, Action.ADOPT, "it becomes a worker of c@1"),
    ]


def test_claims_are_lost_where_a_source_reports_more_than_are_known() -> None:
    claimed = {("p", "r"): 4, ("p", "q"): 3, ("o", "q"): 2, ("n", "q"): 0, ("m", "q"): 1}
    assert lost_claims(claimed, {("p", "r"): 4, ("p", "q"): 1, ("n", "q"): 5}) == [
        LostClaims("m", "q", 1, 0),
        LostClaims("o", "q", 2, 0),
        LostClaims("p", "q", 3, 1),
    ]


def test_instances_of_a_batch_stand_together_in_order() -> None:
    some = [
        msgspec.structs.replace(ORPHAN, batch_id=batch, instance_id=name)
        for batch, name in [("b", "i-2"), ("a", "i-3"), ("b", "i-1")]
    ]
    assert by_batch(some) == {"a": (some[1],), "b": (some[2], some[0])}
    assert [*by_batch(some)] == ["a", "b"]
