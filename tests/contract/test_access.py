"""Access to every route of every service: which token reaches it, and that no route is without a declared access."""

import contextlib
import re
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
import pytest
from fastapi import APIRouter, Depends, FastAPI

from slipway_common.base.ids import hash_secret, new_lease_token, new_worker_token
from slipway_common.service import Service, ServiceSettings
from slipway_common.web.access import READ, READ_SETTINGS, Needs, Open, declared
from slipway_common.web.limits import CallerLimits
from slipway_common.web.tokens import Tokens
from slipway_lease_broker import main as lease_broker
from slipway_lease_broker.boskos import app as boskos
from slipway_lease_broker.http.callers import NeedsLease
from slipway_lease_broker.settings import Settings as LeaseBrokerSettings
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner import main as provisioner
from slipway_provisioner.settings import Settings as ProvisionerSettings
from slipway_simulator import main as simulator
from slipway_simulator.settings import Settings as SimulatorSettings
from slipway_weight_calculator import main as weight_calculator
from slipway_weight_calculator.settings import Settings as WeightCalculatorSettings
from tests.support.lease_broker_http import world_on
from tests.support.provisioner import KEY, administrator, provisioner_on
from tests.support.provisioner import declared as declared_body

OPEN, WORKER, LEASE = "open", "worker", "lease"
"""Access without a token, by the token of the worker in the path, and also by that of the lease."""
COMMON: Final = """
GET  /livez                                             open
GET  /readyz                                            open
GET  /metrics                                           read:metrics
GET  /openapi.json                                      read
GET  /status                                            read
GET  /alerts                                            read
POST /alerts/silence                                    alerts:write
GET  /audit                                             read
GET  /tokens                                            read
POST /tokens/{name}/revoke                              tokens:write
POST /restored                                          restores:write
"""
CONSUMING: Final = """
GET  /dead-letters                                      read
GET  /dead-letters/{topic}/{partition}/{offset}         read:settings
POST /dead-letters/replay                               dead-letters:write
POST /dead-letters/drop                                 dead-letters:write
GET  /positions/stopped                                 read
POST /positions/adopt                                   positions:write
POST /positions/adopt-all                               positions:write
"""
ROUTES: Final = {
    "provisioner": COMMON
    + CONSUMING
    + """
GET  /accounts                                          read
GET  /accounts/{account_id}                             read
GET  /errors                                            read
GET  /errors/totals                                     read
GET  /launch-limits                                     read
GET  /providers                                         read
GET  /providers/{provider}/classify                     read
POST /accounts/{account_id}/check                       accounts:write accounts:write:{owner}
POST /accounts/{account_id}/retire                      accounts:write accounts:write:{owner}
POST /accounts/{account_id}/reinstate                   accounts:write accounts:write:{owner}
POST /accounts/{account_id}/confirm-unresponsive        accounts:write accounts:write:{owner}
GET  /console-outputs                                   read
GET  /declaration                                       read:settings
PUT  /declaration                                       declaration:write declaration:write:{owner}
GET  /decisions/{decision_id}                           read
GET  /demand                                            read
GET  /deployment                                        read
GET  /launch-configs                                    read
GET  /launch-configs/{config}                           read
POST /launch-configs/{config}/pause                     launch-configs:write launch-configs:write:{owner}
POST /launch-configs/{config}/resume                    launch-configs:write launch-configs:write:{owner}
GET  /launch-stops                                      read
POST /stop-launching                                    launching:stop
POST /start-launching                                   launching:stop
GET  /pools                                             read
GET  /pools/{pool_id}                                   read
PUT  /pools/{pool_id}                                   declaration:write declaration:write:{owner}
GET  /pools/{pool_id}/decisions                         read
PUT  /pools/{pool_id}/demand                            demand:write:{pool_id}
DELETE /pools/{pool_id}/demand/{source}                 demand:write:{pool_id}
GET  /pools/{pool_id}/history                           read
GET  /pools/{pool_id}/rollback                          read
POST /pools/{pool_id}/rollback                          declaration:write declaration:write:{owner}
POST /pools/{pool_id}/pause                             pools:write pools:write:{owner}
POST /pools/{pool_id}/resume                            pools:write pools:write:{owner}
POST /pools/{pool_id}/freeze                            pools:write pools:write:{owner}
POST /pools/{pool_id}/unfreeze                          pools:write pools:write:{owner}
GET  /pools/{pool_id}/user-data                         read:settings
GET  /recovery                                          read
POST /recovery/confirm                                  restores:write
GET  /workers                                           read
GET  /workers/{worker_id}                               read
POST /workers/{worker_id}/terminate                     workers:terminate workers:terminate:{owner}
POST /workers/{worker_id}/state                         workers:state workers:state:{owner}
POST /workers/{worker_id}/unlock                        workers:state workers:state:{owner}
GET  /state-keys                                        read
POST /state-keys/rotate                                 state-keys:write
POST /workers/register                                  open
POST /workers/{worker_id}/claimed                       worker
POST /workers/{worker_id}/idle                          worker
POST /workers/{worker_id}/heartbeat                     worker
GET  /workers/{worker_id}/should-terminate              worker
POST /workers/{worker_id}/error                         worker
POST /workers/{worker_id}/notice                        worker
POST /workers/{worker_id}/stopped                       worker
""",
    "weight-calculator": COMMON
    + CONSUMING
    + """
GET  /signals                                           read
POST /signals                                           signal:write:{target_kind}:{target_id}
GET  /weights                                           read
""",
    "lease-broker": COMMON
    + CONSUMING
    + """
POST /lease-gangs                                       leases:write:{lease_pool_id}
GET  /lease-pools                                       read
PUT  /lease-pools                                       lease-pools:write lease-pools:write:{owner}
GET  /lease-pools/{lease_pool_id}                       read leases:write:{lease_pool_id}
PATCH /lease-pools/{lease_pool_id}                      lease-pools:write lease-pools:write:{owner}
POST /lease-pools/{lease_pool_id}/drain                 lease-pools:write lease-pools:write:{owner}
POST /lease-pools/{lease_pool_id}/undrain               lease-pools:write lease-pools:write:{owner}
GET  /lease-pools/{lease_pool_id}/history               read
POST /lease-pools/{lease_pool_id}/leases                leases:write:{lease_pool_id} lease
GET  /lease-pools/{lease_pool_id}/report                read
GET  /lease-pools/{lease_pool_id}/requests              read leases:write:{lease_pool_id}
GET  /lease-pools/{lease_pool_id}/requests/{request_id} read leases:write:{lease_pool_id}
DELETE /lease-pools/{lease_pool_id}/requests/{request_id} leases:write:{lease_pool_id}
PUT  /lease-pools/{lease_pool_id}/units                 lease-pools:write lease-pools:write:{owner}
POST /lease-pools/{lease_pool_id}/unleased              leases:write:{lease_pool_id}
GET  /leases                                            read leases:write:{lease_pool_id}
GET  /leases/{lease_id}                                 read leases:write:{lease_pool_id}
POST /leases/{lease_id}/confirm                         leases:write:{lease_pool_id}
POST /leases/{lease_id}/heartbeat                       leases:write:{lease_pool_id} lease
GET  /leases/{lease_id}/history                         read leases:write:{lease_pool_id}
POST /leases/{lease_id}/release                         leases:write:{lease_pool_id} lease
POST /leases/{lease_id}/renew                           leases:write:{lease_pool_id} lease
POST /leases/{lease_id}/token                           leases:write:{lease_pool_id}
GET  /slots                                             read
PUT  /slots                                             lease-pools:write lease-pools:write:{owner}
""",
    "simulator": """
POST /accounts/{account}/instances                      open
GET  /accounts/{account}/instances                      open
GET  /accounts/{account}/instances/{instance_id}        open
DELETE /accounts/{account}/instances/{instance_id}      open
GET  /accounts/{account}/instances/{instance_id}/console open
GET  /accounts/{account}/identity                       open
PUT  /demand/{pool_id}                                  open
POST /faults                                            open
DELETE /faults/{name}                                   open
POST /instances/{instance_id}/crash                     open
GET  /ledger                                            open
GET  /livez                                             open
POST /queue/{pool_id}/claim                             open
POST /queue/{pool_id}/tasks/{task_id}/renew             open
POST /queue/{pool_id}/tasks/{task_id}/finish            open
GET  /readyz                                            open
POST /scenario                                          open
GET  /state                                             open
POST /tasks                                             open
""",
}
AT: Final = "2026-01-01T12:00:00Z"
BODIES: Final = {
    "claimed": {"task_id": "t", "source": "s", "at": AT},
    "idle": {"at": AT},
    "heartbeat": {},
    "error": {"kind": "k"},
    "notice": {"kind": "rebalance", "at": AT},
}
Route = tuple[str, str]
TABLE: Final[dict[str, dict[Route, str]]] = {
    service: {(method, path): access for method, path, access in (line.split(maxsplit=2) for line in lines)}
    for service, lines in ((service, filter(None, rows.splitlines())) for service, rows in ROUTES.items())
}
# Scopes that include read scopes.
INCLUDING: Final = {
    "read:metrics": {"read", "read:settings", "declaration:write"},
    "read": {"read:settings", "declaration:write"},
    "read:settings": {"declaration:write"},
}
ALONE: Final[dict[str, dict[str, list[str]]]] = {WORKER: {"workerToken": []}, LEASE: {"leaseToken": []}}
SECRET: Final = "secret"
REFUSALS: Final = {
    "no-token": 401,
    "unknown-token": 401,
    "worker-token": 403,
    "lease-token": 403,
    "foreign-token": 403,
    "scope-missing": 403,
    "expired-token": 401,
}
UNKNOWN: Final = {
    "nobody": "no-token",
    "stranger": "unknown-token",
    "worker": "worker-token",
    "lease": "lease-token",
}
ENDS: Final = {"expired": "2026-01-01T00:00:00Z", "lasting": "2999-01-01T00:00:00Z"}
"""Ends of tokens that have one: one for everything, and one for the route alone."""
CALLERS: Final = (
    "nobody",
    "stranger",
    "foreign",
    "worker",
    "lease",
    "read:metrics",
    "read",
    "read:settings",
    "admin",
    "own",
    "expired",
    "lasting",
)


