"""Services under fuzzing: the app of each on a real database, with some of everything that its routes are about."""

import contextlib
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from slipway_common.base.ids import hash_secret
from slipway_common.database.postgres import Database
from slipway_lease_broker.domain.terms import Derived, Policy
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.registration import batch_secret
from slipway_weight_calculator.main import build
from slipway_weight_calculator.settings import Settings
from tests.support import provisioner as provisioning
from tests.support import weight_calculator as calculating
from tests.support.lease_broker import terms
from tests.support.lease_broker_http import world_on

TOKEN: Final = "secret of root"
TOKENS: Final = [{"name": "root", "sha256": hash_secret(TOKEN), "scopes": ["admin"]}]


class World(NamedTuple):
    """One service. `known` are values of fields and parameters, by name."""

    service: str
    app: Any
    database: Database
    known: dict[str, list[Any]]
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
        known: dict[str, list[Any]] = {
            "lease_pool_id": ["sim-a", "sim-a", "sim-b", "sim-c"],
            "request_id": ["request-0", "request-4", "new"],
            # A caller that waits would hold up all others.
            "wait_seconds": [0],
        }
        known["pool"] = known["lease_pool"] = known["lease_pool_id"]
        now = await replica.pool.fetchval("SELECT slipway_clock()")
        yield World("lease-broker", replica.app, replica.pool, known, now)


@contextlib.asynccontextmanager
async def provisioner(server: EmbeddedPostgres, folder: Path) -> AsyncIterator[World]:
    """A declared pool with workers in every state that agents report."""
    async with provisioning.provisioner_on(server) as made:
        await made.admitted(4)
        await made.launch()
        workers = await made.workers()
        batch = next(worker.batch_id for worker in workers if worker.batch_id)
        registered = [await made.register(f"i-000{n}", batch) for n in (1, 2)]
        await made.demand(provisioning.report(6))
        await made.plan()
        tokens = folder / "tokens.yaml"
        tokens.write_bytes(msgspec.json.encode(TOKENS))
        made.app.state.tokens.path = tokens
        decisions = [row["id"] for row in await made.database.fetch("SELECT id::text FROM decision")]
        known: dict[str, list[Any]] = {
            "pool_id": ["linux"],
            "account_id": ["sim-a"],
            "config": ["zone-a", provisioning.revision_id()],
            "worker_id": [worker.id for worker in workers],
            "decision_id": decisions,
            "batch_id": [batch],
            "secret": [batch_secret(provisioning.KEY, batch)],
            "instance_id": ["i-0003", "i-0004", "i-0001"],
            "worker token": [answer.json()["token"] for answer in registered],
            "source": ["queue"],
        }
        known |= {"pool": known["pool_id"], "scope_id": ["linux", "sim-a"], "account": known["account_id"]}
        known |= {"id": ["linux", "sim-a"], "name": ["zone-a"], "provider": ["simulated"], "lease_pool": ["sim-a"]}
        yield World("provisioner", made.app, made.database, known, provisioning.START)


@contextlib.asynccontextmanager
async def weight_calculator(server: EmbeddedPostgres, folder: Path) -> AsyncIterator[World]:
    """Three declared launch configs with outcomes."""
    async with calculating.calculator_on(server.url()) as made:
        await made.consume(*map(calculating.declared, ("zone-a", "zone-b", "zone-c")))
        await made.consume(calculating.ok())
        tokens = folder / "tokens.yaml"
        tokens.write_bytes(msgspec.json.encode(TOKENS))
        service = build(Settings(database_url="", kafka="", tokens_file=tokens))
        service.runtime.database = made.database
        known: dict[str, list[Any]] = {
            "target_kind": ["zone", "config", "pool", "image"],
            "target_id": ["zone-b", "linux", "linux-1"],
            "kind": ["degraded", "down", "capacity_hint", "pause_request"],
            "specversion": ["1.0"],
            "type": ["io.slipway.signal.raised.v1"],
            "ttl_seconds": [600],
            "source": ["", "root"],
            "pool": ["linux"],
            "config": ["zone-a"],
        }
        yield World("weight-calculator", service.app(), made.database, known, calculating.START)


WORLDS: Final = {"lease-broker": lease_broker, "provisioner": provisioner, "weight-calculator": weight_calculator}
