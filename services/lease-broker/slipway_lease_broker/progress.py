"""Progress of this process in reading the request topic."""

import msgspec

from slipway_common.base.percent import encoded
from slipway_common.events.topics import LEASE_REQUEST
from slipway_common.messaging.relay import partition_for
from slipway_common.web.runtime import Runtime


class RequestProgress(msgspec.Struct, frozen=True):
    """Partitions of the request topic that this process has read. Only the process that reads a partition lets
    deadlines pass, since it alone knows what commands wait there."""

    runtime: Runtime
    partitions: int

    def caught_up(self, lease_pool_id: str) -> bool:
        """True if no command of this pool is waiting to be read that was sent before the assignment."""
        return caught_up(self.runtime, partition_for(encoded(lease_pool_id), self.partitions))


def caught_up(runtime: Runtime, partition: int) -> bool:
    """True if this process is assigned a partition of the requests and has read it to the end seen at assignment."""
    for subscription in runtime.subscriptions:
        owned = subscription.owned.get(partition)
        if subscription.consumer.topic is LEASE_REQUEST and owned is not None:
            return owned.next_offset >= subscription.targets.get(partition, 0)
    return False
