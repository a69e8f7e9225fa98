"""Rollbacks of a pool: the entries of its history to return to. Pure.

A rollback returns the launch configs to earlier revisions. The pool keeps its minimum, maximum, mode and all else that
was set since, unless the `whole` pool is to be as it was.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec


class Rollback(msgspec.Struct, frozen=True, kw_only=True):
    """Rollback as requested. `to_revision` is an entry of the history [default: before the last change of revisions].

    `force`: also to a tripped revision.
    """

    to_revision: int | None = None
    whole: bool = False
    force: bool = False


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """Entry of a pool's history: the revisions in force after it, by the names of the launch configs, and the digest of
    what was declared, empty for a removal. A rollback has the entry that it returned to."""

    revision: int
    to_revision: int | None
    revisions: Mapping[str, Mapping[str, Any]]
    spec_digest: str

    def state(self, *, whole: bool) -> dict[str, str]:
        if whole:
            return {"": self.spec_digest} if self.spec_digest else {}
        return {name: revision["revision"] for name, revision in self.revisions.items()}


def candidates(entries: Sequence[Entry], *, whole: bool) -> list[int]:
    """Entries that a rollback may return to without being told which, the best first. `entries`: the newest first.

    The search follows rollbacks to where they went, so that another one goes further back. What one has left is passed
    over until it is declared again.
    """
    present = entries[0].state(whole=whole) if entries else {}
    found: list[int] = []
    left: set[tuple[str, str]] = set()
    newest: int | None = None
    for entry, before in zip_longest(entries, entries[1:]):
        if newest is not None and entry.revision > newest:
            continue
        state = entry.state(whole=whole)
        other = {(name, value) for name, value in state.items() if whole or name in present} - present.items()
        if other and not other & left:
            found.append(entry.revision)
        if entry.to_revision is not None:
            newest = entry.to_revision
            left |= before.state(whole=whole).items() - state.items() if before is not None else set()
    return found
