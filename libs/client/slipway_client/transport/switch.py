"""Environment variable SLIPWAY_LEASE, which switches leases off."""

from collections.abc import Mapping
from typing import Final

SWITCH: Final = "SLIPWAY_LEASE"
OFF: Final = frozenset({"off", "false", "0"})


def switched_off(environment: Mapping[str, str]) -> bool:
    """True if leases are switched off: by `off`, `false` or `0`, in any case."""
    return environment.get(SWITCH, "").strip().lower() in OFF
