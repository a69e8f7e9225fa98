"""SLIPWAY_LEASE: the switch that lets everything run as if there were no leases."""

from collections.abc import Mapping
from typing import Final

SWITCH: Final = "SLIPWAY_LEASE"
OFF: Final = frozenset({"off", "false", "0"})


def switched_off(environment: Mapping[str, str]) -> bool:
    """In capitals too; every other value leaves leases on."""
    return environment.get(SWITCH, "").strip().lower() in OFF