@cache
def apps() -> dict[str, FastAPI]:
    """The routes of every service, without servers: an admitted request is answered that the service is starting."""
    given: dict[str, Any] = {"database_url": "", "kafka": ""}
    return {
        "provisioner": provisioner.build(ProvisionerSettings(registration_keys=KEY, **given)).app(),
        "weight-calculator": weight_calculator.build(WeightCalculatorSettings(**given)).app(),
        "lease-broker": lease_broker.build(LeaseBrokerSettings(**given)).app(),
        "simulator": simulator.build(SimulatorSettings()),
    }


def written(access: Any) -> str:
    """A declared access as in the table."""
    if isinstance(access, Open):
        return OPEN
    if not isinstance(access, Needs):
        return WORKER
    return " ".join([*access.scopes, *([LEASE] if isinstance(access, NeedsLease) else [])])


def filled(text: str, by: str) -> str:
    """The text with this for each parameter."""
    return re.sub(r"{\w+}", by, text)


def parameters(text: str) -> set[str]:
    return set(re.findall(r"{\w+}", text))


def scopes(caller: str, access: str, path: str) -> list[str]:
    """Scopes of a caller's token. The foreign one has all but those for this route, which it has for another target if
    the path tells the target."""
    if caller != "foreign":
        own = [filled(scope, "x") for scope in access.split() if scope not in (OPEN, WORKER, LEASE)]
        return {"own": own, "lasting": own, "expired": ["admin"]}.get(caller, [caller])
    needed = set(access.split())
    enough = needed.union(*(INCLUDING.get(scope, ()) for scope in needed))
    others = {scope for table in TABLE.values() for given in table.values() for scope in given.split()} - enough
    elsewhere = {scope for scope in needed if "{" in scope and parameters(scope) <= parameters(path)}
    return [filled(scope, "elsewhere") for scope in sorted((others | elsewhere) - {OPEN, WORKER, LEASE})]


