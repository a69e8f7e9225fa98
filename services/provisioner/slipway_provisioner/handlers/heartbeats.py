"""Who is alive, in memory only: silence is judged by this process's own clock since it last heard."""

from collections.abc import Sequence

from slipway_common.clock import monotonic_seconds
from slipway_common.postgres import Pool
from slipway_common.records import Received
from slipway_common.topics import SERVICE_HEARTBEAT, Topic


class HeartbeatView:
    """When each service was last heard. A service never heard of counts as silent since we started."""

    topic: Topic = SERVICE_HEARTBEAT

    def __init__(self) -> None:
        self.started = monotonic_seconds()
        self.heard: dict[str, float] = {}

    async def apply(self, pool: Pool, records: Sequence[Received]) -> None:
        for record in records:
            if record.event is not None:
                self.heard[record.event.service] = monotonic_seconds()

    def silent_seconds(self, service: str, *, after_seconds: float) -> float:
        """Seconds of silence beyond `after_seconds`; 0 while the service is heard."""
        return max(0.0, monotonic_seconds() - self.heard.get(service, self.started) - after_seconds)
