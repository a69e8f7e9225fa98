"""Prices of machines per hour, exact, by what a provider bills them by. Pure."""

from collections.abc import Mapping
from decimal import Decimal
from typing import NamedTuple


class MachineKind(NamedTuple):
    """Kind of machine, as it is billed: provider, region, instance type and lifecycle, which is on-demand or spot."""

    provider: str
    region: str
    instance_type: str
    lifecycle: str

    def __str__(self) -> str:
        return f"{self.instance_type} ({self.provider}, {self.region}, {self.lifecycle})"


Prices = Mapping[MachineKind, Decimal]
"""Price per hour of each kind of machine, all in one currency."""
