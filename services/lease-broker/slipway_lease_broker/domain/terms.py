"""The policy of one lease pool, as declared: values only. What each means for an admission stands in the module that
applies it."""

from enum import StrEnum
from typing import Final, Literal

import msgspec

from slipway_lease_broker.domain.pacing import Pacing


class Mode(StrEnum):
    SHADOW = "shadow"  # grants at once and records what would have waited
    ADVISORY = "advisory"  # the same, and tells it in the grant
    ENFORCE = "enforce"  # waits


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """What one unit of an operation costs, and what is kept for it."""

    weight: int = 1  # 0 counts nothing: it is admitted at once
    reserved_units: int = 0  # kept free of other operations
    max_wait_seconds: float | None = None  # after it, the operation proceeds over the limit and is counted


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """How long a tenant waits after a failing result: doubled by each failure in a row, up to the maximum."""

    seconds: float = 30.0
    max_seconds: float = 900.0


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limit follows throttle evidence between these bounds."""

    floor: int
    ceiling: int


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """The limit is so many units per unit reported, for example per live conductor."""

    per_unit: float


ANY_OPERATION: Final = Operation()


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """All that a lease pool declares beside its limit and its clocks. Durations are in seconds."""

    mode: Mode = Mode.ENFORCE
    lock_delay_seconds: float | None = None  # None: the broker's lost_linger_seconds
    pacing: Pacing | Literal["off"] | None = None  # None: one unit per hold / (2 × limit in force)
    operations: dict[str, Operation] = {}
    tenants: dict[str, float] = {}  # weight; 1 for those not named
    ageing_seconds: float = 300.0
    backoff: Backoff | None = Backoff()
    no_progress_seconds: float | None = None
    adaptive: Bounds | None = None
    derived: Derived | None = None

    def operation(self, name: str) -> Operation:
        return self.operations.get(name, ANY_OPERATION)

    def weight(self, tenant: str) -> float:
        return self.tenants.get(tenant, 1.0)
