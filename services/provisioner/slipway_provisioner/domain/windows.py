"""How many more starts a config may have under way. Weights say where, windows how many. Pure.

A window is a level: in flight + (failures so far − failures folded into the weight) < window. A success frees its
unit at once, a failure only through a weight record that has folded it; so replicas, stale weights and a dead
calculator cannot exceed it. Levels of what configs share count over all pools.
"""

from collections.abc import Mapping
from math import exp2
from typing import Final

from slipway_provisioner.domain.pool import Config, Share, Shared

SILENT_WINDOW: Final = 4  # without a calculator nobody would tell us that a config has gone bad


def closure(config: Config, shared: Mapping[Share, Shared]) -> str:
    """Why nothing but a probe may launch there, in words; empty while it is open.

    What is shared closes each config that has it, also one of which no record says so yet.
    """
    if config.closed:
        return config.reason or "closed"
    for share in config.shares:
        if share in shared and shared[share].closed:
            return f"{shared[share].reason or 'closed'}, by {share[0]}"
    return ""


def rooms(shared: Mapping[Share, Shared], *, calculator_silent: bool) -> dict[Share, int]:
    """Starts that all configs with a share still have room for together; without the shares that bound nothing."""
    return {
        share: max(0, _capped(known.window, calculator_silent) - known.in_flight - known.unfolded)
        for share, known in shared.items()
        if known.window is not None
    }


def trusted_weight(config: Config, *, calculator_silent_seconds: float, half_life_seconds: float) -> float:
    """The published weight; the longer the calculator is silent, the closer to what no evidence would give."""
    trust = exp2(-calculator_silent_seconds / half_life_seconds)
    return config.prior_weight + (config.weight - config.prior_weight) * trust


def room(config: Config, together: Mapping[Share, int], *, calculator_silent: bool) -> tuple[int, str]:
    """Starts that the config still has room for, and the window that limits them; `together` as `rooms` says.

    What is under way in an earlier stage will arrive in the later ones, so it counts there too: otherwise a full
    launch window could pour into a boot window with one unit left.
    """
    found = [
        (window - level, f"{name} window") for name, window, level in _levels(config, calculator_silent, failures=True)
    ]
    found += [(together[share], f"{share[1]} window of {share[0]}") for share in config.shares if share in together]
    tightest, window = min(found, default=(0, "no window"))
    return max(0, tightest), window


def may_attempt(config: Config, shared: Mapping[Share, Shared]) -> bool:
    """Whether a pool's one attempt of a silent time may be made there. Without a calculator nobody folds failures or
    opens circuits: neither forbids it. What is under way does: that ends by itself."""
    if not config.active or config.stopped:
        return False
    own = all(level < window for _, window, level in _levels(config, True, failures=False))
    return own and all(
        known.in_flight < _capped(known.window, True)
        for share in config.shares
        if (known := shared.get(share)) is not None and known.window is not None
    )


def _levels(config: Config, calculator_silent: bool, *, failures: bool) -> list[tuple[str, int, int]]:
    """Name, window and level of each stage that is judged."""
    found, arriving = [], 0
    for name, stage in (("launch", config.launch), ("boot", config.boot), ("claim", config.claim)):
        arriving += stage.in_flight
        if stage.window is not None:
            level = arriving + (stage.unfolded if failures else 0)
            found.append((name, _capped(stage.window, calculator_silent), level))
    return found


def _capped(window: int, calculator_silent: bool) -> int:
    return min(window, SILENT_WINDOW) if calculator_silent else window
