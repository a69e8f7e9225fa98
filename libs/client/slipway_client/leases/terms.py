"""Requests to the lease-broker and its answers. Values only."""

import msgspec
from msgspec.structs import replace

from slipway_api.http.lease_broker import AcquireLease, AcquireReplaces, Lease
from slipway_common.base.sanitize import printable


class Wanted(AcquireLease, frozen=True, kw_only=True):
    """Request for a lease of one pool. The same id is the same request, also from another process and after a crash.
    Without a `holder` the process only passes the lease on. With `join` it holds the lease together with others."""

    lease_pool_id: str

    def __post_init__(self) -> None:
        """Raise ValueError for an empty pool id, as from an unset shell variable, and for text that is not UTF-8."""
        super().__post_init__()
        if not self.lease_pool_id:
            raise ValueError("the lease pool id is empty: is a variable not set?")
        for name in ("lease_pool_id", "request_id", "operation", "tenant"):
            text = getattr(self, name) or ""
            if not text.isprintable():
                raise ValueError(
                    f"the {name.replace('_', ' ')} {printable(text)} has a character that cannot be printed"
                )

    def body(self, wait_seconds: float) -> dict[str, object]:
        """Body of the request; the broker chooses defaults for what is left out."""
        given: dict[str, object] = msgspec.to_builtins(replace(self, wait_seconds=wait_seconds))
        del given["lease_pool_id"]
        return given


def hold_seconds(lease: Lease) -> float:
    """Total hold of a lease."""
    return (lease.hold_until - lease.granted_at).total_seconds()


def handle(lease: Lease) -> str:
    """Handle for shells: LEASE_ID:FENCING_TOKEN."""
    return f"{lease.lease_id}:{lease.fencing_token}"


def parse_handle(text: str) -> AcquireReplaces:
    """Parse `LEASE_ID:FENCING_TOKEN` as `acquire` prints it. Raises ValueError."""
    lease_id, _, token = text.rpartition(":")
    if not lease_id or not token.isascii() or not token.isdecimal():
        raise ValueError(f"{text!r} is not LEASE_ID:FENCING_TOKEN, as `slipway lease acquire` prints it")
    return AcquireReplaces(lease_id=lease_id, fencing_token=int(token))
