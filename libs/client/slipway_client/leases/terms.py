"""Requests to the lease-broker and its answers. Values only."""

import msgspec

from slipway_api.events.lease import LeaseGroup, ReplacedLease
from slipway_api.http.lease_broker import Lease
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

    def body(self, wait_seconds: float) -> dict[str, object]:
        """Body of the request; the broker chooses defaults for what is left out."""
        given = msgspec.to_builtins(self)
        given = {name: value for name, value in given.items() if value not in (None, "")}
        if not self.join:
            del given["join"]
        del given["lease_pool_id"]
        if self.group is not None and self.group.member is None:
            del given["group"]["member"]
        return {**given, "wait_seconds": wait_seconds}


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

    def body(self, wait_seconds: float) -> dict[str, object]:
        """Body of the request."""
        given = msgspec.to_builtins(self)
        given["members"] = [
            {name: value for name, value in member.items() if value is not None} for member in given["members"]
        ]
        return {name: value for name, value in given.items() if value != ""} | {"wait_seconds": wait_seconds}


def hold_seconds(lease: Lease) -> float:
    """Total hold of a lease."""
    return (lease.hold_until - lease.granted_at).total_seconds()


def handle(lease: Lease) -> str:
    """Handle for shells: LEASE_ID:FENCING_TOKEN."""
    return f"{lease.lease_id}:{lease.fencing_token}"


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
