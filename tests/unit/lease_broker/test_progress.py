"""Replicas that may let deadlines pass."""

from types import SimpleNamespace

import pytest

from slipway_common.events.topics import LEASE_REQUEST
from slipway_common.messaging.consume import Consumer, Owned
from slipway_common.web.runtime import Runtime
from slipway_lease_broker.handlers.requests import LeaseCommandHandler
from slipway_lease_broker.progress import caught_up
from tests.support.lease_broker import admissions


@pytest.mark.parametrize(
    ("owned", "targets", "expected"),
    [
        ({}, {}, False),  # unassigned, or assigned to another replica
        ({3: Owned(1, 4)}, {3: 5}, False),  # renewals may be waiting
        ({3: Owned(1, 5)}, {3: 5}, True),
        ({3: Owned(1, 9)}, {3: 5}, True),  # later commands are not waited for
        ({2: Owned(1, 9)}, {2: 5}, False),
    ],
)
def test_only_the_assigned_replica_that_has_read_lets_deadlines_pass(
    owned: dict[int, Owned], targets: dict[int, int], expected: bool
) -> None:
    """A partition counts as read at the end that was seen at the assignment."""
    runtime = Runtime()
    consumer = Consumer("lease-broker", LEASE_REQUEST, LeaseCommandHandler(admissions()).handle)
    runtime.subscriptions = [SimpleNamespace(consumer=consumer, owned=owned, targets=targets)]  # type: ignore[list-item]
    assert caught_up(runtime, 3) is expected