def expected(caller: str, access: str) -> str:
    """Refusal of a caller; empty if it is let in."""
    if access == OPEN or (caller in ("admin", "own", "lasting") and access != WORKER):
        return ""
    if access == WORKER and caller != "nobody":
        return "" if caller == "worker" else "foreign-token"
    if caller == "lease" and LEASE in access.split():
        return ""
    if caller == "expired":
        return "expired-token"
    if caller in UNKNOWN:
        return UNKNOWN[caller]
    reads = {caller} | {scope for scope, including in INCLUDING.items() if caller in including}
    return "" if reads & set(access.split()) else "scope-missing"


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("service", TABLE)
async def test_every_route(service: str, caller: str, tmp_path: Path) -> None:
    """Each route lets in those callers that the table allows, and refuses all others before anything else."""
    app, found, tokens = apps()[service], {}, tmp_path / "tokens.yaml"
    if service != "simulator":
        app.state.tokens = Tokens(tokens)
    headers = {
        "stranger": "Bearer unknown",
        "worker": f"Bearer {new_worker_token()}",
        "lease": f"Bearer {new_lease_token('x')}",
        "nobody": "",
    }
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with contextlib.AsyncExitStack() as stack:
        if service == "simulator":
            stack.enter_context(contextlib.chdir(tmp_path))
            await stack.enter_async_context(app.router.lifespan_context(app))
        client = await stack.enter_async_context(httpx2.AsyncClient(transport=transport, base_url="http://service"))
        for number, ((method, path), access) in enumerate(TABLE[service].items()):
            secret = f"secret {number}"
            entry = {"name": "someone", "sha256": hash_secret(secret), "scopes": scopes(caller, access, path)}
            entry |= {"expires_at": ENDS[caller]} if caller in ENDS else {}
            tokens.write_bytes(msgspec.json.encode([entry]))
            given = headers.get(caller, f"Bearer {secret}")
            app.state.limits = CallerLimits(1.0)
            answer = await client.request(method, filled(path, "x"), headers={"Authorization": given} if given else {})
            found[method, path] = refusal(answer)
    assert found == {route: expected(caller, access) for route, access in TABLE[service].items()}


