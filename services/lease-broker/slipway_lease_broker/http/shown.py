"""JSON bodies of answers: rows of the ledger as shown over HTTP."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from fastapi import Response

from slipway_common.declaration.changes import CHANGES_MAX, listed_dangers
from slipway_lease_broker.domain.declaration import PoolChange, dangers, digest
from slipway_lease_broker.domain.ledger import Entry, Lease, Request
from slipway_lease_broker.domain.queue_status import QueueStatus
from slipway_lease_broker.domain.report import Report
from slipway_lease_broker.domain.terms import Mode


def answered(body: Any, status: int = 200, **headers: str) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def lease(row: Lease, now: datetime, ttl_seconds: float) -> dict[str, Any]:
    """A lease. `ttl_seconds_left` and `hold_seconds_left` count from `now` and are 0 once the lease has ended.
    `ttl_seconds` is the full TTL of its pool, by which holders time their renewals: near the end of the hold less than
    that is left."""
    is_advised = row.mode is not Mode.SHADOW
    return {
        "id": row.id,  # same as lease_id
        "lease_id": row.id,
        "lease_pool_id": row.lease_pool_id,
        "request_id": row.request_id,
        "tenant": row.tenant,
        "operation": row.operation,
        "owner": row.owner,
        "holder": row.holder,
        "units": row.units,
        "fencing_token": row.fencing_token,
        "state": row.state,
        "granted_at": row.granted_at,
        "expires_at": row.expires_at,
        "hold_until": row.hold_until,
        "ended_at": row.ended_at,
        "ttl_seconds": ttl_seconds,
        "ttl_seconds_left": left(row, row.expires_at, now),
        "hold_seconds_left": left(row, row.hold_until, now),
        "waited_seconds": row.waited_seconds,
        "mode": row.mode,
        "advised_wait_seconds": row.advised_wait_seconds if is_advised else None,
        "reason": row.reason if is_advised or not row.live else "",
        "unleased_by": row.unleased_by,
    }


def left(row: Lease, until: datetime, now: datetime) -> float:
    return max(0.0, (until - now).total_seconds()) if row.live else 0.0


def request(row: Request) -> dict[str, Any]:
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


def queued(request_id: str, status: QueueStatus) -> Response:
    return answered(
        {"request_id": request_id, "state": "waiting"} | msgspec.to_builtins(status),
        202,
        **{"Retry-After": str(round(status.retry_after_seconds))},
    )


def entry(row: Entry) -> dict[str, Any]:
    """A line of history; `by` is empty for changes by time or by the broker itself."""
    return {
        "at": row.at,
        "lease_pool_id": row.lease_pool_id,
        "kind": row.kind,
        "lease_id": row.lease_id,
        "request_id": row.request_id,
        "units": row.units,
        "reason": row.reason,
        "by": row.actor,
    }


def flat(report: Report) -> dict[str, Any]:
    """A report as rows of names and figures, with the spreads as one table."""
    body: dict[str, Any] = msgspec.to_builtins(report)
    names = ("concurrency", "waiting", "reserved", "held")
    spreads = [
        {"of": "units at once" if name == "concurrency" else f"seconds {name}"} | body.pop(name) for name in names
    ]
    what_if: dict[str, Any] = body.pop("what_if")
    waits = what_if.pop("waiting")
    what_if |= {f"wait_seconds_{name}": waits[name] for name in ("p50", "p95", "most")}
    return body | {"spreads": spreads, "bands": body["bands"], "what_if": [what_if]}


def changes(made: Sequence[PoolChange]) -> dict[str, Any]:
    """Changes of a declaration; `fields` holds [before, after] of each changed field. `more` counts those that are not
    listed."""
    items = [change for change in made if change.result != "unchanged"]
    listed = items[:CHANGES_MAX]
    return {
        "items": [msgspec.structs.asdict(change.shown()) | {"fields": change.fields} for change in listed],
        "more": len(items) - len(listed),
        "unchanged": len(made) - len(items),
        "digest": digest(items),
        "dangers": listed_dangers(dangers(items)),
    }
