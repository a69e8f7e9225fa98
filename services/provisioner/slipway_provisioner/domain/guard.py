"""Guard against changes of worker pools and launch configs that people rarely mean. Pure."""

from collections.abc import Iterator, Mapping
from datetime import UTC
from typing import Any

import msgspec

from slipway_common.declaration.changes import Danger, difference, maximum_danger, minimum_danger
from slipway_provisioner.domain.revisions import RevisionRow, StoredRevision, shared_keys


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Minimum, maximum and mode of a worker pool."""

    id: str
    minimum: int
    maximum: int
    mode: str

    @property
    def minimum_in_force(self) -> int:
        """Workers that are launched without demand: none in mode observe."""
        return 0 if self.mode == "observe" else self.minimum


def of_pool(before: Limits, after: Limits, serving: int) -> Iterator[Danger]:
    """Dangers of changed limits of a worker pool that has `serving` workers."""
    yield from of_maximum("worker pool", after.id, before.maximum, after.maximum, serving)
    if danger := minimum_danger("worker pool", after.id, before.minimum_in_force, after.minimum_in_force):
        yield danger
    if serving and after.mode == "observe" != before.mode:
        consequence = f"nothing is launched, and {_workers(serving)} will not be replaced"
        yield Danger(f"worker pool {after.id}: the mode becomes observe", consequence)


def of_maximum(kind: str, id_: str, before: int, after: int, serving: int) -> Iterator[Danger]:
    """Danger of a changed maximum. With `serving` workers it must not be lowered by much."""
    surplus = max(0, serving - after)
    loss = (
        f"{surplus} of {_workers(serving)} will leave once idle"
        if surplus
        else f"{_workers(serving)} {'stays' if serving == 1 else 'stay'}"
    )
    if danger := maximum_danger(kind, id_, before, after, loss=loss if serving else ""):
        yield danger


class Location(msgspec.Struct, frozen=True, kw_only=True):
    """Where the machines of an account are. `entry` names the operator's settings, which may have it."""

    provider: str
    region: str
    identity: str
    entry: Any = None


def of_account(id_: str, before: Location, after: Location, workers: int) -> Iterator[Danger]:
    """Danger of an account that moves while it has `workers`: they would be looked up in the new place only."""
    names = [name for name in Location.__struct_fields__ if getattr(before, name) != getattr(after, name)]
    shown = [name for name in names if name != "entry"]
    moved = [difference(name, getattr(before, name), getattr(after, name)) for name in shown]
    moved += ["settings.entry"] if names != shown else []
    if moved and workers:
        lost = (
            "would be looked up there, count as gone and never be terminated; stop them first, or declare a new account"
        )
        yield Danger(f"account {id_} moves ({', '.join(moved)})", f"its {_workers(workers)} {lost}")


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """Revision that becomes the current one of a launch config, the one that it replaces and the fallback, if any."""

    target: RevisionRow
    replaced: StoredRevision | None
    fallback: StoredRevision | None

    def tripping(self) -> list[str]:
        """Ids and keys whose trip matters."""
        return [*_tripping(self.target), *(_tripping(self.fallback) if self.fallback is not None else ())]


def of_replacement(made: Replacement, tripped: Mapping[str, str]) -> Iterator[Danger]:
    """Danger of a tripped revision without a healthy fallback. `tripped`: reasons by the ids and keys that are tripped.

    What the replaced revision shares is no danger of the change.
    """
    same = shared_keys(made.replaced) if made.replaced is not None else ()
    why = next((of for of in _tripping(made.target) if of in tripped and of not in same), None)
    healthy = made.fallback is not None and not any(of in tripped for of in _tripping(made.fallback))
    if why is not None and not healthy:
        yield Danger(f"{made.target.id} is tripped", tripped[why] or why)


def of_return(revision: StoredRevision) -> Iterator[Danger]:
    """Danger of reactivating a revision that was withdrawn, perhaps since a secret of it has leaked."""
    if revision.withdrawn_at is not None:
        at = f"{revision.withdrawn_at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
        yield Danger(f"{revision.id} was withdrawn: replaced with `now` by {revision.state_by} at {at}")


def _tripping(revision: RevisionRow) -> list[str]:
    return [revision.id, *shared_keys(revision)]


def drained(serving: int) -> str:
    """Consequence of archiving launch configs with `serving` workers; empty if there are none."""
    return f"{_workers(serving)} {'drains' if serving == 1 else 'drain'}" if serving else ""


def _workers(number: int) -> str:
    return f"{number:,} worker{'' if number == 1 else 's'}"
