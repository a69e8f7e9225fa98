"""Reception of a process: what it reads, and what it does not."""

from types import SimpleNamespace
from typing import Any

import pytest

from slipway_api.events.topics import LEASE_REQUEST
from slipway_api.percent import encoded
from slipway_common.messaging.consume import Consumer, Owned
from slipway_common.messaging.relay import partition_for
from slipway_common.web.runtime import Runtime
from slipway_lease_broker.handlers.requests import LeaseCommandHandler
from slipway_lease_broker.progress import RequestProgress
from tests.support.lease_broker import NOT_RECEIVING, admissions

PARTITIONS = 4
PARTITION = partition_for(encoded("sim-a"), PARTITIONS)


@pytest.mark.parametrize(("owned", "reads"), [({}, False), ({PARTITION: Owned(1, 4)}, True), ({9: Owned(1, 4)}, False)])
def test_a_process_that_has_read_nothing_yet_receives_nothing(owned: dict[int, Owned], reads: bool) -> None:
    """After a start or take-over, renewals may be waiting in the log."""
    runtime = Runtime()
    consumer = Consumer("lease-broker", LEASE_REQUEST, LeaseCommandHandler(admissions()).handle)
    subscription: Any = SimpleNamespace(consumer=consumer, owned=owned)
    runtime.subscriptions = [subscription]
    receiving = RequestProgress(runtime, PARTITIONS).receiving("sim-a")
    assert (receiving.kafka, receiving.http, receiving.reads) == (NOT_RECEIVING.kafka, NOT_RECEIVING.http, reads)
