"""Access to every route of every service: which token reaches it, and that no route is without a declared access."""

import contextlib
import re
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2
import msgspec
import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute, iter_route_contexts

from slipway_common.base.ids import hash_secret, new_lease_token, new_worker_token
from slipway_common.base.token_scopes import SCOPES
from slipway_common.service import Service, ServiceSettings
from slipway_common.web.access import READ, READ_SETTINGS, Needs, Open, declared
from slipway_common.web.limits import CallerLimits
from slipway_common.web.tokens import Tokens
from slipway_lease_broker import main as lease_broker
from slipway_lease_broker.boskos import app as boskos
from slipway_lease_broker.http.callers import NeedsLease
from slipway_lease_broker.settings import Settings as LeaseBrokerSettings
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_monitor import http as monitor
from slipway_monitor.settings import Settings as MonitorSettings
from slipway_provisioner import main as provisioner
from slipway_provisioner.settings import Settings as ProvisionerSettings
from slipway_simulator import main as simulator
from slipway_simulator.settings import Settings as SimulatorSettings
from slipway_weight_calculator import main as weight_calculator
from slipway_weight_calculator.settings import Settings as WeightCalculatorSettings
from tests.support.access_table import LEASE, OPEN, TABLE, WORKER, Route
from tests.support.lease_broker_http import world_on
from tests.support.provisioner import KEY, administrator, after, provisioner_on
from tests.support.provisioner import declared as declared_body
from tests.support.weight_calculator import calculator_on
from tests.support.weight_calculator import declared as config_in

AT: Final = "2026-01-01T12:00:00Z"
BODIES: Final = {
    "claimed": {"task_id": "t", "source": "s", "at": AT},
    "idle": {"at": AT},
    "heartbeat": {},
    "error": {"kind": "k"},
    "notice": {"kind": "rebalance", "at": AT},
}
ALONE: Final[dict[str, dict[str, list[str]]]] = {WORKER: {"workerToken": []}, LEASE: {"leaseToken": []}}
REASON: Final = {"reason": "test"}
NO_SERVERS: Final[dict[str, Any]] = {"database_url": "", "kafka": ""}
REFUSALS: Final = {
    "no-token": 401,
    "unknown-token": 401,
    "worker-token": 403,
    "lease-token": 403,
    "foreign-token": 403,
    "scope-missing": 403,
    "expired-token": 401,
    "foreign-owner": 403,
}
THEIRS_REFUSED: Final = {("theirs", "scope-missing"), ("theirs", "foreign-owner")}
"""How a token is refused for what is theirs."""
UNKNOWN: Final = {
    "nobody": "no-token",
    "stranger": "unknown-token",
    "worker": "worker-token",
    "lease": "lease-token",
}
"""Callers whose token no tokens file has."""
IMPLIES: Final = {
    "read": {"read:metrics"},
    "read:settings": {"read:metrics", "read"},
    "declaration:write": {"read:metrics", "read", "read:settings"},
}
"""Read scopes that a scope includes."""
MINE, THEIRS = "mine", "theirs"
"""Owners, and ids of things that a scope names. What a test reaches is mine."""
ENDS: Final = {"": None, "lasting": "2999-01-01T00:00:00Z", "expired": "2026-01-01T00:00:00Z"}


class Held(NamedTuple):
    """A token: a scope as SCOPES has it, limited to things `of` an owner or an id unless empty, and its expiry."""

    scope: str
    of: str = ""
    expiry: str = ""

    @property
    def written(self) -> str:
        """The scope as the tokens file has it."""
        if "[" in self.scope:
            return base(self.scope) + (f":{self.of}" if self.of else "")
        return re.sub("[A-Z]+", self.of, self.scope.replace("KIND", "zone"))

    @property
    def is_mine(self) -> bool:
        return self.of != THEIRS

    def reaches(self, wanted: str, path: str) -> bool:
        """True if the scope opens a route, whose access is `wanted`; what the path does not tell is decided later."""
        if self.scope == "admin" or wanted in IMPLIES.get(self.written, ()):
            return True
        if base(self.scope) != base(wanted) or bool(self.of) != ("{" in wanted):
            return False
        return self.is_mine or not parameters(wanted) <= parameters(path)


def base(scope: str) -> str:
    """A scope without what it is limited to."""
    return re.split(r"\[|:[A-Z{]", scope)[0]


def tokens() -> list[Held]:
    """Every kind of token × owner × expiry."""
    return [Held(scope, of, expiry) for scope in SCOPES for of, expiry in product(limits(scope), ENDS)]


def limits(scope: str) -> tuple[str, ...]:
    """What tokens with a scope may be limited to."""
    if "[" in scope:
        return "", MINE, THEIRS, "mi*"
    return (MINE, THEIRS, "*") if re.search("[A-Z]", scope) else ("",)


