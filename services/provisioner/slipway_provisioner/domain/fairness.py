"""Turns of pools on the headroom of a shared window. Pure.

A plan that a shared window has cut waits for it, since the first plan that it cut. Of the headroom that becomes free,
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
    """Units of the headroom that a pool may take now: all if no other waits, none before those that are woken for it,
    and else an even part, rounded up."""
    if not known.others:
        return headroom
    if known.ahead >= WOKEN * headroom:
        return 0
    return ceil(headroom / (known.others + 1))


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
    now: datetime,
) -> list[Wait]:
    """Shared windows that a plan waits for, in the order of their texts: those of configs that are `able` to launch
    more, which have no room beyond the `units` that the plan takes of them.

    `missing` units are needed beyond these. A window of which some were taken is waited for anew.
    """
    if missing <= 0:
        return []
    full = {share for config in able for share in config.shares if share in rooms and rooms[share] <= units[share]}
    return [
        Wait(share, missing, now if units[share] else shared[share].waiting_since or now) for share in in_order(full)
    ]


def left(shared: Mapping[Share, Shared], headrooms: Mapping[Share, int], units: Mapping[Share, int]) -> list[Share]:
    """Shared windows with headroom beyond the `units` that a plan takes, for which other pools wait, in the order of
    their texts."""
    return in_order(
        share for share, known in shared.items() if known.others and headrooms.get(share, 0) > units.get(share, 0)
    )


def in_order(shares: Iterable[Share]) -> list[Share]:
    """Shares in the order of their texts."""
    return sorted(shares, key=lambda share: (share[0].text, share[1]))
