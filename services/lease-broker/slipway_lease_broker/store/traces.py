"""Trace context of published events: events about a request or a lease continue the trace of the request."""

from collections.abc import Iterable, Sequence
from typing import Any

from slipway_common.messaging.outbox import Traced
from slipway_lease_broker.domain.ledger import Lease, Request


def traced(events: Sequence[Any], leases: Iterable[Lease], requests: Iterable[Request] = ()) -> list[Traced]:
    """The events, each with the trace of the lease or request that it names; a new trace where neither is known."""
    of_lease = {lease.id: lease.traceparent for lease in leases}
    of_request = {request.id: request.traceparent for request in requests}

    def trace(event: Any) -> str:
        request_trace = of_request.get(getattr(event, "request_id", ""), "")
        return of_lease.get(getattr(event, "lease_id", ""), request_trace)

    return [Traced(event, trace(event)) for event in events]
