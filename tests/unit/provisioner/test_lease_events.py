"""Lease events that are applied together: never two of one lease or request, and none before an earlier one."""

from collections.abc import Sequence
from typing import Any

import pytest

from slipway_api.events.lease import LeaseConfirmed, LeaseGranted, LeaseReleased
from slipway_provisioner.handlers.leases import _in_groups, _of_different_requests
from tests.support.provisioner import after, received


def granted(lease: str, request: str) -> LeaseGranted:
    own: dict[str, Any] = {"lease_pool_id": "sim-a", "lease_id": lease, "request_id": request, "fencing_token": 1}
    return LeaseGranted(**own, units=1, expires_at=after(60), hold_until=after(600), waited_seconds=0)


def confirmed(lease: str) -> LeaseConfirmed:
    return LeaseConfirmed(lease_pool_id="sim-a", lease_id=lease, fencing_token=1, expires_at=after(60))


def released(lease: str, request: str) -> LeaseReleased:
    own = {"lease_pool_id": "sim-a", "lease_id": lease, "request_id": request}
    return LeaseReleased(**own, units=1, remaining=0, reason="done")


A, B, CONFIRMED, ENDED = granted("a", "r-1"), granted("b", "r-2"), confirmed("d"), released("c", "r-3")


@pytest.mark.parametrize(
    ("events", "grouped"),
    [
        ([ENDED, A, CONFIRMED, B], [CONFIRMED, A, B, ENDED]),
        ([A, CONFIRMED, released("a", "r-9")], [A, CONFIRMED, released("a", "r-9")]),
        ([B, CONFIRMED, granted("a", "r-2")], [B, CONFIRMED, granted("a", "r-2")]),
    ],
    ids=["of different ones", "of one lease", "of one request"],
)
def test_events_are_applied_by_kind(events: Sequence[Any], grouped: Sequence[Any]) -> None:
    assert [record.event for record in _in_groups(received(*events))] == grouped


def test_grants_of_one_request_are_bound_in_parts() -> None:
    """Each is bound to what the one before it has left of the request."""
    more = granted("c", "r-1")
    parts = [[event for event, _ in part] for part in _of_different_requests(received(A, B, more))]
    assert parts == [[A, B], [more]]
