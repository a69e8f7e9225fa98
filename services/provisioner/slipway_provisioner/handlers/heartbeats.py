"""View of service heartbeats, in memory. Availability is computed from this process's monotonic clock.

A heartbeat counts from when it was sent, by the database's clock: a reader that begins again reads the last heartbeat
of each service, however old it is.
"""

from collections.abc import Sequence

from slipway_api.events.topics import SERVICE_HEARTBEAT, Topic
from slipway_common.base.clock import monotonic_seconds
from slipway_common.database.postgres import Database
from slipway_common.messaging.records import Received
from slipway_provisioner.store.clock import clock


class HeartbeatView:
    """Time of each service's last heartbeat. Without one, the time counts from the start of this process."""

    topic: Topic = SERVICE_HEARTBEAT

    def __init__(self) -> None:
        self.started = monotonic_seconds()
        self.last_heartbeat: dict[str, float] = {}

    async def apply(self, database: Database, records: Sequence[Received]) -> None:
        now = await clock(database)
        for record in records:
            if record.event is None:
                continue
            # A jump of the database's clock moves no heartbeat before one that was received earlier.
            sent_at = monotonic_seconds() - max(0.0, (now - record.time).total_seconds())
            service = record.event.service
            self.last_heartbeat[service] = max(sent_at, self.last_heartbeat.get(service, self.started))

    def unavailable_seconds(self, service: str, *, after_seconds: float) -> float:
        """Seconds since the last heartbeat beyond `after_seconds`; 0 while the service is available."""
        return max(0.0, monotonic_seconds() - self.last_heartbeat.get(service, self.started) - after_seconds)
