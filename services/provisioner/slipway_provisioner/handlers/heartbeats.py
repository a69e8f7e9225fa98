"""View of service heartbeats, in memory. Availability is computed from this process's monotonic clock at receipt."""

from collections.abc import Sequence

from slipway_common.base.clock import monotonic_seconds
from slipway_common.database.postgres import Database
from slipway_common.events.topics import SERVICE_HEARTBEAT, Topic
from slipway_common.messaging.records import Received


class HeartbeatView:
    """Time of each service's last heartbeat. Without one, the time counts from the start of this process."""

    topic: Topic = SERVICE_HEARTBEAT

    def __init__(self) -> None:
        self.started = monotonic_seconds()
        self.last_heartbeat: dict[str, float] = {}

    async def apply(self, database: Database, records: Sequence[Received]) -> None:
        for record in records:
            if record.event is not None:
                self.last_heartbeat[record.event.service] = monotonic_seconds()

    def unavailable_seconds(self, service: str, *, after_seconds: float) -> float:
        """Seconds since the last heartbeat beyond `after_seconds`; 0 while the service is available."""
        return max(0.0, monotonic_seconds() - self.last_heartbeat.get(service, self.started) - after_seconds)
