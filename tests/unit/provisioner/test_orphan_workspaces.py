"""Resources of a listing that belong to no live workspace."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from slipway_provisioner.domain.orphan_workspaces import NAMED_MAX, Resource, Row, orphans
from slipway_provisioner.domain.recovery import Orphan, cannot_adopt
from slipway_provisioner.domain.workspaces import Phase

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
VISIBILITY = 30.0


def resource(workspace: str = "w", address: str = "machine.worker", id_: str = "m-1") -> Resource:
    return Resource(workspace=workspace, address=address, id=id_, batch_id="tag", launch_config_id="tagged")


def row(phase: Phase, seconds: float = -1_000.0) -> Row:
    """Row of a workspace that is settled so many seconds after the listing began."""
    at = BEGAN + timedelta(seconds=seconds)
    return Row(phase=phase, settled_at=at, batch_id="b", launch_config_id="c")


def ids(found: list[Resource], rows: dict[str, Row]) -> list[str]:
    return [each.id for each in orphans(found, rows, listed_at=BEGAN, visibility_seconds=VISIBILITY)]


@pytest.mark.parametrize(
    ("known", "is_orphan"),
    [
        (None, True),
        *((row(phase), False) for phase in Phase if phase not in (Phase.GONE, Phase.ORPHAN)),
        (row(Phase.ORPHAN), True),
        (row(Phase.GONE), True),
        (row(Phase.GONE, -VISIBILITY), False),
        (row(Phase.GONE, 10.0), False),
    ],
    ids=lambda value: value.phase if isinstance(value, Row) else str(value),
)
def test_an_orphan_has_no_live_workspace(known: Row | None, is_orphan: bool) -> None:
    """Resources that a workspace has destroyed during the listing, or just before it, are no orphan."""
    assert ids([resource()], {} if known is None else {"w": known}) == (["w"] if is_orphan else [])


@given(st.dictionaries(st.sampled_from("abc"), st.sampled_from(Phase)), st.lists(st.sampled_from("abcd")))
def test_a_resource_of_a_live_workspace_is_in_no_orphan(phases: dict[str, Phase], found: list[str]) -> None:
    rows = {id_: row(phase) for id_, phase in phases.items()}
    listed = [resource(id_, id_=f"m-{place}") for place, id_ in enumerate(found)]
    left = orphans(listed, rows, listed_at=BEGAN, visibility_seconds=VISIBILITY)
    live = {id_ for id_, phase in phases.items() if phase not in (Phase.GONE, Phase.ORPHAN)}
    assert {each.id for each in left} == {*found} - live
    kept = [each for orphan in left for each in orphan.resources]
    assert sorted(each.id for each in kept) == sorted(each.id for each in listed if each.workspace not in live)


def test_the_launch_of_an_orphan() -> None:
    """It is that of the row, or of the tags of its first resource where there is no row."""
    first = structs.replace(resource(), incarnation="7")
    (tagged,) = orphans([resource(id_="m-2"), first], {}, listed_at=BEGAN, visibility_seconds=0)
    assert (tagged.batch_id, tagged.launch_config_id, tagged.incarnation) == ("tag", "tagged", "7")
    assert (tagged.listed_at, [each.id for each in tagged.resources]) == (BEGAN, ["m-1", "m-2"])
    (known,) = orphans([resource()], {"w": row(Phase.GONE)}, listed_at=BEGAN, visibility_seconds=0)
    assert (known.batch_id, known.launch_config_id) == ("b", "c")


def test_the_note_names_the_first_resources() -> None:
    found = [resource(address=f"disk.d[{n}]", id_=f"d-{n}") for n in range(NAMED_MAX + 2)]
    (orphan,) = orphans([resource(address="disk.a"), *found], {}, listed_at=BEGAN, visibility_seconds=0)
    assert orphan.note.startswith("workspace w: disk.a (m-1), disk.d[0] (d-0), ")
    assert orphan.note.endswith(" and 3 more")
    (whole,) = orphans(found[:NAMED_MAX], {}, listed_at=BEGAN, visibility_seconds=0)
    assert whole.note.endswith("disk.d[4] (d-4)")
    (unnamed,) = orphans([resource("", "")], {}, listed_at=BEGAN, visibility_seconds=0)
    assert unnamed.note == "workspace unnamed: no address (m-1)"


def test_an_orphan_is_not_adopted() -> None:
    """The id of its instance is unknown, so that no agent could register as its worker."""
    batch = "00000000-0000-4000-8000-000000000001"
    orphan = Orphan(
        account_id="a",
        instance_id="workspace-w",
        batch_id=batch,
        launch_config_id="c",
        created_at=BEGAN,
        reason="",
    )
    assert "its tags do not show the id of its instance" in cannot_adopt(orphan, None, ())
