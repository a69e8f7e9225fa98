"""Services under fuzzing: the app of each on a real database, with some of everything that its routes are about; and
the simulator on a ledger.
"""

import contextlib
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import httpx2
import msgspec

from slipway_api.events.signal import SignalRaised
from slipway_api.events.signal_kinds import KINDS, REQUESTS
from slipway_api.events.topics import POOL_DEMAND
from slipway_common.base.clock import utc_now
from slipway_common.base.ids import hash_secret
from slipway_common.database.postgres import Database
from slipway_lease_broker.domain.terms import Derived, Policy
from slipway_lease_broker.main import build as build_lease_broker
from slipway_lease_broker.settings import Settings as LeaseBrokerSettings
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.registration import RegistrationKeys
from slipway_simulator.facts import Call, ScenarioLoaded
from slipway_simulator.ledger import Ledger
from slipway_simulator.limits import Throttle
from slipway_simulator.main import build as build_simulator
from slipway_simulator.runtime import Simulator
from slipway_simulator.scenario import Account, Scenario, Zone
from slipway_simulator.settings import Settings as SimulatorSettings
from slipway_weight_calculator.main import build
from slipway_weight_calculator.settings import Settings
from tests.fuzz.cases import NOTHING, WORKER_TOKEN, Case
from tests.fuzz.judge import Answer, Changes, Facts, Rows
from tests.support import provisioner as provisioning
from tests.support import weight_calculator as calculating
from tests.support.cloud import START
from tests.support.lease_broker import terms
from tests.support.lease_broker_http import world_on

UNLIMITED: Final = {"requests_per_second_max": 1e6}
TOKEN: Final = "secret of root"
TOKENS: Final = [{"name": "root", "sha256": hash_secret(TOKEN), "scopes": ["admin"]}]
# A caller that waits would hold up all others.
NO_WAIT: Final = {"wait_seconds": 0}
NOW: Final = "SELECT slipway_clock()"
FAULTS: Final = {"zone-b": "", "lost-reply": "0.5", "throttle": "10m-", "quota": "sim-b", "slow-boot": "2", "x": ""}
Known: TypeAlias = dict[str, list[dict[str, Any]]]
STOPS: Final = {"all": "", "pool": "linux", "account": "sim-a"}
VALUES: Final = {"degraded": 0.5, "capacity_hint": 3}
TARGETS: Final = {"zone": "zone-b", "config": "zone-a", "pool": "linux", "image": "linux-1", "account": "sim-a"}
DEAD_LETTERS: Final = """
INSERT INTO dead_letter (topic, partition, "offset", subject, state, reason, headers, record_at)
SELECT $1, 0, n, 'linux/queue', 'dead', 'no pool', '[]', slipway_clock() FROM generate_series(0, 19) AS n"""
# Only such an account can be retired.
UNREACHABLE: Final = "UPDATE account SET unreachable = true, unanswered_since = slipway_clock() - interval '1 day'"


def status(_: Case, answer: Answer) -> int:
    """The meaning of an answer, where the status says it."""
    return answer.status


class World(NamedTuple):
    """One service. `known` is what requests may name, `fixed` what they always have, `rows` its state, `meaning` the
    status that an answer means."""

    service: str
    app: Any
    rows: Changes
    known: Known
    start: datetime
    authorization: str = f"Bearer {TOKEN}"
    fixed: Mapping[str, Any] = NOTHING
    skipped: Collection[str] = ()
    meaning: Callable[[Case, Answer], int] = status
    database: Database | None = None


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
        }
        now = await replica.pool.fetchval(NOW)
        rows = Rows(replica.pool)
        yield World("lease-broker", replica.app, rows, known, now, fixed=NO_WAIT, database=replica.pool)