@cache
def apps() -> dict[str, FastAPI]:
    """The routes of every service, without servers: an admitted request is answered that the service is starting."""
    return {
        "provisioner": provisioner.build(ProvisionerSettings(registration_keys=KEY, **NO_SERVERS)).app(),
        "weight-calculator": weight_calculator.build(WeightCalculatorSettings(**NO_SERVERS)).app(),
        "lease-broker": lease_broker.build(LeaseBrokerSettings(**NO_SERVERS)).app(),
        "monitor": monitor.app(MonitorSettings(kafka=""), list),
        "simulator": simulator.build(SimulatorSettings()),
    }


def test_a_document_is_made_once() -> None:
    """Each would keep the event loop for a tenth of a second, and a reader may ask for hundreds."""
    for service in ("provisioner", "weight-calculator", "lease-broker"):
        app = apps()[service]
        assert app.openapi() is app.openapi()


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


def expected(caller: str | Held, access: str, path: str) -> str:
    """Refusal of a caller by what the route declares; empty if it is let in."""
    if access == OPEN:
        return ""
    if isinstance(caller, str) and caller in UNKNOWN:
        if access == WORKER and caller != "nobody":
            return "" if caller == "worker" else "foreign-token"
        return "" if caller == "lease" and LEASE in access.split() else UNKNOWN[caller]
    assert isinstance(caller, Held)
    if access == WORKER:
        return "foreign-token"
    if caller.expiry == "expired":
        return "expired-token"
    return "" if any(caller.reaches(wanted, path) for wanted in access.split()) else "scope-missing"


def write_tokens(path: Path, held: Iterable[Held]) -> dict[Held, str]:
    """Write a tokens file with all of these; their secrets."""
    secrets = {token: f"secret {number}" for number, token in enumerate(held)}
    entries = [
        {"name": f"t{number}", "sha256": hash_secret(secret), "scopes": [token.written]}
        | ({"expires_at": ENDS[token.expiry]} if token.expiry else {})
        for number, (token, secret) in enumerate(secrets.items())
    ]
    path.write_bytes(msgspec.json.encode(entries))
    return secrets


@pytest.mark.parametrize("service", TABLE)
async def test_every_route(service: str, tmp_path: Path) -> None:
    """Each route × kind of token × owner, and × expiry for those that are let in: the table and the scopes say who is,
    and all others are refused before anything else."""
    app, wrong = apps()[service], []
    secrets = write_tokens(tmp_path / "tokens.yaml", tokens() if service != "simulator" else ())
    if service != "simulator":
        app.state.tokens = Tokens(tmp_path / "tokens.yaml")
    callers: dict[str | Held, str] = {"stranger": "unknown", "worker": new_worker_token(), "nobody": ""}
    callers |= {"lease": new_lease_token("x")} | secrets
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with contextlib.AsyncExitStack() as stack:
        if service == "simulator":
            stack.enter_context(contextlib.chdir(tmp_path))
            await stack.enter_async_context(app.router.lifespan_context(app))
        client = await stack.enter_async_context(httpx2.AsyncClient(transport=transport, base_url="http://service"))
        for (method, path), access in TABLE[service].items():
            for caller, secret in callers.items():
                if ends_in_vain(caller, access, path):
                    continue
                app.state.limits = CallerLimits(1.0)
                headers = {"Authorization": f"Bearer {secret}"} if secret else {}
                found = refusal(await client.request(method, filled(path, MINE), headers=headers))
                if found != (right := expected(caller, access, path)):
                    wrong.append((method, path, caller, found, right))
    assert wrong == []


def ends_in_vain(caller: str | Held, access: str, path: str) -> bool:
    """True for a token with an expiry that is refused without one. Those of one scope show that the expiry is judged
    before the scope."""
    if isinstance(caller, str) or not caller.expiry or caller.scope == "read:metrics":
        return False
    return expected(caller._replace(expiry=""), access, path) != ""


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
def test_all_routes_can_declare_an_access(service: str) -> None:
    """Pages of documentation, mounts and plain routes of the framework could not, and would be in no table."""
    routes = [route.original_route for route in iter_route_contexts(apps()[service].routes)]
    assert [route for route in routes if not isinstance(route, APIRoute)] == []


def test_every_scope_of_a_route_is_one_of_the_table() -> None:
    """A route that asks for a scope which no token may have would be reached by administrators alone."""
    known = {base(scope) for scope in SCOPES}
    asked = {base(scope) for table in TABLE.values() for access in table.values() for scope in access.split()}
    assert asked - {OPEN, WORKER, LEASE} <= known
    assert known - asked == {"admin", "throttles:write"}, "they are no part of the access to a route"