def refusal(answer: httpx2.Response) -> str:
    """Slug of a refusal for lack of access; empty for any other answer."""
    if "problem" not in answer.headers.get("content-type", ""):
        return ""
    slug = str(answer.json()["type"]).rpartition(":")[2]
    if slug not in REFUSALS:
        return ""
    assert answer.status_code == REFUSALS[slug]
    return slug


@pytest.mark.parametrize("service", TABLE)
def test_no_route_is_missing(service: str) -> None:
    """The routes of each service, as it serves them, are those of the table, with the access that it says."""
    assert {(method, path): written(access) for method, path, access in declared(apps()[service])} == TABLE[service]


@pytest.mark.parametrize("service", sorted(TABLE.keys() - {"simulator"}))
def test_the_api_document_tells_the_access(service: str) -> None:
    """Scopes are alternatives in the OpenAPI document; what needs no token says so."""
    document, shown = apps()[service].openapi(), {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            shown[method.upper(), path] = operation["security"]
    schemes: dict[str, Any] = {OPEN: []}
    assert shown == {
        (method, path): schemes.get(access, [ALONE.get(scope, {"token": [scope]}) for scope in access.split()])
        for (method, path), access in TABLE[service].items()
        if path not in ("/livez", "/readyz", "/metrics", "/openapi.json")
    }


def test_a_route_without_access_is_not_served() -> None:
    """A service does not start with a route that declares no access, or one whose target the path does not give."""
    for dependencies in ([], [Depends(Needs("leases:write:{pool}"))], [READ, READ_SETTINGS]):
        router = APIRouter()
        router.get("/secrets/{id}", dependencies=dependencies)(lambda: None)
        with pytest.raises(TypeError, match="/secrets/"):
            Service("probe", ServiceSettings(database_url="", kafka=""), routers=[router]).app()


@pytest.mark.parametrize("secret", ["", "unknown", new_worker_token(), new_lease_token("x")])
async def test_boskos_needs_a_token(secret: str) -> None:
    """Its clients authenticate by HTTP Basic, unless the setting opens it to all."""
    service = lease_broker.build(LeaseBrokerSettings(database_url="", kafka="", boskos_port=0))
    app = service.state["boskos"].app
    headers = {"Authorization": "Basic " + b64encode(f"me:{secret}".encode()).decode()} if secret else {}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://boskos") as client:
        for path, route in boskos.ROUTES.items():
            assert (await client.request(route.method, path, headers=headers)).status_code == 401, path


async def test_a_worker_reaches_itself_alone(postgres: EmbeddedPostgres) -> None:
    """The token of a worker is refused for every other worker, and changes nothing there."""
    async with provisioner_on(postgres) as product:
        workers = await product.starting(2)
        registered = [await product.register(worker.instance_id or "", worker.batch_id) for worker in workers]
        tokens = [answer.json()["token"] for answer in registered]
        for worker, token in zip(workers, tokens, strict=True):
            async with product.client(token=token) as client:
                for other in workers:
                    for (method, path), access in TABLE["provisioner"].items():
                        if access == WORKER and not path.endswith("/stopped"):
                            body = BODIES.get(path.rpartition("/")[2])
                            answer = await client.request(method, filled(path, other.id), json=body)
                            assert answer.is_success == (other is worker), answer.text
                            assert refusal(answer) == ("" if other is worker else "foreign-token")


async def test_settings_are_for_those_who_may_read_them(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """With the scope read a launch config, a pool and its history are shown, without what was declared."""
    body = declared_body()
    body["worker_pools"][0]["launch_configs"][0]["settings"] = {"ami_password": "hunter2"}
    async with provisioner_on(postgres) as product:
        await product.declare(body)
        found = {}
        for scope in ("read", "read:settings"):
            async with administrator(product, tmp_path, [scope]) as client:
                config = (await client.get("/launch-configs/zone-a")).json()
                pool = (await client.get("/pools/linux")).json()
                (entry,) = (await client.get("/pools/linux/history?full=true")).json()["items"]
                found[scope] = config["settings"], pool["declared"], entry["spec"]
                assert (config["name"], pool["id"], entry["revision"]) == ("zone-a", "linux", 1)
        assert found["read"] == (None, None, None)
        assert [str(shown).count("hunter2") for shown in found["read:settings"]] == [1, 1, 1]


@pytest.mark.parametrize(("caller", "status"), [("reader", 200), ("ann", 200), ("cid", 403), ("nobody", 403)])
async def test_holders_read_their_pools(caller: str, status: int, postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Leases, and requests for them, are shown to readers, and to those who may hold leases of their pool."""
    async with world_on(postgres, tmp_path) as world:
        lease_id = (await world.replica.acquire("r")).json()["lease_id"]
        pool = "/lease-pools/sim-a"
        for path in (
            f"/leases/{lease_id}",
            f"/leases/{lease_id}/history",
            "/leases?pool=sim-a",
            pool,
            f"{pool}/requests/r",
        ):
            assert (await world.replica.call("GET", path, by=caller)).status_code == status, path
        mine = await world.replica.call("GET", "/leases?mine=true", by=caller)
        assert mine.status_code == (403 if caller == "nobody" else 200)
        assert [lease["lease_id"] for lease in mine.json().get("items", ())] == ([lease_id] if caller == "ann" else [])
