"""Declarations of lease pools: ownership, results and dangers."""

from typing import Any, Final

import msgspec
import pytest

from slipway_api.events.lease import LeaseLimitChanged
from slipway_api.http.declaration import Change
from slipway_common.base.audited import AuditedKind
from slipway_common.declaration.changes import (
    CHANGES_MAX,
    DANGERS_MAX,
    ConfirmationRequired,
    ForeignOwner,
    OwnedByAnother,
)
from slipway_lease_broker.domain.declaration import (
    Declaration,
    Declared,
    audited,
    compare,
    dangers,
    digest,
    limit_events,
)
from slipway_lease_broker.domain.terms import Bounds, Policy
from slipway_lease_broker.http import shown

POOL = Declared(id="p", limit_units=10, hold_seconds=60, ttl_seconds=60, reserve_seconds=60, owner="a")


def pool(name: str, owner: str = "a", **changes: Any) -> Declared:
    return msgspec.structs.replace(POOL, id=name, owner=owner, **changes)


def archived(name: str) -> Declared:
    return pool(name, "", limit_units=0, archived=True)


def declaration(*pools: Declared, owners: str = "a", **options: Any) -> Declaration:
    return Declaration(owners=frozenset(owners), pools=pools, **options)


def results(current: list[Declared], wanted: Declaration) -> dict[str, str]:
    return {made.after.id: made.result for made in compare(current, wanted)}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (declaration(), {"mine": "archived"}),
        (declaration(owners="b"), {"other": "archived"}),
        (declaration(owners="c"), {}),
        (declaration(owners=""), {}),
        (declaration(prune=True), {"mine": "archived", "other": "archived", "unowned": "archived"}),
        (declaration(owners="", prune=True), {}),
        (declaration(pool("mine"), pool("new")), {"mine": "unchanged", "new": "created"}),
        (declaration(pool("mine"), pool("unowned")), {"mine": "unchanged", "unowned": "updated"}),
        (declaration(pool("mine"), pool("gone")), {"mine": "unchanged", "gone": "reactivated"}),
        (declaration(pool("mine"), pool("other"), adopt=True), {"mine": "unchanged", "other": "updated"}),
        (declaration(pool("mine", "b"), pool("other", "b"), owners="ab"), {"mine": "updated", "other": "unchanged"}),
    ],
)
def test_a_declaration_removes_only_what_its_owners_declared(wanted: Declaration, expected: dict[str, str]) -> None:
    """Unless it prunes. A pool may move between the documents of one declaration; one without an owner is adopted."""
    current = [pool("mine"), pool("other", "b"), pool("unowned", ""), archived("gone")]
    assert results(current, wanted) == expected


def test_an_answer_is_bounded() -> None:
    """It counts what it does not list, and its digest covers that too."""
    current = [pool(f"p{number:05}") for number in range(CHANGES_MAX + 1)]
    answer, fewer = (
        shown.changes(compare(pools, declaration(prune=True)), applied=True) for pools in (current, current[:-1])
    )
    assert (len(answer.items), answer.more, fewer.more) == (CHANGES_MAX, 1, 0)
    assert answer.items == fewer.items
    assert answer.digest != fewer.digest
    expected = [f"lease pool p{number:05} is removed" for number in range(DANGERS_MAX)]
    assert answer.dangers == [*expected, f"and {CHANGES_MAX + 1 - DANGERS_MAX:,} more dangers"]
    refused = ConfirmationRequired(answer.digest, dangers(compare(current, declaration())), [])
    assert [*refused.dangers] == answer.dangers


def test_a_pool_has_one_owner() -> None:
    """Another owner is refused, and both are named; an archived pool has none."""
    with pytest.raises(OwnedByAnother, match="lease pool other belongs to b and is also declared by a"):
        compare([pool("other", "b")], declaration(pool("other")))
    (made,) = compare([pool("mine")], declaration())
    assert (made.after.owner, made.after.limit_units, made.after.archived) == ("", 0, True)
    assert made.after.revision == made.before.revision + 1 if made.before else None


#   declaration by a token for the owner a → what it may not change
FOREIGN: Final = [
    (declaration(pool("mine")), None),
    (declaration(pool("gone")), None),  # by any owner before
    (declaration(owners="b"), "the declaration belongs to b"),
    (declaration(pool("mine"), owners="ab"), "the declaration belongs to b"),
    (declaration(pool("mine"), pool("other"), adopt=True), "lease pool other belongs to b"),
    (declaration(pool("mine"), pool("unowned"), adopt=True), "lease pool unowned belongs to no owner"),
    (declaration(pool("mine"), prune=True), "lease pool other belongs to b"),
]


@pytest.mark.parametrize(("wanted", "refusal"), FOREIGN)
def test_a_token_changes_what_its_owners_declare(wanted: Declaration, refusal: str | None) -> None:
    """Neither by declaring, adopting nor pruning does it change the lease pool of another."""
    current = [pool("mine"), pool("other", "b"), pool("unowned", ""), archived("gone")]
    wanted = msgspec.structs.replace(wanted, permitted=("a",))
    if refusal is None:
        assert compare(current, wanted)
        return
    with pytest.raises(ForeignOwner) as raised:
        compare(current, wanted)
    assert str(raised.value) == refusal


