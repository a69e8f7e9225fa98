"""Rows as people and programs see them over HTTP."""

from datetime import datetime
from typing import Any

import msgspec
from fastapi import Response

from slipway_lease_broker.domain import waiting
from slipway_lease_broker.domain.ledger import Entry, Lease, Request
from slipway_lease_broker.domain.report import Report
from slipway_lease_broker.domain.terms import Mode
from slipway_lease_broker.domain.waiting import Waiting
from slipway_lease_broker.store.answers import Standing


def answered(body: Any, status: int = 200, **headers: str) -> Response:
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def lease(row: Lease, now: datetime) -> dict[str, Any]:
    """A lease. Both times that are left count from `now`; a holder may rely on neither after it has ended."""
    tells = row.mode is not Mode.SHADOW
    return {
        "id": row.id,  # as lists of leases have always had it
        "lease_id": row.id,
        "lease_pool_id": row.lease_pool_id,
        "request_id": row.request_id,
        "tenant": row.tenant,
        "operation": row.operation,
        "owner": row.owner,
        "units": row.units,
        "fencing_token": row.fencing_token,
        "state": row.state,
        "granted_at": row.granted_at,
        "expires_at": row.expires_at,
        "hold_until": row.hold_until,
        "ended_at": row.ended_at,
        "ttl_seconds_left": left(row, row.expires_at, now),
        "hold_seconds_left": left(row, row.hold_until, now),
        "waited_seconds": row.waited_seconds,
        "mode": row.mode,
        "advised_wait_seconds": row.advised_wait_seconds if tells else None,
        "reason": row.reason if tells or not row.live else "",
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
        "units": row.asked_units,
        "waiting_units": row.waiting_units,
        "asked_at": row.asked_at,
        "last_asked_at": row.last_asked_at,
    }


def told(standing: Standing) -> Waiting:
    return waiting.told(
        standing.pool,
        standing.request,
        standing.position,
        standing.now,
        granted_units=standing.granted_units,
        granted_seconds=standing.granted_seconds,
        backoff_until=standing.backoff_until,
    )


def queued(request_id: str, told: Waiting) -> Response:
    return answered(
        {
            "request_id": request_id,
            "state": "waiting",
            "position": told.position,
            "eta_seconds": told.eta_seconds,
            "retry_after_seconds": told.retry_after_seconds,
            "reason": told.reason,
        },
        202,
        **{"Retry-After": str(round(told.retry_after_seconds))},
    )


def entry(row: Entry) -> dict[str, Any]:
    """A line of history; `by` is empty for what time or the broker itself did."""
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


def flat(told: Report) -> dict[str, Any]:
    """A report as rows of names and figures: spreads of one kind side by side, for whoever reads it as a table."""
    body: dict[str, Any] = msgspec.to_builtins(told)
    names = ("concurrency", "waiting", "reserved", "held")
    spreads = [
        {"of": "units at once" if name == "concurrency" else f"seconds {name}"} | body.pop(name) for name in names
    ]
    what_if: dict[str, Any] = body.pop("what_if")
    waits = what_if.pop("waiting")
    what_if |= {f"wait_seconds_{name}": waits[name] for name in ("p50", "p95", "most")}
    return body | {"spreads": spreads, "bands": body["bands"], "what_if": [what_if]}
