"""Hearing of this process: until when it has read the requests of each lease pool, and answered over HTTP."""

from typing import Any, Final

from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.percent import encoded
from slipway_common.database.postgres import Database
from slipway_common.events.topics import LEASE_REQUEST
from slipway_common.messaging.relay import partition_for
from slipway_common.observability.telemetry import logger
from slipway_common.web.runtime import Runtime
from slipway_lease_broker.domain.hearing import QUIET_SECONDS, Heard, Hearing, Reading
from slipway_lease_broker.store import hearing

LOG = logger(__name__)

LISTEN_SECONDS: Final = 1.0
HTTP: Final = "http"


class RequestProgress:
    """Partitions of the request topic that this process reads. Only the process that reads a partition lets the
    deadlines pass that its commands could move, since it alone knows what waits there."""

    def __init__(self, runtime: Runtime, partitions: int) -> None:
        self._runtime = runtime
        self._partitions = partitions
        self._readings: dict[tuple[int, int], Reading] = {}  # by partition and epoch
        self._hearings: dict[str | tuple[int, int], tuple[Hearing, float]] = {}  # and when holders were heard
        self._listened_at = 0.0

    def heard(self, lease_pool_id: str) -> Heard:
        """How the holders of leases of a pool are heard now."""
        partition = partition_for(encoded(lease_pool_id), self._partitions)
        place = next((place for place in self._owned() if place[0] == partition), None)
        return Heard(
            kafka=None if place is None else self._quiet(place), http=self._quiet(HTTP), reads=place is not None
        )

    def _quiet(self, way: str | tuple[int, int]) -> Any:
        hearing_, heard_at = self._hearings.get(way, (None, 0.0))
        is_heard = hearing_ is not None and monotonic_seconds() - heard_at <= QUIET_SECONDS
        return hearing_.quiet if hearing_ is not None and is_heard else None

    async def listen(self, database: Database) -> bool:
        """Record until when holders were heard."""
        now = monotonic_seconds()
        if now - self._listened_at < LISTEN_SECONDS * 0.9:
            return False  # woken early
        self._listened_at = now
        self._look(now)
        heard_at: dict[str | tuple[int, int], float] = {HTTP: now}
        heard_at |= {place: one.heard_at for place, one in self._readings.items() if one.heard_at is not None}
        ages = {name_of(way): now - at for way, at in heard_at.items()}
        async with database.acquire() as db, db.transaction():
            hearings = await hearing.listen(db, ages)
        for way, at in heard_at.items():
            after, (before, _) = hearings[name_of(way)], self._hearings.get(way, (None, 0.0))
            if before is not None and after.quiet != before.quiet:
                LOG.warning("holders were not heard, leases get more time", way=name_of(way), quiet=after.quiet[-1:])
            self._hearings[way] = after, at
        return False

    def _owned(self) -> dict[tuple[int, int], Any]:
        """Partitions with their epochs, and the subscription that reads them."""
        return {
            (partition, owned.epoch): subscription
            for subscription in self._runtime.subscriptions
            if subscription.consumer.topic is LEASE_REQUEST
            for partition, owned in subscription.owned.items()
        }

    def _look(self, now: float) -> None:
        """Look at the progress in each partition; forget those that are not read any more."""
        owned = self._owned()
        self._readings = {place: one for place, one in self._readings.items() if place in owned}
        self._hearings = {way: known for way, known in self._hearings.items() if way == HTTP or way in owned}
        for place, subscription in owned.items():
            client, tp = subscription.client, subscription.at(place[0])
            if tp not in client.assignment():
                continue
            polled, end = client.last_poll_timestamp(tp), client.highwater(tp)
            if place not in self._readings:
                self._readings[place] = Reading(now, polled)
            elif polled is not None and end is not None:
                self._readings[place].look(now, polled, end, subscription.owned[place[0]].next_offset)


def name_of(way: str | tuple[int, int]) -> str:
    return way if isinstance(way, str) else str(way[0])
