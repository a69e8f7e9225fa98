"""Requests to the lease-broker and its answers. Values only."""

from typing import Any

import msgspec

from slipway_api.events.lease import LeaseGroup, ReplacedLease
from slipway_client.view import moments
from slipway_common.base.sanitize import printable


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Request for a lease. The same id is the same request, also from another process and after a crash. `holder` names
    the process; empty for one that only passes the lease on. With `join` it holds the lease together with others."""

    lease_pool_id: str
    request_id: str
    operation: str = "install"
    units: int = 1
    tenant: str = ""
    priority: int = 0
    hold_seconds: float | None = None
    replaces: ReplacedLease | None = None
    group: LeaseGroup | None = None
    holder: str = ""
    join: bool = False

    def __post_init__(self) -> None:
        """Raise ValueError for an empty pool id, as from an unset shell variable, and for text that is not UTF-8."""
        if not self.lease_pool_id:
            raise ValueError("the lease pool id is empty: is a variable not set?")
        for name in ("lease_pool_id", "request_id", "operation", "tenant"):
            text = getattr(self, name)
            if not text.isprintable():
                raise ValueError(
                    f"the {name.replace('_', ' ')} {printable(text)} has a character that cannot be printed"
                )

    def body(self, wait_seconds: float) -> dict[str, Any]:
        """Body of the request; the broker chooses defaults for what is left out."""
        given: dict[str, Any] = msgspec.to_builtins(self)
        given = {name: value for name, value in given.items() if value not in (None, "")}
        if not self.join:
            del given["join"]
        del given["lease_pool_id"]
        if self.group is not None and self.group.member is None:
            del given["group"]["member"]
        return given | {"wait_seconds": wait_seconds}


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """Member of a gang: one lease."""

    pool: str
    units: int = 1
    hold_seconds: float | None = None


class Gang(msgspec.Struct, frozen=True, kw_only=True):
    """Request for leases of several pools."""

    request_id: str
    members: tuple[Member, ...]
    operation: str = "install"
    tenant: str = ""

    def body(self, wait_seconds: float) -> dict[str, Any]:
        """Body of the request."""
        given: dict[str, Any] = msgspec.to_builtins(self)
        given["members"] = [
            {name: value for name, value in member.items() if value is not None} for member in given["members"]
        ]
        return {name: value for name, value in given.items() if value != ""} | {"wait_seconds": wait_seconds}


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease as the broker returns it. `ttl_seconds` is the full TTL of its pool; durations `left` are those when it
    answered, by its clock."""

    lease_id: str
    lease_pool_id: str
    request_id: str
    fencing_token: int
    ttl_seconds: float
    ttl_seconds_left: float
    hold_seconds_left: float
    granted_at: str
    hold_until: str
    expires_at: str | None = None
    units: int = 1
    state: str = "confirmed"
    waited_seconds: float = 0.0
    mode: str = "enforce"
    advised_wait_seconds: float | None = None
    reason: str | None = None

    @property
    def hold_seconds(self) -> float:
        """Total hold."""
        return (moments.at(self.hold_until) - moments.at(self.granted_at)).total_seconds()

    @property
    def handle(self) -> str:
        """Handle for shells: LEASE_ID:FENCING_TOKEN."""
        return f"{self.lease_id}:{self.fencing_token}"


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A queued request; `position` counts from 1, `eta_seconds` is None if unknown. `cause` is the code of `reason`."""

    position: int | None = None
    eta_seconds: float | None = None
    retry_after_seconds: float = 1.0
    reason: str | None = None
    cause: str | None = None


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """An unleased start; `started_at` is RFC 3339. `cause`: `unavailable` (the broker), `max_wait` (its request still
    waits) or `lost` (its lease expired)."""

    request_id: str
    operation: str
    units: int
    started_at: str
    hold_seconds: float | None = None
    cause: str = "unavailable"


def parse_handle(text: str) -> ReplacedLease:
    """Parse `LEASE_ID:FENCING_TOKEN` as `acquire` prints it. Raises ValueError."""
    lease_id, _, token = text.rpartition(":")
    if not lease_id or not token.isascii() or not token.isdecimal():
        raise ValueError(f"{text!r} is not LEASE_ID:FENCING_TOKEN, as `slipway lease acquire` prints it")
    return ReplacedLease(lease_id=lease_id, fencing_token=int(token))