@contextlib.asynccontextmanager
async def boskos(server: EmbeddedPostgres, folder: Path) -> AsyncIterator[World]:
    """The Boskos API of a lease-broker, with free, held and dirty slots, some of them more than may be leased."""
    async with world_on(server, folder) as world:
        await world.broker.declare(terms("car", limit=1), terms("van", limit=20))
        slots = [
            {"lease_pool": "car", "state": "free", "names": [f"car-{n}" for n in range(6)]},
            {"lease_pool": "van", "state": "dirty", "names": [f"van-{n}" for n in range(6)]},
            {"lease_pool": "bus", "state": "free", "names": [f"bus-{n}" for n in range(20)]},
        ]
        await world.replica.call("PUT", "/slots", {"slots": slots}, by="root")
        settings: dict[str, Any] = {"database_url": "", "kafka": "", "tokens_file": folder / "tokens.yaml", **UNLIMITED}
        service = build_lease_broker(LeaseBrokerSettings(**settings, boskos_port=0, boskos_proxy_wait_seconds=0))
        pool = service.runtime.database = world.replica.pool
        names = [name for slot in slots for name in slot["names"][:4]]
        known: Known = {
            "type": [{"type": name} for name in ("car", "car", "van", "bus")],
            "state": [
                {"state": "free", "dest": "busy"},
                {"state": "free", "dest": "leased"},
                {"state": "busy", "dest": "dirty"},
                {"state": "dirty", "dest": "cleaning"},
            ],
            "name": [{"name": name, "owner": "ann"} for name in names],
            "names": [{"names": [name]} for name in names] + [{"names": "bus-4,bus-5"}],
            "expire": [{"expire": text} for text in ("0", "1s", "1h15m")],
            "count": [{"count": text} for text in ("1", "2", "4", "30")],
            "request": [{"request_id": f"request-{number}"} for number in range(6)],
        }
        basic = b64encode(f"root:{TOKEN}".encode()).decode()
        yield World(
            "lease-broker-boskos",
            service.state["boskos"].app,
            Rows(pool),
            known,
            await pool.fetchval(NOW),
            authorization=f"Basic {basic}",
            meaning=of_boskos,
            database=pool,
        )


def of_boskos(case: Case, answer: Answer) -> int:
    """The status that an answer of the Boskos API means. Its clients read 404 as "not yet", with a place in the queue
    for a request id, and the lease proxy has no other refusal than 500."""
    path, _, query = case.path.partition("?")
    if path == "/acquire" and answer.status == 404 and "request_id=" in query and answer.body.startswith(b"no "):
        return 202
    if path == "/lease/acquire" and answer.status == 500:
        # The request was in the queue, and was withdrawn.
        return 202 if b"not acquired within" in answer.body else 409 if b"can never be acquired" in answer.body else 500
    if path == "/lease/release" and answer.status == 500 and b"\nReleased: " in answer.body:
        return 409 if answer.body.endswith(b"Released: none\n") else 207
    return answer.status


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
                {
                    "batch_id": batch,
                    "secret": RegistrationKeys(provisioning.KEY).secret(batch),
                    "instance_id": f"i-{n:04}",
                }
                for n in range(9, 13)
            ],
            "dead letter": [{"topic": POOL_DEMAND.name, "partition": 0, "offset": n} for n in range(20)],
            "source": [{"source": "queue"}],
        }
        rows = Rows(made.database)
        yield World("provisioner", made.app, rows, known, START, fixed=NO_WAIT, database=made.database)


