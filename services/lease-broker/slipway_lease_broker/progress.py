"""Reception of lease commands by this process: until when it has read the requests of each lease pool, and answered
over HTTP."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from slipway_api.events.topics import LEASE_REQUEST
from slipway_api.percent import encoded
from slipway_common.base.clock import monotonic_seconds
from slipway_common.database.postgres import Database
from slipway_common.messaging.relay import partition_for
from slipway_common.observability.telemetry import logger
from slipway_common.web.runtime import Runtime
from slipway_lease_broker.domain.reception import DOWNTIME_SECONDS, Downtime, Reading, Receiving, Reception
from slipway_lease_broker.store import reception

LOG = logger(__name__)

RECORD_SECONDS: Final = 1.0
HTTP: Final = "http"
Way: TypeAlias = str | tuple[int, int]
"""HTTP, or a partition of the requests with the epoch under which this process reads it."""


class RequestProgress:
    """Partitions of the request topic that this process reads. Only the process that reads a partition lets deadlines
    pass that its commands could move, since it alone knows what waits there."""

    def __init__(self, runtime: Runtime, partitions: int, clock: Callable[[], float] = monotonic_seconds) -> None:
        self._clock = clock
        self._runtime = runtime
        self._partitions = partitions
        self._readings: dict[tuple[int, int], Reading] = {}
        self._receptions: dict[Way, tuple[Reception, float]] = {}  # with `received_until` as monotonic time
        self._recorded_at = 0.0

    def receiving(self, lease_pool_id: str) -> Receiving:
        """Downtimes of the ways in for a pool."""
        partition = partition_for(encoded(lease_pool_id), self._partitions)
        place = next((place for place in self._owned() if place[0] == partition), None)
        kafka = None if place is None else self._downtimes(place)
        return Receiving(kafka=kafka, http=self._downtimes(HTTP), reads=place is not None)

    def _downtimes(self, way: Way) -> Sequence[Downtime] | None:
        if way not in self._receptions:
            return None
        known, until = self._receptions[way]
        return known.downtimes if self._clock() - until <= DOWNTIME_SECONDS else None

    async def record(self, database: Database) -> bool:
        """Record until when commands were received."""
        now = self._clock()
        if now - self._recorded_at < RECORD_SECONDS * 0.9:
            return False  # woken early
        self._recorded_at = now
        self._observe(now)
        until: dict[Way, float] = {HTTP: now}
        until |= {
            place: reading.received_until
            for place, reading in self._readings.items()
            if reading.received_until is not None
        }
        async with database.acquire() as db, db.transaction():
            # What cannot be received from the beginning is downtime too.
            await reception.begin(db, [name_of(place) for place in self._owned() if place not in until])
            after = await reception.record(db, {name_of(way): now - at for way, at in until.items()})
        for way, at in until.items():
            before, known = self._receptions.get(way), after[name_of(way)]
            if before is not None and known.downtimes and known.downtimes != before[0].downtimes:
                LOG.warning(
                    "lease deadlines are postponed by a downtime", way=name_of(way), downtime=known.downtimes[-1]
                )
            self._receptions[way] = known, at
        return False

    def _owned(self) -> dict[tuple[int, int], Any]:
        """Partitions with their epochs, and the subscription that reads them."""
        return {
            (partition, owned.epoch): subscription
            for subscription in self._runtime.subscriptions
            if subscription.consumer.topic is LEASE_REQUEST
            for partition, owned in subscription.owned.items()
        }

    def _observe(self, now: float) -> None:
        """Look at the progress in each partition; forget those that are not read any more."""
        owned = self._owned()
        self._readings = {place: reading for place, reading in self._readings.items() if place in owned}
        self._receptions = {way: known for way, known in self._receptions.items() if way == HTTP or way in owned}
        for place, subscription in owned.items():
            client, tp = subscription.client, subscription.at(place[0])
            if tp not in client.assignment():
                continue
            polled, end = client.last_poll_timestamp(tp), client.highwater(tp)
            if place not in self._readings:
                self._readings[place] = Reading(now, polled)
            elif polled is not None and end is not None:
                self._readings[place].observe(now, polled, end, subscription.owned[place[0]].next_offset)


def name_of(way: Way) -> str:
    return way if isinstance(way, str) else str(way[0])
