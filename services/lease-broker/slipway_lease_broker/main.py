"""Entry point of the lease-broker: its consumers, loops and routes."""

from typing import Final

from slipway_api.events.topics import LEASE_REQUEST, TOPICS
from slipway_common.base.settings import from_environment
from slipway_common.database.postgres import Connection
from slipway_common.measure import MEASURE_SECONDS, InTurn
from slipway_common.messaging.incarnation import Incarnation
from slipway_common.messaging.topic_admin import partition_counts
from slipway_common.service import Loop, Service
from slipway_common.web.runtime import Runtime
from slipway_common.web.tokens import Tokens
from slipway_lease_broker.admission import Admissions
from slipway_lease_broker.boskos.server import Port
from slipway_lease_broker.domain.terms import BrokerTerms
from slipway_lease_broker.grant_notifier import GrantNotifier
from slipway_lease_broker.grant_waiters import GrantWaiters
from slipway_lease_broker.handlers.requests import LeaseCommandHandler
from slipway_lease_broker.http import declared, lease_pools, leases, slots
from slipway_lease_broker.http import gangs as http_gangs
from slipway_lease_broker.http.group_commit import GroupCommit
from slipway_lease_broker.http.known_leases import KnownLeases
from slipway_lease_broker.loops.decide import DecideLoop
from slipway_lease_broker.loops.gangs import GangLoop
from slipway_lease_broker.loops.sweep import SWEEP_SECONDS, sweep
from slipway_lease_broker.progress import RECORD_SECONDS, RequestProgress
from slipway_lease_broker.settings import Settings
from slipway_lease_broker.store import gauges, terms
from slipway_lease_broker.store.retention import RETENTION

PAUSE_SECONDS: Final = 0.05


def build(settings: Settings) -> Service:
    runtime = Runtime()
    grant_notifier = GrantNotifier(runtime, service="lease-broker", database_url=settings.database_url)
    grant_waiters = GrantWaiters(grant_notifier.notify)
    progress = RequestProgress(runtime, partition_counts(TOPICS, settings.partitions)[LEASE_REQUEST.name])
    admissions = Admissions(
        terms=BrokerTerms(
            lost_linger_seconds=settings.lost_linger_seconds,
            waiter_ttl_seconds=settings.waiter_ttl_seconds,
            waiting_requests_max=settings.waiting_requests_max,
            slot_expired_state=settings.boskos_expired_state,
            slot_request_ttl_seconds=settings.boskos_request_ttl_seconds,
            proxy_wait_seconds=settings.boskos_proxy_wait_seconds,
            open_to_all=settings.boskos_open,
        ),
        receiving=progress.receiving,
        waiters=grant_waiters,
        runtime=runtime,
    )
    tokens = Tokens(settings.tokens_file)
    boskos = Port(admissions, tokens, settings)
    return Service(
        "lease-broker",
        settings,
        runtime=runtime,
        tokens=tokens,
        consumes={LEASE_REQUEST: LeaseCommandHandler(admissions).handle},
        loops=[
            # Deadlines pass on a tick. Commands wake it, but mostly are decided already: those of a pause share a look.
            Loop("decide", DecideLoop(admissions).step, tick_seconds=0.5, pause_seconds=PAUSE_SECONDS),
            Loop("reception", progress.record, RECORD_SECONDS, woken=False),
            Loop("gangs", GangLoop(admissions).step, tick_seconds=1.0, pause_seconds=PAUSE_SECONDS),
            Loop("sweep", sweep, SWEEP_SECONDS, woken=False),
            Loop("measure", InTurn(gauges.NAMES, gauges.read_next).step, MEASURE_SECONDS, woken=False),
        ],
        routers=[leases.router, lease_pools.router, http_gangs.router, slots.router],
        resources=[
            grant_notifier.running(grant_waiters.check_grants),
            *([boskos.running()] if settings.boskos_port is not None else ()),
        ],
        state={
            "admissions": admissions,
            "group_commit": GroupCommit(admissions),
            "known_leases": KnownLeases(),
            "grant_notifier": grant_notifier,
            "boskos": boskos,
            "body_bytes_max": {"/lease-pools": declared.BODY_BYTES_MAX},
        },
        retention=RETENTION,
        schema_minimum="0001",
        renewed=restored,
    )


async def restored(tx: Connection, current: Incarnation) -> None:
    await terms.restored(tx, current.revision_base)


def main() -> None:
    build(from_environment(Settings)).run()


if __name__ == "__main__":
    main()
