"""Bodies of answers, from rows of the ledger."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from slipway_api.http import lease_broker as api
from slipway_api.http.lease_pools import (
    DeclaredLeasePools,
    LeasePoolChange,
    LeasePoolReport,
    OtherTerms,
    Spread,
    ThrottledBand,
)
from slipway_common.declaration.changes import CHANGES_MAX, listed_dangers
from slipway_common.web.answers import Accepted
from slipway_lease_broker.domain.declaration import PoolChange, dangers, digest
from slipway_lease_broker.domain.ledger import Entry, Lease, LeasePool, Request
from slipway_lease_broker.domain.queue_status import QueueStatus
from slipway_lease_broker.domain.report import Report
from slipway_lease_broker.domain.terms import Mode


def lease(row: Lease, now: datetime, ttl_seconds: float) -> api.Lease:
    """A lease as of `now`, with the TTL of its pool."""
    is_advised = row.mode is not Mode.SHADOW
    return api.Lease(
        id=row.id,
        lease_id=row.id,
        lease_pool_id=row.lease_pool_id,
        request_id=row.request_id,
        tenant=row.tenant,
        operation=row.operation,
        owner=row.owner,
        holder=row.holder,
        units=row.units,
        fencing_token=row.fencing_token,
        state=row.state,
        granted_at=row.granted_at,
        expires_at=row.expires_at,
        hold_until=row.hold_until,
        ended_at=row.ended_at,
        ttl_seconds=ttl_seconds,
        ttl_seconds_left=left(row, row.expires_at, now),
        hold_seconds_left=left(row, row.hold_until, now),
        waited_seconds=row.waited_seconds,
        mode=row.mode,
        advised_wait_seconds=row.advised_wait_seconds if is_advised else None,
        reason=row.reason if is_advised or not row.live else "",
        unleased_by=row.unleased_by,
    )


def left(row: Lease, until: datetime, now: datetime) -> float:
    return max(0.0, (until - now).total_seconds()) if row.live else 0.0


def request(row: Request) -> api.LeaseRequest:
    """A request, of which nothing waits once it is granted."""
    return api.LeaseRequest(**_request(row))


def request_status(row: Request, status: QueueStatus | None, leases: list[api.Lease]) -> api.LeaseRequestStatus:
    """A request with its place while it waits, and its leases."""
    fields = _request(row)
    if status is not None:
        fields |= msgspec.structs.asdict(status)
    elif not leases:
        fields["state"] = "cancelled"
    return api.LeaseRequestStatus(**fields, leases=leases)


def _request(row: Request) -> dict[str, Any]:
    state = "waiting" if row.waiting_units else "granted"
    return {
        "request_id": row.id,
        "lease_pool_id": row.lease_pool_id,
        "state": "lapsed" if row.waiting_units and row.lapsed else state,
        "tenant": row.tenant,
        "operation": row.operation,
        "owner": row.owner,
        "priority": row.priority,
        "units": row.requested_units,
        "waiting_units": row.waiting_units,
        "requested_at": row.requested_at,
        "last_requested_at": row.last_requested_at,
    }


def queued(request_id: str, status: QueueStatus) -> Accepted[api.QueuedRequest]:
    """Answer to a request that waits."""
    body = api.QueuedRequest(request_id=request_id, **msgspec.structs.asdict(status))
    return Accepted(body, {"Retry-After": str(round(status.retry_after_seconds))})


def decision(row: Entry) -> api.LeaseDecision:
    """A line of history."""
    return api.LeaseDecision(
        at=row.at,
        lease_pool_id=row.lease_pool_id,
        kind=row.kind,
        lease_id=row.lease_id,
        request_id=row.request_id,
        units=row.units,
        reason=row.reason,
        by=row.actor,
    )


def report(pool: LeasePool, found: Report) -> LeasePoolReport:
    """A report as rows of names and figures, with the spreads as one table."""
    fields = msgspec.structs.asdict(found)
    names = ("concurrency", "waiting", "reserved", "held")
    spreads = [
        Spread(
            of="units at once" if name == "concurrency" else f"seconds {name}",
            **msgspec.structs.asdict(fields.pop(name)),
        )
        for name in names
    ]
    bands = [ThrottledBand(**msgspec.structs.asdict(band)) for band in fields.pop("bands")]
    what_if = msgspec.structs.asdict(fields.pop("what_if"))
    waits = what_if.pop("waiting")
    what_if |= {f"wait_seconds_{name}": getattr(waits, name) for name in ("p50", "p95", "most")}
    return LeasePoolReport(
        id=pool.id,
        mode=pool.policy.mode,
        limit=pool.limit_units,
        **fields,
        spreads=spreads,
        bands=bands,
        what_if=[OtherTerms(**what_if)],
    )


def changes(made: Sequence[PoolChange], *, applied: bool) -> DeclaredLeasePools:
    """Changes of a declaration, at most CHANGES_MAX of them."""
    items = [change for change in made if change.result != "unchanged"]
    listed = items[:CHANGES_MAX]
    return DeclaredLeasePools(
        items=[LeasePoolChange(**msgspec.structs.asdict(change.shown()), fields=change.fields) for change in listed],
        more=len(items) - len(listed),
        unchanged=len(made) - len(items),
        digest=digest(items),
        dangers=listed_dangers(dangers(items)),
        applied=applied,
    )
