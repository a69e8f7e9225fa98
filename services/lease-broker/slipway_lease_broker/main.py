"""Entry point of the lease-broker: its consumers, loops and routes."""

from slipway_common.base.settings import from_environment
from slipway_common.database.postgres import Connection
from slipway_common.events.topics import LEASE_REQUEST, TOPICS
from slipway_common.measure import MEASURE_SECONDS, Measure
from slipway_common.messaging.relay import partition_for
from slipway_common.messaging.topic_admin import partition_counts
from slipway_common.service import Loop, Service
from slipway_common.web.access import Tokens
from slipway_common.web.runtime import Runtime
from slipway_lease_broker.admission import AdmissionTx
from slipway_lease_broker.boskos.server import Port
from slipway_lease_broker.domain.terms import BrokerTerms
from slipway_lease_broker.handlers.requests import LeaseCommandHandler
from slipway_lease_broker.http import gangs as http_gangs
from slipway_lease_broker.http import lease_pools, leases, slots
from slipway_lease_broker.http.grant_notifier import GrantNotifier
from slipway_lease_broker.http.group_commit import GroupCommit
from slipway_lease_broker.loops.decide import DecideLoop
from slipway_lease_broker.loops.gangs import GangLoop
from slipway_lease_broker.loops.prune import PruneLoop
from slipway_lease_broker.loops.sweep import sweep
from slipway_lease_broker.settings import Settings
from slipway_lease_broker.store import gauges


def build(settings: Settings) -> Service:
    partitions = partition_counts(TOPICS, settings.partitions)[LEASE_REQUEST.name]
    terms = BrokerTerms(
        lost_linger_seconds=settings.lost_linger_seconds,
        waiter_ttl_seconds=settings.waiter_ttl_seconds,
        slot_expired_state=settings.boskos_expired_state,
        slot_request_ttl_seconds=settings.boskos_request_ttl_seconds,
        proxy_wait_seconds=settings.boskos_proxy_wait_seconds,
        open_to_all=settings.boskos_open,
    )

    def may_expire(lease_pool_id: str) -> bool:
        return caught_up(service.runtime, partition_for(lease_pool_id, partitions))

    def published(more: bool) -> None:
        service.runtime.wake() if more else service.runtime.publish()

    def begin(db: Connection) -> AdmissionTx:
        return AdmissionTx(db, terms, caught_up=may_expire, decided=group_commit.decided)

    group_commit = GroupCommit(
        begin,
        published=published,
        notify_replicas=lambda lease_pool_id: grant_notifier.notify(lease_pool_id),
    )
    grant_notifier = GrantNotifier(
        service="lease-broker",
        database_url=settings.database_url,
        database=lambda: service.runtime.database,
        check_grants=group_commit.check_grants,
    )
    boskos = Port(
        begin,
        terms,
        Tokens(settings.tokens_file),
        host=settings.boskos_host,
        number=settings.boskos_port or 0,
        runtime=lambda: service.runtime,
        published=published,
    )
    service = Service(
        "lease-broker",
        settings,
        consumes={LEASE_REQUEST: LeaseCommandHandler(begin).handle},
        loops=[
            # Deadlines pass on a tick; requests and releases wake it.
            Loop("decide", DecideLoop(begin, may_expire).step, tick_seconds=0.5),
            Loop("gangs", GangLoop(begin).step, tick_seconds=1.0),
            Loop("sweep", sweep, tick_seconds=5.0),
            Loop("prune", PruneLoop(settings.ended_kept_days).step, tick_seconds=600.0),
            Loop("measure", Measure(gauges.NAMES, gauges.read).step, MEASURE_SECONDS),
        ],
        routers=[leases.router, lease_pools.router, http_gangs.router, slots.router],
        resources=[grant_notifier.running(), *([boskos.running()] if settings.boskos_port is not None else ())],
        state={"begin": begin, "group_commit": group_commit, "grant_notifier": grant_notifier, "boskos": boskos},
        schema_minimum="0001",
    )
    return service


def caught_up(runtime: Runtime, partition: int) -> bool:
    """True if this process is assigned a partition of the requests and has read it to the end seen at the assignment.

    Only the process that reads a partition lets deadlines pass, since it alone knows what commands wait there.
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
