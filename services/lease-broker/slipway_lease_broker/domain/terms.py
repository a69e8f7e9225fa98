"""Terms of the broker and the declared policy of a lease pool. Values only; each is explained where it applies."""

from enum import StrEnum
from typing import Final, Literal

import msgspec

from slipway_lease_broker.domain.pacing import MAX_INTERVAL_SECONDS, Pacing


class BrokerTerms(msgspec.Struct, frozen=True, kw_only=True):
    """Terms of the broker, documented in settings.py. Durations are in seconds."""

    lost_linger_seconds: float
    waiter_ttl_seconds: float
    waiting_requests_max: int
    slot_expired_state: str
    slot_request_ttl_seconds: float
    proxy_wait_seconds: float
    open_to_all: bool  # the slot API accepts callers without a token


class Mode(StrEnum):
    SHADOW = "shadow"  # grants at once and records how long each request would have waited
    ADVISORY = "advisory"  # the same, and reports it in the grant
    ENFORCE = "enforce"  # makes requests wait


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of one unit of an operation, its reserved units, its maximum wait and its pacing."""

    weight: int = 1  # 0: not counted, admitted at once
    reserved_units: int = 0  # not available to other operations
    max_wait_seconds: float | None = None  # after it, the operation proceeds over the limit and is counted
    pacing: Pacing | Literal["off"] | None = None  # None: that of its pool


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Wait of a tenant after a failed lease: doubled by each failure in a row, up to the maximum."""

    seconds: float = 30.0
    max_seconds: float = 900.0


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limit follows throttle evidence between these bounds."""

    floor: int
    ceiling: int


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """A limit of `per_unit` units per reported unit, for example per live conductor."""

    per_unit: float


ANY_OPERATION: Final = Operation()


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Terms of a lease pool beside its limit and its hold, ttl and reserve times. Durations are in seconds."""

    mode: Mode = Mode.ENFORCE
    lock_delay_seconds: float | None = None  # None: the broker's lost_linger_seconds
    pacing: Pacing | Literal["off"] | None = None  # None: one unit per min(hold / (2 × limit in force), maximum)
    max_interval_seconds: float = MAX_INTERVAL_SECONDS  # between starts, unless their pacing is declared
    operations: dict[str, Operation] = {}
    tenants: dict[str, float] = {}  # weight; 1 for those not named
    ageing_seconds: float = 300.0
    backoff: Backoff | None = Backoff()
    no_progress_seconds: float | None = None
    retry_after_max_seconds: float = 300.0
    adaptive: Bounds | None = None
    derived: Derived | None = None

    def operation(self, name: str) -> Operation:
        return self.operations.get(name, ANY_OPERATION)
