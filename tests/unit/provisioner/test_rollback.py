"""Rollbacks: the entries of a history that one may return to, and what is declared then."""

from typing import Any, Final

import pytest

from slipway_common.declaration.models import WorkerPool
from slipway_provisioner.apply.rollback import is_same, returned
from slipway_provisioner.domain.rollback import Entry, Rollback, candidates


def entries(*states: tuple[dict[str, str], int | None]) -> list[Entry]:
    """History, the newest first, of revisions by name, each with the entry to which it rolled back, if it did."""
    return [
        Entry(
            revision=number,
            to_revision=to,
            revisions={name: {"revision": revision} for name, revision in revisions.items()},
            spec_digest="".join(f"{name}{revision}" for name, revision in sorted(revisions.items())),
        )
        for number, (revisions, to) in reversed(list(enumerate(states, 1)))
    ]


def one(*states: str | tuple[str, int]) -> list[Entry]:
    """History of one launch config."""
    pairs = [(state, None) if isinstance(state, str) else state for state in states]
    return entries(*(({"a": revision}, to) for revision, to in pairs))


CANDIDATES: Final[list[tuple[list[Entry], list[int]]]] = [
    ([], []),
    (one("1"), []),
    (one("1", "2"), [1]),
    (one("1", "2", "2", "2"), [1]),  # changes of other fields are no changes of revisions
    (one("1", "2", "3"), [2, 1]),
    (one("1", "2", ("1", 1)), []),  # back and forth
    (one("1", "2", "3", ("2", 2)), [1]),
    (one("1", "2", "3", ("2", 2), "2"), [1]),
    (one("1", "2", "3", ("2", 2), ("1", 1)), []),
    (one("3", "2", "3", ("2", 2)), []),  # left, wherever it was declared
    (one("1", "2", "3", ("1", 1)), []),  # nothing is before what it returned to
    (one("1", "3", "2", ("3", 2), "1", ("3", 4)), []),  # both rollbacks have left what was before
    (one("1", "2", ("1", 1), "3"), [3, 1]),
    (one("1", "2", ("1", 1), "2", "3"), [4, 3, 1]),  # declared again
    (one("1", "2", ("1", 1), "3", ("1", 3)), []),
    (one("1", "2", ("1", 1), ("2", 2)), []),
    (entries(({"a": "1"}, None), ({"a": "1", "b": "1"}, None)), []),  # added: no revision was replaced
    (entries(({"a": "1", "b": "1"}, None), ({"a": "1"}, None)), []),
    (entries(({"a": "1"}, None), ({"a": "2", "b": "1"}, None)), [1]),
    (entries(({"a": "1"}, None), ({}, None)), []),  # a removed pool
]


@pytest.mark.parametrize(("history", "expected"), CANDIDATES)
def test_candidates(history: list[Entry], expected: list[int]) -> None:
    """The newest first; what a rollback has left is passed over until it is declared again."""
    assert candidates(history, whole=False) == expected


def test_candidates_for_the_whole_pool() -> None:
    """Any other declaration, but a removal."""
    history = entries(({"a": "1"}, None), ({"a": "1", "b": "1"}, None), ({}, None), ({"a": "1"}, None), ({}, None))
    assert candidates(history, whole=True) == [4, 2, 1]


def test_a_search_for_the_whole_pool_follows_rollbacks_too() -> None:
    """A removal has no state to return to, and what a rollback has left is passed over."""
    history = entries(({"a": "1"}, None), ({"a": "2"}, None), ({"a": "1"}, 1))
    assert candidates(history, whole=True) == []
    history = entries(({"a": "1"}, None), ({"a": "1", "b": "1"}, None), ({"a": "1"}, 1), ({"a": "3"}, None))
    assert candidates(history, whole=True) == [3, 1]
    assert candidates(one("3", "2", "3", ("2", 2)), whole=True) == []
    assert candidates(one("1", "2", ("1", 1))[:1], whole=True) == []  # the rest of the history was pruned
    assert Entry(revision=1, to_revision=None, revisions={}, spec_digest="").state(whole=True) == {}


def pool(*configs: tuple[str, str, float], **fields: Any) -> WorkerPool:
    """A pool with launch configs by name, image and base weight."""
    place = {"account": "x", "zone": "z", "instance_type": "m5"}
    declared = [place | {"name": name, "image": image, "base_weight": weight} for name, image, weight in configs]
    return WorkerPool.model_validate({"id": "linux", "max_capacity": 10, "launch_configs": declared} | fields)


THEN: Final = pool(("a", "1", 1.0), ("gone", "1", 1.0))
PRESENT: Final = pool(("new", "2", 1.0), ("a", "2", 0.5), max_capacity=40)
RETURNED: Final = [
    (Rollback(), pool(("new", "2", 1.0), ("a", "1", 0.5), max_capacity=40)),
    (Rollback(to_revision=3), pool(("a", "1", 0.5), ("gone", "1", 1.0), max_capacity=40)),
    (Rollback(whole=True), THEN),
]


@pytest.mark.parametrize(("rollback", "expected"), RETURNED, ids=["default", "entry", "whole"])
def test_what_is_declared_then(rollback: Rollback, expected: WorkerPool) -> None:
    """Bodies of then; maxima and weights of now, unless the whole pool returns."""
    assert returned(PRESENT, THEN, rollback) == expected


def test_the_same_pool_in_another_order() -> None:
    assert is_same(THEN, pool(("gone", "1", 1.0), ("a", "1", 1.0)))
    assert not is_same(THEN, pool(("gone", "1", 1.0), ("a", "2", 1.0)))
    assert not is_same(THEN, THEN.model_copy(update={"mode": "canary"}))
    assert not is_same(None, THEN)