VERBS: Final = ("heartbeat", "renew", "token", "release")


class Given(NamedTuple):
    """A service on rows that are mine: the ids in its paths, and what requests send that tell by query or body what
    they are to reach."""

    app: FastAPI
    ids: Mapping[str, str]
    sent: Mapping[Route, tuple[str, Any]]


@contextlib.asynccontextmanager
async def provisioner_of_mine(postgres: EmbeddedPostgres, _: Path) -> AsyncIterator[Given]:
    body = declared_body() | {"metadata": {"owner": MINE}}
    del body["lease_pools"]
    async with provisioner_on(postgres) as product:
        await product.starting(1)
        await product.declare(body, adopt=True)
        ids = {"account_id": "sim-a", "config": "zone-a", "pool_id": "linux", "worker_id": (await product.worker()).id}
        sent = {
            ("PUT", "/declaration"): ("?dry_run=true", body),
            ("PUT", "/pools/{pool_id}"): ("?dry_run=true", body["worker_pools"][0] | {"max_capacity": 7}),
            ("POST", "/pools/{pool_id}/rollback"): ("", REASON | {"dry_run": True, "to_revision": 1}),
        }
        yield Given(product.app, ids, sent)


@contextlib.asynccontextmanager
async def lease_broker_of_mine(postgres: EmbeddedPostgres, folder: Path) -> AsyncIterator[Given]:
    pool = {"id": MINE, "limit": 9, "hold_seconds": 60, "ttl_seconds": 30, "reserve_seconds": 20, "pacing": "off"}
    pools = {"documents": [{"owner": MINE, "lease_pools": [pool]}]}
    async with world_on(postgres, folder) as world:
        assert (await world.replica.call("PUT", "/lease-pools", pools, by="root")).status_code == 200
        lease = (await world.replica.acquire("r", MINE)).json()
        slots = {"lease_pool": MINE, "state": "free", "names": ["s"]}
        held = {"fencing_token": lease["fencing_token"]}
        sent: dict[Route, tuple[str, Any]] = {
            ("POST", "/lease-gangs"): ("", {"request_id": "g", "members": [{"pool": MINE, "units": 1}]}),
            ("PUT", "/lease-pools"): ("?dry_run=true", pools),
            ("PATCH", "/lease-pools/{lease_pool_id}"): ("", REASON | {"limit": 8}),
            ("PUT", "/lease-pools/{lease_pool_id}/units"): ("", {"units": 1, "ttl_seconds": 60}),
            ("PUT", "/slots"): ("?dry_run=true", {"slots": [slots], "hold_seconds": 60, "ttl_seconds": 30}),
            ("GET", "/leases"): (f"?pool={MINE}", None),
            ("POST", "/leases/{lease_id}/confirm"): ("", held | {"hold_seconds": 60}),
            **{("POST", f"/leases/{{lease_id}}/{verb}"): ("", held) for verb in VERBS},
        }
        yield Given(world.replica.app, {"lease_pool_id": MINE, "lease_id": lease["lease_id"]}, sent)


@contextlib.asynccontextmanager
async def calculator_of_mine(postgres: EmbeddedPostgres, _: Path) -> AsyncIterator[Given]:
    signal = {"target_kind": "zone", "target_id": MINE, "kind": "degraded", "reason": "test"}
    async with calculator_on(postgres) as calculator:
        await calculator.consume(config_in(MINE, owner=MINE))
        service = weight_calculator.build(WeightCalculatorSettings(**NO_SERVERS))
        service.runtime.database = calculator.database
        yield Given(service.app(), {}, {("POST", "/signals"): ("", signal)})


WORLDS: Final = {
    "provisioner": provisioner_of_mine,
    "lease-broker": lease_broker_of_mine,
    "weight-calculator": calculator_of_mine,
}


