"""Registry of all topics. Creation, subscription, decoding, contracts/ and the docs are derived from this table."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from slipway_api.events import alert, launch_config, lease, pool, service, signal, weight, worker
from slipway_api.events.decoding import EventDecoder
from slipway_api.percent import encoded

DAY_MS: Final = 86_400_000
MONITORS: Final = "monitors"  # external producers
COMPACT: Final = {"cleanup.policy": "compact", "delete.retention.ms": str(7 * DAY_MS)}


def retained(days: int) -> dict[str, str]:
    return {"cleanup.policy": "delete", "retention.ms": str(days * DAY_MS)}


class Topic(msgspec.Struct, frozen=True, eq=False):  # one instance per topic, compared by identity
    """One topic. Order is guaranteed per `subject`; later events of a subject are parked behind a dead letter.

    Keys and subjects consist of percent-encoded parts, so that ids with slashes, and ids of several kinds, never meet.
    `parks` is false for inputs of monitors, where a dead letter blocks nothing. If `latest_wins`, an event that is
    applied again has no effect: no ids are remembered, and only the newest dead letter of a subject is kept. `followed`
    is false for requests between services and reports of monitors, which subscribers may not read. Consumers of a
    `viewed` topic read it whole, without a consumer group, and keep no positions.
    """

    name: str
    events: tuple[type[Any], ...]
    key: Callable[[Any], str]
    subject: Callable[[Any], str]
    producers: frozenset[str]
    consumers: frozenset[str]
    config: dict[str, str]
    partitions: int = 32
    parks: bool = True
    latest_wins: bool = False
    followed: bool = True
    viewed: bool = False

    @property
    def compacted(self) -> bool:
        return self.config["cleanup.policy"] == "compact"

    @property
    def numbered(self) -> bool:
        """False if external producers write the topic: anyone could claim the sequence numbers of a service, and have
        its later events dropped as duplicates."""
        return MONITORS not in self.producers


def _of_lease(event: Any) -> str:
    """Subject of a lease event: its lease, else its request, else its pool."""
    for kind, field in (("lease", "lease_id"), ("request", "request_id")):
        if id_ := getattr(event, field, None):
            return encoded(kind, id_)
    return encoded("lease-pool", event.lease_pool_id)


# Collects each topic where it is declared, so that none is missing from the list.
TOPICS: Final[tuple[Topic, ...]] = (
    POOL_DEMAND := Topic(
        "slipway.pool.demand.v1",
        events=(pool.DemandReported,),
        key=lambda event: encoded(event.pool_id, event.source),
        subject=lambda event: encoded(event.pool_id, event.source),
        producers=frozenset({MONITORS}),
        consumers=frozenset({"provisioner"}),
        config=COMPACT,
        parks=False,
        latest_wins=True,
        followed=False,
    ),
    POOL_LIFECYCLE := Topic(
        "slipway.pool.lifecycle.v1",
        events=(
            pool.PoolCreated,
            pool.PoolUpdated,
            pool.PoolPaused,
            pool.PoolResumed,
            pool.PoolFrozen,
            pool.PoolUnfrozen,
            pool.PoolRolledBack,
            pool.PoolDeleted,
        ),
        key=lambda event: encoded(event.pool_id),
        subject=lambda event: encoded(event.pool_id),
        producers=frozenset({"provisioner"}),
        consumers=frozenset(),
        config=COMPACT,
    ),
    LAUNCH_CONFIG_LIFECYCLE := Topic(
        "slipway.launch-config.lifecycle.v1",
        events=(
            launch_config.LaunchConfigCreated,
            launch_config.LaunchConfigUpdated,
            launch_config.LaunchConfigArchived,
            launch_config.LaunchConfigPaused,
            launch_config.LaunchConfigResumed,
            launch_config.LaunchConfigDraining,
        ),
        key=lambda event: encoded(event.launch_config_id),
        subject=lambda event: encoded(event.launch_config_id),
        producers=frozenset({"provisioner"}),
        consumers=frozenset({"weight-calculator"}),
        config=COMPACT,
    ),
    LAUNCH_CONFIG_SIGNAL := Topic(
        "slipway.launch-config.signal.v1",
        events=(signal.SignalRaised,),
        key=lambda event: encoded(event.target_kind, event.target_id),
        subject=lambda event: encoded(event.target_kind, event.target_id),
        producers=frozenset({MONITORS, "weight-calculator"}),
        consumers=frozenset({"provisioner", "weight-calculator"}),
        config=retained(3),
        parks=False,
        followed=False,
    ),
    LAUNCH_CONFIG_WEIGHT := Topic(
        "slipway.launch-config.weight.v1",
        events=(weight.WeightChanged,),
        key=lambda event: encoded(event.launch_config_id),
        subject=lambda event: encoded(event.launch_config_id),
        producers=frozenset({"weight-calculator"}),
        consumers=frozenset({"provisioner"}),
        config=COMPACT,
        viewed=True,
    ),
    WORKER_LIFECYCLE := Topic(
        "slipway.worker.lifecycle.v1",
        events=(
            worker.WorkerRequested,
            worker.WorkerDelayed,
            worker.WorkerLaunched,
            worker.WorkerLaunchFailed,
            worker.WorkerRegistered,
            worker.WorkerClaimed,
            worker.WorkerIdle,
            worker.WorkerErrorReported,
            worker.WorkerNoticed,
            worker.WorkerStopping,
            worker.WorkerStopped,
            worker.WorkerLost,
        ),
        key=lambda event: event.worker_id,
        subject=lambda event: event.worker_id,
        producers=frozenset({"provisioner"}),
        consumers=frozenset({"weight-calculator"}),
        config=retained(7),
    ),
    LEASE_REQUEST := Topic(
        "slipway.lease.request.v1",
        events=(
            lease.LeaseRequested,
            lease.LeaseConfirmRequested,
            lease.LeaseRenewRequested,
            lease.LeaseCancelRequested,
            lease.LeaseReleaseRequested,
            lease.LeaseUnleasedReported,
        ),
        key=lambda event: encoded(event.lease_pool_id),
        subject=_of_lease,
        producers=frozenset({"provisioner"}),
        consumers=frozenset({"lease-broker"}),
        config=retained(3),
        followed=False,
    ),
    LEASE_LIFECYCLE := Topic(
        "slipway.lease.lifecycle.v1",
        events=(
            lease.LeaseQueued,
            lease.LeaseGranted,
            lease.LeaseConfirmed,
            lease.LeaseReleased,
            lease.LeaseExpired,
            lease.LeaseLost,
            lease.LeaseLimitChanged,
        ),
        key=lambda event: encoded(event.lease_pool_id),
        subject=_of_lease,
        producers=frozenset({"lease-broker"}),
        consumers=frozenset({"provisioner"}),
        config=retained(7),
    ),
    SERVICE_HEARTBEAT := Topic(
        "slipway.service.heartbeat.v1",
        events=(service.ServiceHeartbeat,),
        key=lambda event: encoded(event.service),
        subject=lambda event: encoded(event.service),
        producers=frozenset({"provisioner", "weight-calculator", "lease-broker"}),
        consumers=frozenset({"provisioner"}),
        config=COMPACT,
        viewed=True,
    ),
    ALERT := Topic(
        "slipway.alert.v1",
        events=(alert.AlertRaised, alert.AlertResolved),
        key=lambda event: event.dedup_key,
        subject=lambda event: event.dedup_key,
        producers=frozenset({"provisioner", "weight-calculator", "lease-broker"}),
        consumers=frozenset(),
        config=COMPACT,
    ),
)
TOPIC_OF: Final = {event: topic for topic in TOPICS for event in topic.events}
EVENT_OF: Final[dict[str, type[Any]]] = {event.type: event for event in TOPIC_OF}
DECODERS: Final[dict[str, EventDecoder[Any]]] = {event.type: EventDecoder(event) for event in TOPIC_OF}
CONSUMED: Final = tuple((topic, service) for topic in TOPICS for service in sorted(topic.consumers))


def compared_topics(service: str) -> list[Topic]:
    """Topics whose ends the relay of a service compares with its rows: those that it writes, but none that external
    producers write too; their records may be malformed."""
    return [topic for topic in TOPICS if service in topic.producers and topic.numbered]


def group(service: str, topic: Topic) -> str:
    """Consumer group of a service on a topic; also part of the name of its dead-letter topic."""
    return f"slipway.{service}.{topic.name}"


def dead_letter_topic(topic: Topic, service: str) -> str:
    return f"{topic.name}.{group(service, topic)}.dlq"
