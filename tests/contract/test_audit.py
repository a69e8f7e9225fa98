"""Audit: every write of a person or a pipeline leaves a row, in the transaction of the write.

Routes and commands are those of the services and of the command itself: one that is neither audited nor exempt for a
reason fails.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import typer

from slipway_api.events.signal_kinds import TARGETS
from slipway_client.cli.main import app as command_line
from slipway_common.base.audited import AuditedKind
from slipway_common.database import postgres as connections
from slipway_common.web.access import declared as access_of
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.contract.test_access import apps
from tests.contract.test_signals_api import caller as signal_caller
from tests.support.databases import empty_database
from tests.support.lease_broker_http import world_on
from tests.support.provisioner import administrator, declared, provisioner_on, report
from tests.support.weight_calculator import calculator_on
from tests.support.weight_calculator import declared as declared_config

TESTS: Final = Path(__file__).parent.parent
SERVICES: Final = ("provisioner", "weight-calculator", "lease-broker")
MACHINES: Final = "machine traffic"
EXEMPT: Final = {
    "provisioner PUT /pools/{pool_id}/demand": (MACHINES, "demand"),
    "provisioner POST /workers/register": (MACHINES, "worker"),
    "provisioner POST /workers/{worker_id}/claimed": (MACHINES, "claim"),
    "provisioner POST /workers/{worker_id}/idle": (MACHINES, "claim"),
    "provisioner POST /workers/{worker_id}/heartbeat": (MACHINES, "worker"),
    "provisioner POST /workers/{worker_id}/error": (MACHINES, "worker_error"),
    "provisioner POST /workers/{worker_id}/notice": (MACHINES, "worker"),
    "provisioner POST /workers/{worker_id}/stopped": (MACHINES, "worker"),
    "provisioner POST /accounts/{account_id}/check": (
        "reads the account, and changes nothing in it",
        "account",
    ),
    "lease-broker POST /lease-gangs": (MACHINES, "gangs"),
    "lease-broker POST /lease-pools/{lease_pool_id}/leases": (MACHINES, "history"),
    "lease-broker POST /lease-pools/{lease_pool_id}/unleased": (MACHINES, "history"),
    "lease-broker PUT /lease-pools/{lease_pool_id}/units": ("reported by conductors, for a time", "lease_pools"),
    "lease-broker DELETE /lease-pools/{lease_pool_id}/requests/{request_id}": (MACHINES, "history"),
    "lease-broker POST /leases/{lease_id}/confirm": (MACHINES, "history"),
    "lease-broker POST /leases/{lease_id}/heartbeat": (MACHINES, "leases"),
    "lease-broker POST /leases/{lease_id}/renew": (MACHINES, "leases"),
    "lease-broker POST /leases/{lease_id}/release": (MACHINES, "history"),
    "lease-broker POST /leases/{lease_id}/token": (MACHINES, "leases"),
}
"""Writes without a row in the audit: the reason, and the table that records them instead."""

ELSEWHERE: Final = {
    "provisioner POST /accounts/{account_id}/retire": "integration/test_unreachable_accounts.py",
    "provisioner POST /accounts/{account_id}/reinstate": "integration/test_unreachable_accounts.py",
    "provisioner POST /workers/{worker_id}/state": "integration/test_workspace_states.py",
    "provisioner POST /workers/{worker_id}/unlock": "integration/test_workspace_states.py",
    "provisioner POST /state-keys/rotate": "integration/test_workspace_states.py",
    "lease-broker PUT /lease-pools": "contract/test_lease_pool_declarations.py",
    **{f"{service} POST /positions/adopt": "integration/test_consume.py" for service in SERVICES},
    **{f"{service} POST /positions/adopt-all": "integration/test_consume.py" for service in SERVICES},
    **{f"{service} POST /alerts/silence": "contract/test_alert_commands.py" for service in SERVICES},
    **{f"{service} POST /tokens/{{name}}/revoke": "integration/test_tokens.py" for service in SERVICES},
    **{f"{service} POST /dead-letters/{verb}": "here" for service in SERVICES[1:] for verb in ("replay", "drop")},
}
"""Audited writes that need more than rows to be made, with the test that asserts their row. Every service has the same
routes for dead letters and positions."""

COMMANDS: Final = {
    "apply": "provisioner PUT /declaration",
    "stop-launching": "provisioner POST /stop-launching",
    "start-launching": "provisioner POST /start-launching",
    "pool pause": "provisioner POST /pools/{pool_id}/pause",
    "pool resume": "provisioner POST /pools/{pool_id}/resume",
    "pool freeze": "provisioner POST /pools/{pool_id}/freeze",
    "pool unfreeze": "provisioner POST /pools/{pool_id}/unfreeze",
    "pool set-image": "provisioner PUT /pools/{pool_id}",
    "pool set": "provisioner PUT /pools/{pool_id}",
    "pool promote": "provisioner PUT /pools/{pool_id}",
    "pool rollback": "provisioner POST /pools/{pool_id}/rollback",
    "lc pause": "provisioner POST /launch-configs/{config}/pause",
    "lc resume": "provisioner POST /launch-configs/{config}/resume",
    "worker terminate": "provisioner POST /workers/{worker_id}/terminate",
    "worker state": "provisioner POST /workers/{worker_id}/state",
    "worker unlock": "provisioner POST /workers/{worker_id}/unlock",
    "account check": "provisioner POST /accounts/{account_id}/check",
    "account retire": "provisioner POST /accounts/{account_id}/retire",
    "account reinstate": "provisioner POST /accounts/{account_id}/reinstate",
    "account confirm-unresponsive": "provisioner POST /accounts/{account_id}/confirm-unresponsive",
    "state-key rotate": "provisioner POST /state-keys/rotate",
    "lease run": "lease-broker POST /lease-pools/{lease_pool_id}/leases",
    "lease acquire": "lease-broker POST /lease-pools/{lease_pool_id}/leases",
    "lease gang": "lease-broker POST /lease-gangs",
    "lease heartbeat": "lease-broker POST /leases/{lease_id}/heartbeat",
    "lease renew": "lease-broker POST /leases/{lease_id}/renew",
    "lease confirm": "lease-broker POST /leases/{lease_id}/confirm",
    "lease release": "lease-broker POST /leases/{lease_id}/release",
    "lease cancel": "lease-broker DELETE /lease-pools/{lease_pool_id}/requests/{request_id}",
    "lease set": "lease-broker PATCH /lease-pools/{lease_pool_id}",
    "lease pin": "lease-broker PATCH /lease-pools/{lease_pool_id}",
    "lease unpin": "lease-broker PATCH /lease-pools/{lease_pool_id}",
    "lease drain": "lease-broker POST /lease-pools/{lease_pool_id}/drain",
    "lease units": "lease-broker PUT /lease-pools/{lease_pool_id}/units",
    "lease undrain": "lease-broker POST /lease-pools/{lease_pool_id}/undrain",
    "import boskos": "lease-broker PUT /slots",
    "signal raise": "weight-calculator POST /signals",
    "alert silence": "provisioner POST /alerts/silence",
    "token revoke": "provisioner POST /tokens/{name}/revoke",
    "demand rm": "provisioner DELETE /pools/{pool_id}/demand/{source}",
    "demand set": "provisioner PUT /pools/{pool_id}/demand",
    "dlq replay": "provisioner POST /dead-letters/replay",
    "dlq drop": "provisioner POST /dead-letters/drop",
    "topics adopt": "provisioner POST /positions/adopt",
    "db restored": "provisioner POST /restored",
    "db confirm": "provisioner POST /recovery/confirm",
}
"""Commands that write, with the route by which they do."""
READING: Final = """
diff; export; user-data; top; audit; why; doctor; pool ls; pool show; pool history; lc ls; lc show; worker ls; worker
show; decision show; error ls; account ls; account show; account limits; state-key ls; provider classify; plugins ls;
lease status; lease ls; lease pools; lease report; lease history; weights ls; weights show; signal ls; demand ls;
token ls; events tail; alert ls; alert show; dlq ls; dlq show; topics stopped; token create; token check
"""
"""Commands that only read."""
LETTER: Final = {"topic": "slipway.pool.demand.v1", "partition": 0}
DEAD: Final = """
INSERT INTO dead_letter (topic, partition, "offset", subject, state, reason, headers, record_at)
SELECT 'slipway.pool.demand.v1', 0, n, 's', 'dead', 'r', '[]', slipway_clock() FROM generate_series(1, 2) AS n"""
REASON: Final = {"reason": "drill"}
READS: Final = frozenset({"GET", "HEAD", "OPTIONS"})


def writes(service: str) -> list[str]:
    """Routes of a service that may change something."""
    return [f"{service} {method} {path}" for method, path, _ in access_of(apps()[service]) if method not in READS]


class Writer:
    """Writes to one service, each of which must leave a row in the audit."""

    def __init__(self, service: str, client: httpx2.AsyncClient, by: str = "admin") -> None:
        self.service = service
        self.client = client
        self.by = by
        self.routes: set[str] = set()

    async def write(self, route: str, body: Any, kind: str, subject: str, action: str) -> None:
        """Make a write, and assert the row that it leaves: of whom, from where and why."""
        method, path = route.split()
        answer = await self.client.request(method, path, json=body)
        assert answer.is_success, answer.text
        templates = [template for template in writes(self.service) if self._made_by(template, route)]
        self.routes.update(templates)
        query: dict[str, Any] = {"kind": kind, "subject": subject, "limit": 1}
        rows: list[dict[str, Any]] = (await self.client.get("/audit", params=query)).json()["items"]
        assert [row["action"] for row in rows] == [action], f"{route} left no row"
        (row,) = rows
        assert (row["by"], row["origin"]) == (self.by, "127.0.0.1"), row
        if "drill" in str(body) + path:
            assert "drill" in row["reason"], row

    def _made_by(self, template: str, route: str) -> bool:
        pattern = re.sub(r"{\w+}", "[^/]+", template)
        return re.fullmatch(pattern, f"{self.service} {route.partition('?')[0]}") is not None


async def write_provisioner(postgres: EmbeddedPostgres, folder: Path) -> set[str]:
    """Routes of the provisioner that left their rows."""
    async with provisioner_on(postgres) as product, administrator(product, folder) as client:
        (worker,) = await product.starting()
        await product.demand(report(0))
        await product.database.execute(DEAD)
        writer = Writer("provisioner", client)
        for verb, offset in (("replay", 1), ("drop", 2)):
            place = f"slipway.pool.demand.v1/0/{offset}"
            await writer.write(f"POST /dead-letters/{verb}", LETTER | {"offset": offset}, "dead-letter", place, verb)
        for verb in ("pause", "resume", "freeze", "unfreeze"):
            await writer.write(f"POST /pools/linux/{verb}", REASON, "pool", "linux", verb)
        for verb in ("pause", "resume"):
            await writer.write(f"POST /launch-configs/zone-a/{verb}", REASON, "config", "zone-a", verb)
        for scope, scope_id, kind in (
            ("all", "", "deployment"),
            ("account", "sim-a", "account"),
            ("pool", "linux", "pool"),
        ):
            stop = REASON | {"scope": scope, "scope_id": scope_id}
            for verb in ("stop-launching", "start-launching"):
                await writer.write(f"POST /{verb}", stop, kind, scope_id or "everything", verb)
        removal = "DELETE /pools/linux/demand/q?reason=drill"
        await writer.write(removal, None, "pool", "linux", "remove demand source")
        await writer.write(f"POST /workers/{worker.id}/terminate", REASON, "worker", worker.id, "terminate")
        unresponsive = "POST /accounts/sim-a/confirm-unresponsive"
        await writer.write(unresponsive, REASON, "account", "sim-a", "confirm unresponsive")
        changed = declared(max_capacity=90)["worker_pools"][0]
        await writer.write("PUT /pools/linux?action=set&reason=drill", changed, "pool", "linux", "set")
        rollback = REASON | {"whole": True, "to_revision": 1}
        await writer.write("POST /pools/linux/rollback", rollback, "pool", "linux", "rollback")
        body = declared(max_capacity=80)
        declaration = {name: body[name] for name in ("version", "accounts", "worker_pools")}
        await writer.write("PUT /declaration?adopt=true", declaration, "pool", "linux", "apply")
        await writer.write("POST /restored", REASON, "database", "provisioner", "restored")
        await product.database.execute("UPDATE incarnation SET requested = NULL")
        await product.trust()
        await writer.write("POST /recovery/confirm", {"unlisted": ["sim-a"]}, "database", "provisioner", "confirm")
    return writer.routes


async def write_lease_broker(postgres: EmbeddedPostgres, folder: Path) -> set[str]:
    """Routes of the lease-broker that left their rows."""
    async with world_on(postgres, folder) as world, world.replica.client("root") as client:
        writer = Writer("lease-broker", client, by="root")
        pool = ("lease-pool", "sim-a")
        await writer.write("PATCH /lease-pools/sim-a", REASON | {"limit": 3}, *pool, "set")
        for verb in ("drain", "undrain"):
            await writer.write(f"POST /lease-pools/sim-a/{verb}", REASON, *pool, verb)
        listed = {"slots": [{"lease_pool": "car", "names": ["car-1"]}]}
        await writer.write("PUT /slots", listed, "lease-pool", "car", "import")
        await writer.write("POST /restored", REASON, "database", "lease-broker", "restored")
    return writer.routes


async def write_weight_calculator(postgres: EmbeddedPostgres, folder: Path) -> set[str]:
    """Routes of the weight-calculator that left their rows."""
    async with calculator_on(postgres) as calculator:
        await calculator.consume(declared_config("zone-b"))
        async with signal_caller(calculator, folder, ("admin",), name="admin") as client:
            writer = Writer("weight-calculator", client)
            body = REASON | {"target_kind": "config", "target_id": "zone-b", "kind": "degraded", "ttl_seconds": 9}
            await writer.write("POST /signals", body, "config", "zone-b", "signal degraded")
            await writer.write("POST /restored", REASON, "database", "weight-calculator", "restored")
    return writer.routes


WRITERS: Final = {
    "provisioner": write_provisioner,
    "weight-calculator": write_weight_calculator,
    "lease-broker": write_lease_broker,
}


@pytest.mark.parametrize("service", SERVICES)
async def test_every_write_route(service: str, postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """It leaves a row here, or in the test that is named, or it is exempt for a reason."""
    audited = await WRITERS[service](postgres, tmp_path)
    others = {route for route in (*EXEMPT, *ELSEWHERE) if route.startswith(f"{service} ")}
    assert not audited & others
    assert audited | others == set(writes(service))


def test_every_target_of_a_signal_is_a_subject() -> None:
    """A signal on any of them can be recorded."""
    assert set(TARGETS) <= set(AuditedKind)


def test_tests_elsewhere_assert_the_row() -> None:
    """The files that are named read the audit."""
    for file in {file for file in ELSEWHERE.values() if file != "here"}:
        assert "audit" in (TESTS / file).read_text(), file


@pytest.mark.parametrize("service", SERVICES)
async def test_exempt_writes_have_a_table(service: str, postgres: EmbeddedPostgres) -> None:
    """The table that records them exists."""
    async with empty_database(postgres, service) as url:
        connection = await connections.session(url, service)
        try:
            for route, (_, table) in EXEMPT.items():
                if route.startswith(f"{service} "):
                    assert await connection.fetchval("SELECT to_regclass($1)", table), route
        finally:
            await connection.close()


def test_every_command() -> None:
    """A command writes by a route that is audited or exempt, or it only reads."""
    leaves = set(commands(typer.main.get_command(command_line)))
    reading = {" ".join(name.split()) for name in READING.split(";")}
    assert leaves == COMMANDS.keys() | reading
    assert not COMMANDS.keys() & reading
    known = {route for service in SERVICES for route in writes(service)}
    assert set(COMMANDS.values()) <= known


def commands(command: Any, *names: str) -> Iterator[str]:
    """Full names of the commands that do something."""
    inner = getattr(command, "commands", {})
    for name in inner:
        yield from commands(inner[name], *names, name)
    if not inner:
        yield " ".join(names)
