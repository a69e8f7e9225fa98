"""Answer to a repeated lease request. Without it, one lost event would let its owner wait for ever. Pure."""

from collections.abc import Iterable

from slipway_common.events.lease import LeaseExpired, LeaseGranted, LeaseLost, LeaseQueued, LeaseReleased
from slipway_lease_broker.domain.decide import grant_event, queued_event
from slipway_lease_broker.domain.endings import ended_event
from slipway_lease_broker.domain.ledger import Lease, Request

Event = LeaseGranted | LeaseReleased | LeaseExpired | LeaseLost | LeaseQueued


def answer_repeated(request: Request, leases: Iterable[Lease]) -> list[Event]:
    """The grant or the end of each lease of the request, in order of grants, and at last the units that wait."""
    granted = sorted((one for one in leases if one.request_id == request.id), key=lambda lease: lease.fencing_token)
    answers: list[Event] = [grant_event(lease) if lease.live else ended_event(lease) for lease in granted]
    return [*answers, queued_event(request, 0)]
