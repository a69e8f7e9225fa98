"""How many more starts a config may have under way. Weights say where, windows how many. Pure.

A window is a level: in flight + (failures so far − failures folded into the weight) < window. A success frees its
unit at once, a failure only through a weight record that has folded it; so replicas, stale weights and a dead
calculator cannot exceed it.
"""

from math import exp2
from typing import Final

from slipway_provisioner.domain.pool import Config, Shared, Stage

SILENT_WINDOW: Final = 4  # without a calculator nobody would tell us that a config has gone bad
SILENT_HALF_LIFE_SECONDS: Final = 600.0  # as fast as evidence decays in the calculator itself


def _level(stage: Stage) -> int:
    return stage.in_flight + max(0, stage.failures - stage.folded)


def shared_room(shared: Shared, *, calculator_silent: bool) -> int:
    """Starts that all configs of an image revision or quota together still have room for."""
    window = min(shared.window, SILENT_WINDOW) if calculator_silent else shared.window
    return max(0, window - shared.level)


def trusted_weight(config: Config, *, calculator_silent_seconds: float) -> float:
    """The published weight; the longer the calculator is silent, the closer to what no evidence would give."""
    trust = exp2(-calculator_silent_seconds / SILENT_HALF_LIFE_SECONDS)
    return config.prior_weight + (config.weight - config.prior_weight) * trust


def room(config: Config, *, calculator_silent: bool) -> tuple[int, str]:
    """Starts that the config still has room for, and the stage that limits them.

    What is under way in an earlier stage will arrive in the later ones, so it counts there too: otherwise a full
    launch window could pour into a boot window with one unit left.
    """
    rooms = []
    upstream = 0
    for name, stage in (("launch", config.launch), ("boot", config.boot), ("claim", config.claim)):
        window = min(stage.window, SILENT_WINDOW) if calculator_silent else stage.window
        rooms.append((window - _level(stage) - upstream, name))
        upstream += stage.in_flight
    tightest, name = min(rooms)
    return max(0, tightest), name