def adaptive(floor: int, ceiling: int) -> Policy:
    return Policy(adaptive=Bounds(floor=floor, ceiling=ceiling))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {"limit_units": 20}, []),
        ({}, {"limit_units": 21}, ["lease pool p: the maximum grows from 10 to 21"]),
        ({}, {"limit_units": 1}, []),
        ({"limit_units": 0}, {"limit_units": 1}, ["lease pool p: the maximum grows from 0 to 1"]),
        ({"limit_units": 0, "owner": "", "archived": True}, {"limit_units": 1000}, []),
        ({}, {"policy": adaptive(1, 20)}, []),
        ({}, {"policy": adaptive(1, 21)}, ["lease pool p: the maximum grows from 10 to 21"]),
        ({"policy": adaptive(1, 30)}, {"policy": adaptive(1, 60)}, []),
        ({"policy": adaptive(1, 30)}, {"policy": adaptive(1, 61)}, ["lease pool p: the maximum grows from 30 to 61"]),
        (
            {"policy": adaptive(1, 30)},
            {"policy": adaptive(1, 30), "limit_units": 25},
            ["lease pool p: the maximum grows from 10 to 25"],
        ),
        (
            {"policy": adaptive(1, 15)},
            {"limit_units": 31},
            [
                "lease pool p: the maximum grows from 10 to 31",
                "lease pool p: the maximum grows from 15 to 31",
            ],
        ),
    ],
)
def test_a_limit_that_is_more_than_doubled_is_a_danger(
    before: dict[str, Any], after: dict[str, Any], expected: list[str]
) -> None:
    """And so is an adaptive ceiling, and any limit above 0; not that of a lease pool that is declared again."""
    made = compare([msgspec.structs.replace(POOL, **before)], declaration(msgspec.structs.replace(POOL, **after)))
    assert [danger.text for danger in dangers(made)] == expected


def test_a_removed_pool_is_a_danger() -> None:
    """Also one that nobody declared, under prune. Creating, adopting and reactivating are none."""
    current = [pool("mine"), pool("unowned", ""), archived("gone")]
    assert [*map(str, dangers(compare(current, declaration(prune=True))))] == [
        "lease pool mine is removed",
        "lease pool unowned is removed",
    ]
    assert dangers(compare(current, declaration(pool("mine"), pool("unowned"), pool("gone"), pool("new")))) == []


def test_changes_name_their_fields() -> None:
    """With the names of slipway.yaml; the revision changes with every field."""
    after = pool("p", limit_units=12, ttl_seconds=30.0, policy=adaptive(1, 20))
    (made,) = compare([pool("p", "")], declaration(after))
    assert made.fields["revision"] == (1, 2)
    detail = 'limit: 10 → 12, adaptive: none → {"floor":1,"ceiling":20}, ttl_seconds: 60 → 30.0, owner: none → a'
    assert made.shown() == Change(kind="lease pool", id="p", result="updated", detail=detail)
    (same,) = compare([after], declaration(after))
    assert (same.result, same.fields) == ("unchanged", {})
    (new,) = compare([], declaration(after))
    assert new.shown() == Change(kind="lease pool", id="p", result="created", detail="")


def test_changes_are_audited_by_their_fields_and_limits_are_published() -> None:
    """A new pool has nothing before; a limit that stays is not published."""
    current = [pool("mine"), pool("less"), pool("same")]
    made = compare(current, declaration(pool("less", limit_units=3), pool("same", ttl_seconds=9.0), pool("new")))
    assert {each.subject_id: (each.kind, each.result) for each in map(audited, made)} == {
        "less": (AuditedKind.LEASE_POOL, "updated"),
        "mine": (AuditedKind.LEASE_POOL, "archived"),
        "new": (AuditedKind.LEASE_POOL, "created"),
        "same": (AuditedKind.LEASE_POOL, "updated"),
    }
    less, mine, new, same = map(audited, made)
    assert (less.before, less.after) == ({"limit": 10, "revision": 1}, {"limit": 3, "revision": 2})
    assert (same.before, same.after) == ({"ttl_seconds": 60, "revision": 1}, {"ttl_seconds": 9.0, "revision": 2})
    assert mine.before == {"limit": 10, "owner": "a", "revision": 1, "archived": False}
    assert new.before is None
    assert new.after is not None
    assert (new.after["limit"], new.after["owner"]) == (10, "a")
    assert limit_events(made, "why") == [
        LeaseLimitChanged(lease_pool_id="less", limit=3, previous_limit=10, reason="why"),
        LeaseLimitChanged(lease_pool_id="mine", limit=0, previous_limit=10, reason="why"),
        LeaseLimitChanged(lease_pool_id="new", limit=10, previous_limit=None, reason="why"),
    ]


def test_the_digest_of_changes_covers_what_is_declared() -> None:
    """Also terms of a new pool, which its change does not show; what stays is not covered."""
    first = digest(compare([pool("a")], declaration(pool("a"), pool("b"))))
    assert first == digest(compare([], declaration(pool("b"))))
    for other in (pool("b", ttl_seconds=9.0), pool("c")):
        assert digest(compare([pool("a")], declaration(pool("a"), other))) != first
    one, same = (pool("b", policy=Policy(tenants=tenants)) for tenants in ({"t": 2.0, "u": 3.0}, {"u": 3.0, "t": 2.0}))
    assert digest(compare([], declaration(one))) == digest(compare([], declaration(same)))
    assert digest(compare([pool("b")], declaration(pool("b", limit_units=9)))) != digest(
        compare([pool("b", limit_units=1)], declaration(pool("b", limit_units=9)))
    )
