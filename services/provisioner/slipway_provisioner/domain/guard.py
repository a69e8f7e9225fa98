"""Guard against changes of worker pools and launch configs that people rarely mean. Pure."""

from collections.abc import Iterator

import msgspec

from slipway_common.declaration.changes import Danger, maximum_danger, minimum_danger


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
    loss = f"{_workers(surplus)} of {serving} stop after their tasks" if surplus else f"{_workers(serving)} stay"
    if danger := maximum_danger(kind, id_, before, after, loss=loss if serving else ""):
        yield danger


def drained(serving: int) -> str:
    """Consequence of archiving launch configs with `serving` workers; empty if there are none."""
    return f"{_workers(serving)} {'drains' if serving == 1 else 'drain'}" if serving else ""


def _workers(number: int) -> str:
    return f"{number:,} worker{'' if number == 1 else 's'}"
