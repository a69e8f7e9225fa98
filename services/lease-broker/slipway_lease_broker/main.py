"""What the lease-broker consumes, does and answers, on one screen."""

from functools import partial

from slipway_common.measure import MEASURE_SECONDS, Measure
from slipway_common.relay import partition_for
from slipway_common.runtime import Runtime
from slipway_common.service import Loop, Service
from slipway_common.settings import from_environment
from slipway_common.topic_admin import partition_counts
from slipway_common.topics import LEASE_REQUEST, TOPICS
from slipway_lease_broker.admission import save_and_decide
from slipway_lease_broker.boskos.server import Port
from slipway_lease_broker.handlers.requests import Recorder
from slipway_lease_broker.http import gangs as http_gangs
from slipway_lease_broker.http import lease_pools, leases, slots
from slipway_lease_broker.http.desk import Desk
from slipway_lease_broker.http.wakes import Wakes
from slipway_lease_broker.loops.decide import DecideLoop
from slipway_lease_broker.loops.gangs import GangLoop
from slipway_lease_broker.loops.prune import PruneLoop
from slipway_lease_broker.loops.sweep import sweep
from slipway_lease_broker.settings import Settings
from slipway_lease_broker.store import gauges


def build(settings: Settings) -> Service:
    partitions = partition_counts(TOPICS, settings.partitions)[LEASE_REQUEST.name]

    def may_expire(lease_pool_id: str) -> bool:
        return caught_up(service.runtime, partition_for(lease_pool_id, partitions))

    def published(more: bool) -> None:
        service.runtime.ring() if more else service.runtime.publish()

    desk = Desk(
        caught_up=may_expire,
        lost_linger_seconds=settings.lost_linger_seconds,
        waiter_ttl_seconds=settings.waiter_ttl_seconds,
        published=published,
        wakes=lambda lease_pool_id: wakes.tell(lease_pool_id),
    )
    wakes = Wakes(
        service="lease-broker",
        database_url=settings.database_url,
        database=lambda: service.runtime.pool,
        look=desk.look,
    )
    recorder = Recorder(
        partial(
            save_and_decide,
            expire=may_expire,
            lost_linger_seconds=settings.lost_linger_seconds,
            waiter_ttl_seconds=settings.waiter_ttl_seconds,
        ),
        committed=desk.decided,
    )
    decide = DecideLoop(
        caught_up=may_expire,
        committed=desk.decided,
        lost_linger_seconds=settings.lost_linger_seconds,
        waiter_ttl_seconds=settings.waiter_ttl_seconds,
    )
    boskos = Port(
        settings, runtime=lambda: service.runtime, caught_up=may_expire, decided=desk.decided, published=published
    )
    gangs = GangLoop(committed=desk.decided, lost_linger_seconds=settings.lost_linger_seconds)
    service = Service(
        "lease-broker",
        settings,
        consumes={LEASE_REQUEST: recorder.record},
        loops=[
            Loop("decide", decide.step, tick_seconds=0.5),  # deadlines pass on a tick; grants and releases ring
            Loop("gangs", gangs.step, tick_seconds=1.0),
            Loop("sweep", sweep, tick_seconds=5.0),
            Loop("prune", PruneLoop(settings.ended_kept_days).step, tick_seconds=600.0),
            Loop("measure", Measure(gauges.NAMES, gauges.read).step, MEASURE_SECONDS),
        ],
        routers=[leases.router, lease_pools.router, http_gangs.router, slots.router],
        resources=[wakes.running(), *([boskos.running()] if settings.boskos_port is not None else ())],
        state={"desk": desk, "wakes": wakes, "boskos": boskos},
        schema_minimum="0005",
    )
    return service


def caught_up(runtime: Runtime, partition: int) -> bool:
    """Whether this process reads a partition of the requests, and has read to the end it saw when it took it over.

    Whoever does not own a partition cannot know what waits in it, so only its owner lets deadlines pass.
    """
    for subscription in runtime.subscriptions:
        owned = subscription.owned.get(partition)
        if subscription.consumer.topic is LEASE_REQUEST and owned is not None:
            return owned.next_offset >= subscription.targets.get(partition, 0)
    return False


def main() -> None:
    build(from_environment(Settings)).run()


if __name__ == "__main__":
    main()
