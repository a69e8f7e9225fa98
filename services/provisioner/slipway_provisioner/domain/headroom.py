"""Launches within the headroom of shared windows, once these are locked. Pure.

A plan is made from usage that was read without locks, since other pools would wait for it. Until it is written, other
pools may have used the headroom that it saw.
"""

from collections.abc import Mapping, Sequence

import msgspec

from slipway_provisioner.domain import windows
from slipway_provisioner.domain.pool import Config, Share, Shared


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Start `units` workers of one config; `permit` is set if this one start is a probe, `attempt` if it is the one
    beyond its windows while the calculator is unavailable."""

    config: Config
    units: int
    permit: int | None = None
    attempt: bool = False


def keys(launches: Sequence[Launch], shared: Mapping[Share, Shared]) -> list[str]:
    """Texts of the keys with windows that launches fill, sorted."""
    shares = {share for launch in launches for share in launch.config.shares}
    return sorted({share[0].text for share in shares if share in shared and shared[share].window is not None})


def cut(launches: Sequence[Launch], shared: Mapping[Share, Shared], *, calculator_unavailable: bool) -> list[Launch]:
    """Launches that fit into shared windows as they are now, in the order of the plan.

    As in the plan, a probe starts even if a window is full, and uses up a unit.
    """
    rooms = windows.shared_rooms(shared, calculator_unavailable=calculator_unavailable)
    kept = []
    for launch in launches:
        limited = [share for share in launch.config.shares if share in rooms]
        units = _fitting(launch, [rooms[share] for share in limited], shared)
        for share in limited:
            rooms[share] = max(0, rooms[share] - units)
        if units:
            kept.append(msgspec.structs.replace(launch, units=units))
    return kept


def _fitting(launch: Launch, rooms: Sequence[int], shared: Mapping[Share, Shared]) -> int:
    if launch.permit is not None:
        return launch.units
    if launch.attempt:
        return launch.units if windows.may_attempt(launch.config, shared) else 0
    return 0 if windows.tripped_share(launch.config.shares, shared) else min([launch.units, *rooms])