@contextlib.asynccontextmanager
async def weight_calculator(server: EmbeddedPostgres, folder: Path) -> AsyncIterator[World]:
    """Three declared launch configs with outcomes."""
    async with calculating.calculator_on(server) as made:
        await made.consume(*map(calculating.declared, ("zone-a", "zone-b", "zone-c")))
        await made.consume(calculating.ok())
        tokens = folder / "tokens.yaml"
        tokens.write_bytes(msgspec.json.encode(TOKENS))
        settings: dict[str, Any] = {"database_url": "", "kafka": "", "tokens_file": tokens, **UNLIMITED}
        service = build(Settings(**settings))
        service.runtime.database = made.database
        known: Known = {
            "signal": [
                {"target_kind": target, "target_id": id_, "kind": kind, "value": VALUES.get(kind)}
                for target, id_ in TARGETS.items()
                for kind in KINDS
                if target == "config" or kind not in REQUESTS
            ],
            "observed_at": [{"observed_at": calculating.START.isoformat()}],
            "event": [{"specversion": "1.0", "type": SignalRaised.type, "source": "root", "ttl_seconds": 600}],
            "headers": [{"ce-specversion": "1.0", "ce-type": SignalRaised.type, "ce-source": "root", "ce-id": "1"}],
            "config": [{"pool": "linux", "config": "zone-a"}],
        }
        rows = Rows(made.database)
        yield World("weight-calculator", service.app(), rows, known, calculating.START, database=made.database)


@contextlib.asynccontextmanager
async def simulator(_: EmbeddedPostgres, folder: Path) -> AsyncIterator[World]:
    """Instances in two accounts, one of them with a limit of everything, and tasks. Machines take longer to boot than
    the fuzzing. A scenario may make calls as slow, and tasks as many, as it says: no scenario is loaded."""
    path = folder / "ledger.jsonl"
    async with httpx2.AsyncClient() as client:
        simulation = Simulator(Ledger(path), client, utc_now_seconds)
        accounts = {
            "sim-a": Account(latency_seconds=0),
            "*": Account({"zone-b": 2}, {"m5": 3}, Throttle(burst=30), latency_seconds=0),
        }
        zones = {name: Zone() for name in ("zone-a", "zone-b")}
        loaded = Scenario(accounts=accounts, zones=zones, boot_seconds_median=100_000)
        simulation.record([ScenarioLoaded(at=utc_now_seconds(), scenario=loaded)])
        for number in range(4):
            await simulation.create(_call(number), {})
        app = build_simulator(SimulatorSettings(ledger=path))
        app.state.simulator, app.state.reporter = simulation, None
        known: Known = {
            "account": [{"account": name} for name in ("sim-a", "sim-a", "sim-b")],
            "zone": [{"zone": name} for name in zones],
            "instance_type": [{"instance_type": "m5.large"}, {"instance_type": "c5"}],
            "instance_id": [{"instance_id": f"i-{number:06d}"} for number in range(1, 12)],
            "deployment": [{"deployment": ""}],
            "token": [{"token": f"token-{number}"} for number in range(20)],
            "pool": [{"pool_id": "linux"}, {"pool_id": "gecko-t/win"}],
            "worker_id": [{"worker_id": "worker-1"}],
            "count": [{"count": number} for number in (1, 2, 3)],
            "fault": [{"name": name, "arg": arg} for name, arg in FAULTS.items()],
        }
        try:
            start = datetime.fromtimestamp(utc_now_seconds(), UTC)
            with path.open("rb") as ledger:
                yield World(
                    "simulator",
                    app,
                    Facts(ledger),
                    known,
                    start,
                    fixed=NO_WAIT,
                    skipped=("/scenario",),
                    authorization="",
                )
        finally:
            await simulation.stop()


def utc_now_seconds() -> float:
    return utc_now().timestamp()


def _call(number: int) -> Call:
    """A call that creates an instance."""
    return Call(
        at=utc_now_seconds(),
        call_id=f"call-{number}",
        account="sim-a",
        token=f"first-{number}",
        deployment="",
        batch="",
        config="",
        count=1,
        zone="zone-a",
        instance_type="m5.large",
        image="linux-1",
        request=str(number),
    )


WORLDS: Final = {
    "lease-broker": lease_broker,
    "lease-broker-boskos": boskos,
    "provisioner": provisioner,
    "weight-calculator": weight_calculator,
    "simulator": simulator,
}
