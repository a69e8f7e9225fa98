"""Launch windows: limits on a config's starts in flight per stage. Pure.

A window limits a level: in flight + (failures so far − failures folded into the weight) < window. A success frees its
unit at once, a failure only through a weight record that has folded it; so replicas, stale weights and an unavailable
calculator cannot exceed it. Levels of shared keys are counted over all pools.
"""

from collections.abc import Mapping, Sequence
from math import exp2
from typing import Final

import msgspec

from slipway_api.events.scopes import Key
from slipway_api.events.weight import BOUNDLESS
from slipway_provisioner.domain import fairness
from slipway_provisioner.domain.pool import MAXIMUM, TRIAL, Config, Pool, Share, Shared

UNAVAILABLE_WINDOW: Final = 4  # without a calculator no config would trip


def trip_reason(config: Config, shared: Mapping[Share, Shared]) -> str:
    """The reason why only probes may launch from a config; empty while it is healthy."""
    if config.tripped:
        return config.reason or "tripped"
    tripped = tripped_share(config.shares, shared)
    return share_reason(tripped) if tripped else ""


def tripped_share(shares: Sequence[Share], shared: Mapping[Share, Shared]) -> Shared | None:
    """The first of a config's shares that is tripped. It trips the config even before the config's own record does."""
    return next((shared[share] for share in shares if share in shared and shared[share].tripped), None)


def share_reason(tripped: Shared) -> str:
    """The reason of a config that a share has tripped."""
    return f"tripped: {tripped.key}: {tripped.reason}" if tripped.reason else f"tripped: {tripped.key}"


def shared_rooms(shared: Mapping[Share, Shared], *, calculator_unavailable: bool) -> dict[Share, int]:
    """Room in starts of each shared window for all configs of the pool together: its part of the headroom."""
    found = headrooms(shared, calculator_unavailable=calculator_unavailable)
    return {share: fairness.part(units, shared[share]) for share, units in found.items()}


def headrooms(shared: Mapping[Share, Shared], *, calculator_unavailable: bool) -> dict[Share, int]:
    """Starts that each shared window leaves, to all pools together; shares without a window are left out."""
    return {
        share: max(0, _capped(known.window, calculator_unavailable) - known.in_flight - known.unfolded)
        for share, known in shared.items()
        if known.window is not None
    }


def maximum_rooms(configs: Sequence[Config]) -> dict[Share, int]:
    """Room in workers of each launch config with a maximum, for all its revisions together."""
    rooms: dict[Share, int] = {}
    for config in configs:
        if config.max_capacity is not None:
            share = config.limits[-1]
            rooms[share] = rooms.get(share, config.max_capacity) - config.live
    return {share: max(0, left) for share, left in rooms.items()}


def on_trial(pool: Pool, configs: Sequence[Config], shared: Mapping[Share, Shared]) -> list[Config]:
    """The configs, with `trials` for those on trial: current revisions that have not proven themselves, while another
    one of their name can launch. Starts of a bad image hang until they time out; so half of the workers can be others,
    however small the maxima are."""
    at_hand = {
        config.name
        for config in configs
        if config.active and not config.current and not config.stopped and not trip_reason(config, shared)
    }
    return [
        msgspec.structs.replace(config, trials=_trials(pool, config))
        if config.active and config.current and config.name in at_hand
        else config
        for config in configs
    ]


def _trials(pool: Pool, config: Config) -> Sequence[Share]:
    of_pool = (Key("pool", pool.id), TRIAL)
    return (of_pool,) if config.max_capacity is None else (of_pool, (Key("launch config", config.name), TRIAL))


def trial_rooms(pool: Pool, configs: Sequence[Config]) -> dict[Share, int]:
    """Room in starts of the revisions on trial: half of the maximum of the pool, and of the name if it has one."""
    rooms: dict[Share, int] = {}
    for config in configs:
        for share, maximum in zip(config.trials, (pool.max_capacity, config.max_capacity), strict=False):
            rooms[share] = rooms.get(share, max(1, (maximum or 0) // 2)) - config.starting
    return {share: max(0, left) for share, left in rooms.items()}


def trusted_weight(config: Config, *, calculator_unavailable_seconds: float, half_life_seconds: float) -> float:
    """The published weight, decaying to the weight without evidence while the calculator is unavailable, of which a
    revision gets its share."""
    trust = exp2(-calculator_unavailable_seconds / half_life_seconds)
    return config.share * (config.prior_weight + (config.weight - config.prior_weight) * trust)


def room(config: Config, shared_room: Mapping[Share, int], *, calculator_unavailable: bool) -> tuple[int, str]:
    """Room of a config in starts, and what limits it. `shared_room` joins `shared_rooms`, `trial_rooms` and
    `maximum_rooms`.

    Starts in an earlier stage will arrive in the later ones, so they count there too: otherwise a full launch window
    could overflow a boot window that has one unit left. Without any window the room is unlimited.
    """
    found = [
        (window - level, f"{name} window")
        for name, window, level in _levels(config, calculator_unavailable, failures=True)
    ]
    found += [(shared_room[share], _described(share)) for share in config.limits if share in shared_room]
    tightest, window = min(found, default=(BOUNDLESS, "no window"))
    return max(0, tightest), window


def _described(share: Share) -> str:
    key, stage = share
    return f"{stage} of {key}" if stage in (MAXIMUM, TRIAL) else f"{stage} window of {key}"


def may_attempt(config: Config, shared: Mapping[Share, Shared]) -> bool:
    """True if a pool's single attempt while the calculator is unavailable may use this config.

    Unfolded failures and trips are ignored, since only the calculator can clear them. Starts in flight count, since
    they end by themselves.
    """
    if not config.active or config.stopped:
        return False
    own = all(level < window for _, window, level in _levels(config, True, failures=False))
    return own and all(
        known.in_flight < _capped(known.window, True)
        for share in config.shares
        if (known := shared.get(share)) is not None and known.window is not None
    )


def _levels(config: Config, calculator_unavailable: bool, *, failures: bool) -> list[tuple[str, int, int]]:
    """Name, window and level of each stage that has a window."""
    found, arriving = [], 0
    for name, stage in (("launch", config.launch), ("boot", config.boot), ("claim", config.claim)):
        arriving += stage.in_flight
        if stage.window is not None:
            level = arriving + (stage.unfolded if failures else 0)
            found.append((name, _capped(stage.window, calculator_unavailable), level))
    return found


def largest(*, calculator_unavailable: bool) -> int:
    """Largest window that is trusted now."""
    return UNAVAILABLE_WINDOW if calculator_unavailable else BOUNDLESS


def _capped(window: int, calculator_unavailable: bool) -> int:
    return min(window, largest(calculator_unavailable=calculator_unavailable))
