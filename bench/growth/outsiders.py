"""Records that others than the services write to the log of a deployment: monitors, people, and another producer.

Of each kind there is one that is applied and one that is not: refused, behind a gap, or without a meaning.
"""

from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from bench.growth.copies import MARK
from slipway_api.events.lease import LeaseGroup, LeaseRequested
from slipway_api.events.pool import DemandReported
from slipway_api.events.signal import SignalRaised
from slipway_api.events.topics import (
    LAUNCH_CONFIG_SIGNAL,
    LEASE_LIFECYCLE,
    LEASE_REQUEST,
    POOL_DEMAND,
    WORKER_LIFECYCLE,
    Topic,
)
from slipway_common.base.ids import new_id
from slipway_common.messaging.envelope import Envelope, encode
from tests.simulation.commands import POOL, ZONES
from tests.simulation.deployment import Deployment
from tests.simulation.outside import START

SOURCE: Final = f"monitor-{MARK}"
NUMBERED: Final = "/slipway/later/1"
"""Source that numbers its records, such as a service of a later version: this one does not know the type."""
LATER: Final = "io.slipway.later.v1"
SIGNAL_SECONDS: Final = 60.0
UNREADABLE: Final = b"{"


class Outsiders:
    """Writers of records to the log of a deployment."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.number = 0

    async def write(self) -> None:
        """Append the records of a day."""
        for pool_id, source in ((POOL, SOURCE), (f"nobody-{MARK}", "q")):
            report = DemandReported(pool_id=pool_id, source=source, pending=0, claimed=0, observed_at=self._now)
            self._publish(POOL_DEMAND, report)
        self._publish(LAUNCH_CONFIG_SIGNAL, self._signal("degraded", ZONES[0]))
        for config in ZONES:  # more than the share of one source
            self._publish(LAUNCH_CONFIG_SIGNAL, self._signal("pause_request", config))
        self.refused_signal()
        group = LeaseGroup(name=f"group-{MARK}", size=2, spread_seconds=60)
        for chosen in (None, group):
            self._publish(LEASE_REQUEST, self._lease(chosen))
        self._publish(LEASE_REQUEST, self._lease(None), UNREADABLE)
        self._publish(LAUNCH_CONFIG_SIGNAL, self._signal("degraded", f"unreadable-{MARK}"), UNREADABLE)
        self.numbered()
        self.number += 1  # the record with it is lost
        self.numbered()

    def refused_signal(self) -> None:
        """Append a signal about nothing."""
        self._publish(LAUNCH_CONFIG_SIGNAL, self._signal("degraded", f"nothing-{MARK}"))

    def numbered(self) -> None:
        """Append the next record of the source that numbers its records, to one topic of each service."""
        self.number += 1
        for topic in (WORKER_LIFECYCLE, LEASE_REQUEST, LEASE_LIFECYCLE):
            envelope = self._envelope(LATER, NUMBERED, f"later-{MARK}")
            numbers = {"sequence_number": self.number, "previous": self.number - 1}
            self._append(topic, msgspec.structs.replace(envelope, **numbers), b"{}")

    @property
    def _now(self) -> datetime:
        return START + timedelta(seconds=self.deployment.elapsed)

    def _signal(self, kind: str, config: str) -> SignalRaised:
        return SignalRaised(
            source=SOURCE,
            target_kind="config",
            target_id=config,
            kind=kind,
            value=0.5,
            ttl_seconds=SIGNAL_SECONDS,
            observed_at=self._now,
            reason="drill",
        )

    def _lease(self, group: LeaseGroup | None) -> LeaseRequested:
        tenant = f"tenant-{MARK}"
        return LeaseRequested(lease_pool_id="sim-a", request_id=new_id(), units=1, tenant=tenant, group=group)

    def _publish(self, topic: Topic, event: Any, value: bytes | None = None) -> None:
        """Append an event to a topic, or a value in its place."""
        envelope = self._envelope(event.type, f"/{SOURCE}", topic.subject(event))
        self._append(topic, envelope, value or msgspec.json.encode(event))

    def _envelope(self, type_: str, source: str, subject: str) -> Envelope:
        return Envelope(id=new_id(), type=type_, source=source, subject=subject, time=self._now)

    def _append(self, topic: Topic, envelope: Envelope, value: bytes) -> None:
        """Append a record to a topic, of one partition since it has few."""
        row = {
            "key": envelope.subject.encode(),
            "value": value,
            "headers": encode(envelope),
            "timestamp": int(self._now.timestamp() * 1000),
        }
        self.deployment.log.append(topic.name, 0, row)