@pytest.mark.parametrize("service", WORLDS)
async def test_every_owner(service: str, postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Each route whose path does not tell what its scopes are limited to × owner × expiry, on rows that are mine:
    tokens for what is theirs are refused, and mine are let in."""
    wrong, file = [], tmp_path / "owners.yaml"
    async with WORLDS[service](postgres, tmp_path) as given:
        secrets = write_tokens(file, tokens())
        given.app.state.tokens = Tokens(file)
        transport = httpx2.ASGITransport(app=given.app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
            for (method, path), access in TABLE[service].items():
                limited = {wanted for wanted in access.split() if not parameters(wanted) <= parameters(path)}
                unlimited = " ".join({*access.split()} - limited)
                query, body = given.sent.get((method, path), ("", REASON))
                for token in tokens() if limited else ():
                    if base(token.scope) not in map(base, access.split()):
                        continue
                    given.app.state.limits = CallerLimits(1.0)
                    headers = {"Authorization": f"Bearer {secrets[token]}"}
                    url = path.format(**given.ids) + query
                    found = refusal(await client.request(method, url, headers=headers, json=body))
                    right = expected(token, access, path)
                    if not right and not token.is_mine and expected(token, unlimited, path):
                        right = "theirs"
                    if found != right and (right, found) not in THEIRS_REFUSED:
                        wrong.append((method, path, token, found, right))
    assert wrong == []


@pytest.mark.parametrize("service", WORLDS)
async def test_a_parameter_that_a_route_lacks(service: str, postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Each route refuses it, once the caller may reach the route at all."""
    found, needed = (
        dict[Route, str](),
        {("GET", "/providers/{provider}/classify"): "code=c&", ("GET", "/slots"): "pool=1&"},
    )
    async with WORLDS[service](postgres, tmp_path) as given:
        secrets = write_tokens(tmp_path / "admin.yaml", [Held("admin")])
        given.app.state.tokens = Tokens(tmp_path / "admin.yaml")
        transport = httpx2.ASGITransport(app=given.app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
            for (method, path), access in TABLE[service].items():
                url = f"{filled(path, '1')}?{needed.get((method, path), '')}invented=1"
                secret = new_worker_token() if access == WORKER else secrets[Held("admin")]
                given.app.state.limits = CallerLimits(1.0)
                given.app.state.limits.prove(hash_secret(secret))
                if access != OPEN:
                    refused = await client.request(method, url)
                    assert refused.status_code == 401, (method, path)
                answer = await client.request(method, url, headers={"Authorization": f"Bearer {secret}"})
                found[method, path] = answer.json()["errors"][0]["where"] if answer.status_code == 422 else answer.text
    assert found == dict.fromkeys(TABLE[service], "query/invented")


@pytest.mark.parametrize("service", TABLE)
async def test_no_route_is_found_by_a_redirect(service: str) -> None:
    """A slash too many is refused as any unknown path is, so that a caller without a token learns of no route."""
    transport, found = httpx2.ASGITransport(app=apps()[service]), set[tuple[int, str]]()
    async with httpx2.AsyncClient(transport=transport, base_url="http://service") as client:
        for method, path in TABLE[service]:
            answer = await client.request(method, f"{filled(path, '1')}/")
            found.add((answer.status_code, answer.headers.get("location", "")))
    assert found <= {(404, ""), (400, "")}


@pytest.mark.parametrize("service", sorted(TABLE.keys() - {"simulator", "monitor"}))
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


@pytest.mark.parametrize("secret", ["", "unknown", "expired", new_worker_token(), new_lease_token("x")])
async def test_boskos_needs_a_token(secret: str, tmp_path: Path) -> None:
    """Its clients authenticate by HTTP Basic, unless the setting opens it to all."""
    entry = {"name": "me", "sha256": hash_secret("expired"), "scopes": ["admin"], "expires_at": ENDS["expired"]}
    (tmp_path / "tokens.yaml").write_bytes(msgspec.json.encode([entry]))
    settings = LeaseBrokerSettings(database_url="", kafka="", boskos_port=0, tokens_file=tmp_path / "tokens.yaml")
    service = lease_broker.build(settings)
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


async def test_a_token_writes_to_its_sources_of_demand_alone(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Reporting for another source is refused, and so is removing it, by which its tasks would lose their workers."""
    report = {"pending": 1, "claimed": 0, "observed_at": after(0).isoformat()}
    scopes = ["demand:write:linux"]
    entries = [
        {"name": "any", "sha256": hash_secret("any"), "scopes": scopes},
        {"name": "one", "sha256": hash_secret("one"), "scopes": scopes, "sources": ["mine-*"]},
    ]
    (tmp_path / "tokens.yaml").write_bytes(msgspec.json.encode(entries))
    async with provisioner_on(postgres) as product:
        await product.declare(declared_body())
        product.app.state.tokens = Tokens(tmp_path / "tokens.yaml")
        async with product.client(token="any") as other, product.client(token="one") as client:
            for source in ("mine-1", "theirs"):
                put = await other.put("/pools/linux/demand", json=report | {"source": source})
                assert put.status_code == 200, put.text
                answers = [
                    await client.put("/pools/linux/demand", json=report | {"source": source}),
                    await client.delete(f"/pools/linux/demand/{source}"),
                ]
                slugs = [str(answer.json().get("type", "")).rpartition(":")[2] for answer in answers]
                assert slugs == ([""] * 2 if source == "mine-1" else ["foreign-source"] * 2)
            assert (await other.delete("/pools/linux/demand/theirs")).status_code == 200


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
