"""Slots: who holds one, what a declared list changes, the limit that follows it, and durations as Go writes them."""

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_lease_broker.domain.slots import (
    Listed,
    Slot,
    SlotChange,
    compare,
    elsewhere,
    go_seconds,
    is_grant,
    limit_after,
    merged,
    released,
    taken,
)
from tests.unit.lease_broker.test_decide import lease

NOW: Final = datetime(2030, 1, 1, tzinfo=UTC)
BEFORE: Final = NOW - timedelta(hours=1)


def slot(name: str = "a", **changes: Any) -> Slot:
    usual: dict[str, Any] = {"name": name, "lease_pool_id": "aws", "state": "free", "updated_at": BEFORE}
    return Slot(**usual | changes)


#            state, wanted state, needs a lease
GRANTS: Final = [
    ("free", "busy", True),
    ("free", "leased", True),
    ("free", "dirty", False),
    ("dirty", "busy", False),
    ("busy", "leased", False),
]


@pytest.mark.parametrize(("state", "dest", "needs"), GRANTS)
def test_a_free_slot_that_becomes_used_needs_a_lease(state: str, dest: str, needs: bool) -> None:
    assert is_grant(state, dest) is needs


def test_a_slot_is_taken_with_or_without_a_lease_and_released() -> None:
    """Its user data and its last fencing token stay."""
    free = slot(userdata={"region": "eu"}, fencing_token=7)
    granted = msgspec.structs.replace(lease("l", 1), id="l-1", fencing_token=9)
    held = taken(free, "busy", "ci", NOW, acquired_by="token", request_id="r", lease=granted)
    assert held == slot(
        state="busy",
        owner="ci",
        updated_at=NOW,
        userdata={"region": "eu"},
        request_id="r",
        acquired_by="token",
        lease_id="l-1",
        fencing_token=9,
    )
    later = NOW + timedelta(seconds=1)
    assert released(held, "dirty", later) == slot(
        state="dirty", updated_at=later, userdata={"region": "eu"}, fencing_token=9
    )
    cleaning = taken(free, "cleaning", "janitor", NOW, acquired_by="token")
    assert (cleaning.lease_id, cleaning.fencing_token, cleaning.request_id) == (None, 7, None)


def test_an_empty_value_deletes_its_key() -> None:
    assert merged({"a": "1", "b": "2", "old": ""}, {"b": "", "c": "3"}) == {"a": "1", "old": "", "c": "3"}


#            text, seconds
DURATIONS: Final = [
    ("0", 0.0),
    ("30m", 1800.0),
    ("1h15m", 4500.0),
    ("1.5s", 1.5),
    (".5s", 0.5),
    ("1.s", 1.0),
    ("+90s", 90.0),
    ("-2h", -7200.0),
    ("250ms", 0.25),
    ("3us1ns", 3.001e-6),
    ("4µs", 4e-6),
    ("2562047h47m16s", 9223372036.0),
]


@pytest.mark.parametrize(("text", "seconds"), DURATIONS)
def test_durations(text: str, seconds: float) -> None:
    assert go_seconds(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("text", ["", "30", "m", "1h ", "1d", "--1s", "-+1s", "1m x", "1.2.3s", "٣s", "-"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration such as 30m"):
        go_seconds(text)


@pytest.mark.parametrize("text", ["2562048h", "-2562048h"])
def test_a_duration_beyond_64_bits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is longer than a duration can be"):
        go_seconds(text)


def listed(*names: str, pool: str = "aws", state: str = "dirty") -> Listed:
    return Listed(lease_pool_id=pool, state=state, names=names)


def test_a_list_adds_and_removes_slots_and_keeps_owned_ones() -> None:
    """An owned slot goes with its owner, unless it is listed again before."""
    removed_before = slot("d", owner="ci", removed_at=BEFORE)
    current = [slot("a"), slot("b"), slot("c", owner="ci"), removed_before, slot("e", owner="ci", removed_at=BEFORE)]
    change = compare(listed("a", "e", "f"), current, NOW)
    assert change == SlotChange(
        lease_pool_id="aws",
        added=(slot("f", state="dirty", updated_at=NOW),),
        removed=("b",),
        kept=(slot("c", owner="ci", removed_at=NOW), removed_before),
        restored=(slot("e", owner="ci"),),
    )
    assert compare(listed("a"), [slot("a")], NOW) == SlotChange(lease_pool_id="aws")


#            limit, slots before, added, removed                limit after
LIMITS: Final = [
    (None, 0, 2, 0, 2),  # a new pool
    (None, 0, 0, 0, 0),
    (3, 3, 2, 1, 4),
    (3, 3, 1, 1, None),  # as before
    (9, 3, 2, 0, None),  # an operator has set it
    (0, 0, 2, 0, None),
    (1, 1, 1, 0, 2),
]


@pytest.mark.parametrize(("limit", "before", "added", "removed", "after"), LIMITS)
def test_a_limit_follows_its_slots_until_somebody_sets_it(
    limit: int | None, before: int, added: int, removed: int, after: int | None
) -> None:
    change = SlotChange(
        lease_pool_id="aws",
        added=tuple(slot(f"n{number}") for number in range(added)),
        removed=tuple(f"o{number}" for number in range(removed)),
        kept=(slot("kept", owner="ci"),),
    )
    assert limit_after(limit, before, change) == after


def test_slots_that_are_listed_in_another_pool() -> None:
    known = [slot("b"), slot("a"), slot("c"), slot("d", lease_pool_id="gcp"), slot("unlisted")]
    lists = [listed("c", "d"), listed("a", "b", "new", pool="gcp")]
    assert elsewhere(lists, known) == [("a", "aws", "gcp"), ("b", "aws", "gcp"), ("d", "gcp", "aws")]


@given(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")))
def test_a_list_that_is_applied_changes_nothing_more(names: set[str], known: set[str], owned: set[str]) -> None:
    """Whatever it adds, removes and keeps."""
    current = [slot(name, owner="ci" if name in owned else "") for name in sorted(known)]
    change = compare(listed(*sorted(names)), current, NOW)
    by_name = {each.name: each for each in current if each.name not in change.removed}
    by_name |= {each.name: each for each in (*change.added, *change.kept, *change.restored)}
    again = compare(listed(*sorted(names)), list(by_name.values()), NOW)
    assert again == msgspec.structs.replace(SlotChange(lease_pool_id="aws"), kept=change.kept)
