"""Services under fuzzing: the app of each on a real database, with some of everything that its routes are about."""

import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from slipway_common.base.ids import hash_secret
from slipway_common.database.postgres import Database
from slipway_common.events.signal import SignalRaised
from slipway_common.events.signal_kinds import KINDS
from slipway_common.events.topics import POOL_DEMAND
from slipway_lease_broker.domain.terms import Derived, Policy
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.registration import batch_secret
from slipway_weight_calculator.main import build
from slipway_weight_calculator.settings import Settings
from tests.fuzz.cases import WORKER_TOKEN
from tests.support import provisioner as provisioning
from tests.support import weight_calculator as calculating
from tests.support.lease_broker import terms
from tests.support.lease_broker_http import world_on

TOKEN: Final = "secret of root"
TOKENS: Final = [{"name": "root", "sha256": hash_secret(TOKEN), "scopes": ["admin"]}]
Known: TypeAlias = dict[str, list[dict[str, Any]]]
STOPS: Final = {"all": "", "pool": "linux", "account": "sim-a"}
TARGETS: Final = {"zone": "zone-b", "config": "zone-a", "pool": "linux", "image": "linux-1", "account": "sim-a"}
DEAD_LETTERS: Final = """
INSERT INTO dead_letter (topic, partition, "offset", subject, state, reason, headers, record_at)
SELECT $1, 0, n, 'linux/queue', 'dead', 'no pool', '[]', slipway_clock() FROM generate_series(0, 19) AS n"""
# Only such an account can be retired.
UNREACHABLE: Final = "UPDATE account SET unreachable = true, unanswered_since = slipway_clock() - interval '1 day'"


class World(NamedTuple):
    """One service. `known` is what requests may name."""

    service: str
    app: Any
    database: Database
    known: Known
    start: datetime


@contextlib.asynccontextmanager
async def lease_broker(server: EmbeddedPostgres, folder: Path) -> AsyncIterator[World]:
    """Lease pools with held, waiting and ended leases, a derived limit and slots."""
    async with world_on(server, folder) as world:
        await world.broker.declare(
            terms(limit=3), terms("sim-b", limit=1, policy=Policy(pacing="off", derived=Derived(per_unit=2.0)))
        )
        replica = world.replica
        for number in range(5):
            await replica.acquire(f"request-{number}", by="root")
        await replica.call(
            "PUT", "/slots", {"slots": [{"lease_pool": "sim-c", "names": ["slot-1", "slot-2"]}]}, by="root"
        )
        known: Known = {
            "lease_pool": [
                {"lease_pool_id": pool, "pool": pool, "lease_pool": pool} for pool in ("sim-a", "sim-b", "sim-c")
            ],
            "request": [{"request_id": f"request-{number}"} for number in range(40)],
            # A caller that waits would hold up all others.
            "wait": [{"wait_seconds": 0}],
        }
        now = await replica.pool.fetchval("SELECT slipway_clock()")
        yield World("lease-broker", replica.app, replica.pool, known, now)


@contextlib.asynccontextmanager
async def provisioner(server: EmbeddedPostgres, folder: Path) -> AsyncIterator[World]:
    """A declared pool with workers in every state that agents report."""
    async with provisioning.provisioner_on(server) as made:
        await made.admitted(12)
        await made.launch()
        batch = next(worker.batch_id for worker in await made.workers() if worker.batch_id)
        registered = [(await made.register(f"i-{n:04}", batch)).json() for n in range(1, 9)]
        await made.demand(provisioning.report(20))
        await made.plan()
        await made.database.execute(DEAD_LETTERS, POOL_DEMAND.name)
        await made.database.execute(UNREACHABLE)
        tokens = folder / "tokens.yaml"
        tokens.write_bytes(msgspec.json.encode(TOKENS))
        made.app.state.tokens.path = tokens
        decisions = await made.database.fetch("SELECT id::text FROM decision")
        known: Known = {
            "pool": [{"pool_id": "linux", "pool": "linux", "id": "linux"}],
            "account": [{"account_id": "sim-a", "account": "sim-a", "provider": "simulated", "lease_pool": "sim-a"}],
            "config": [{"config": config, "name": "zone-a"} for config in ("zone-a", provisioning.revision_id())],
            "decision": [{"decision_id": row["id"]} for row in decisions],
            "scope": [{"scope": scope, "scope_id": id_} for scope, id_ in STOPS.items()],
            "worker_id": [{"worker_id": one["worker_id"], WORKER_TOKEN: one["token"]} for one in registered],
            "batch": [
                {"batch_id": batch, "secret": batch_secret(provisioning.KEY, batch), "instance_id": f"i-{n:04}"}
                for n in range(9, 13)
            ],
            "dead letter": [{"topic": POOL_DEMAND.name, "partition": 0, "offset": n} for n in range(20)],
            "source": [{"source": "queue"}],
        }
        yield World("provisioner", made.app, made.database, known, provisioning.START)


@contextlib.asynccontextmanager
async def weight_calculator(server: EmbeddedPostgres, folder: Path) -> AsyncIterator[World]:
    """Three declared launch configs with outcomes."""
    async with calculating.calculator_on(server.url()) as made:
        await made.consume(*map(calculating.declared, ("zone-a", "zone-b", "zone-c")))
        await made.consume(calculating.ok())
        tokens = folder / "tokens.yaml"
        tokens.write_bytes(msgspec.json.encode(TOKENS))
        settings: dict[str, Any] = {"database_url": "", "kafka": "", "tokens_file": tokens}
        service = build(Settings(**settings))
        service.runtime.database = made.database
        known: Known = {
            "target": [{"target_kind": kind, "target_id": id_} for kind, id_ in TARGETS.items()],
            "kind": [{"kind": kind} for kind in KINDS],
            "event": [{"specversion": "1.0", "type": SignalRaised.type, "source": "root", "ttl_seconds": 600}],
            "config": [{"pool": "linux", "config": "zone-a"}],
        }
        yield World("weight-calculator", service.app(), made.database, known, calculating.START)


WORLDS: Final = {"lease-broker": lease_broker, "provisioner": provisioner, "weight-calculator": weight_calculator}
