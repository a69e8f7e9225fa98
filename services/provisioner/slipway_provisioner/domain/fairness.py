"""Turns of pools on the headroom of a shared window. Pure.

A pool whose plan a shared window has cut waits for it, since it became dirty. Of the headroom that becomes free,
those that have waited longest take their parts in turn: each at most an even part, and then it waits at the end.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from math import ceil
from typing import Final

import msgspec

from slipway_provisioner.domain.pool import Config, Share, Shared

WOKEN: Final = 2
"""Pools that are woken for a unit of headroom. More than one, since some need none by then or are limited elsewhere."""


class Wait(msgspec.Struct, frozen=True):
    """A pool waits for a shared window since a time, for this many units."""

    share: Share
    units: int
    since: datetime


def part(headroom: int, known: Shared) -> int:
    """Units of the headroom that a pool may take now: an even part, rounded up, if others wait or are about to be
    planned, and none before those that are woken for it."""
    if known.others and known.ahead >= WOKEN * headroom:
        return 0
    return ceil(headroom / (known.others + known.rivals + 1))


def taken(configs: Sequence[Config], units: Mapping[str, int]) -> dict[Share, int]:
    """Units that launches take of each share of the configs, by the units per config id."""
    found: dict[Share, int] = {}
    for config in configs:
        for share in config.shares:
            found[share] = found.get(share, 0) + units.get(config.id, 0)
    return found


def waits(
    able: Sequence[Config],
    shared: Mapping[Share, Shared],
    rooms: Mapping[Share, int],
    units: Mapping[Share, int],
    *,
    missing: int,
    since: datetime,
    now: datetime,
) -> list[Wait]:
    """Shared windows that a plan waits for, in the order of their texts: those of configs that are `able` to launch
    more, which have no room beyond the `units` that the plan takes of them.

    `missing` units are needed beyond these. The pool has been dirty `since` a time, and waits for a window from then
    on; one of which some units were taken it waits for anew.
    """
    if missing <= 0:
        return []
    full = {share for config in able for share in config.shares if share in rooms and rooms[share] <= units[share]}
    return [
        Wait(share, missing, now if units[share] else shared[share].waiting_since or since) for share in in_order(full)
    ]


def in_order(shares: Iterable[Share]) -> list[Share]:
    """Shares in the order of their texts."""
    return sorted(shares, key=lambda share: (share[0].text, share[1]))
