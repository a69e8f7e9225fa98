"""Clients of the provisioner that are older or newer than it, on answers that the real routes have given."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, get_origin

import httpx2
import msgspec
import pytest
from fastapi import FastAPI, Request, Response
from msgspec.inspect import DictType, EnumType, ListType, LiteralType, StructType, Type, UnionType, VarTupleType
from typer.testing import CliRunner

from generate.openapi import apps
from slipway_api.http.pages import Items, Page
from slipway_api.http.provisioner.decisions import Decision
from slipway_api.http.provisioner.demand import DemandSource
from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_api.http.provisioner.pools import Pool
from slipway_api.http.provisioner.workers import Worker
from slipway_api.http.service import AuditEntry
from slipway_api.problems import Problem
from slipway_client.cli.main import app as command
from slipway_common.web.problem import MEDIA_TYPE
from slipway_common.web.router import typed_routes
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.provisioner import Provisioner, administrator, provisioner_on, report
from tests.support.recorded import environment, serving

# Path of an answer → its type, and the fields whose values are of a set that grows.
LISTS: Final[dict[str, tuple[Any, Any, tuple[str, ...]]]] = {
    "/pools": (Items, Pool, ("mode",)),
    "/launch-configs": (Items, LaunchConfig, ("state", "health_state")),
    "/workers": (Page, Worker, ("state",)),
    "/demand": (Page, DemandSource, ("state",)),
    "/pools/linux/decisions": (Page, Decision, ()),
    "/audit": (Page, AuditEntry, ("action", "kind", "result")),
}
INVENTED: Final = "invented"
LATER: Final = {"invented_at": "2026-01-05T09:59:58Z", "parts": [{"of": 1}]}


@pytest.fixture
async def answers(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[dict[str, bytes]]:
    """Answers of a provisioner with workers, decisions and changes, by path."""
    async with provisioner_on(postgres) as provisioner, administrator(provisioner, tmp_path) as client:
        yield await _recorded(provisioner, client)


async def _recorded(provisioner: Provisioner, client: httpx2.AsyncClient) -> dict[str, bytes]:
    await provisioner.starting(2)
    await provisioner.demand(report(5, 2, at=0))
    paused = await client.post("/launch-configs/zone-a/pause", json={"reason": "maintenance"})
    assert paused.status_code == 200, paused.text
    found = {path: (await client.get(path)).content for path in LISTS}
    assert all(json.loads(body)["items"] for body in found.values()), found
    return found


def newer(row: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """An item as a newer service gives it: with a further field, also in the objects that it lists, and with new values
    in `fields`."""
    inner = {
        name: [part | {"invented": LATER} if isinstance(part, dict) else part for part in parts]
        for name, parts in row.items()
        if isinstance(parts, list)
    }
    return row | inner | dict.fromkeys(fields, INVENTED) | {"invented": LATER}


def test_an_older_client_reads_a_newer_service(answers: dict[str, bytes]) -> None:
    """It ignores fields and keeps values that it does not know."""
    for path, (kind, type_, fields) in LISTS.items():
        before = msgspec.json.decode(answers[path], type=kind[type_]).items
        rows = [newer(row, fields) for row in _items(answers[path])]
        after = msgspec.json.decode(json.dumps({"items": rows, "next": None, "total": 2}), type=kind[type_]).items
        expected = [msgspec.structs.replace(row, **dict.fromkeys(fields, INVENTED)) for row in before]
        assert after == expected, path


def test_a_newer_client_reads_an_older_service(answers: dict[str, bytes]) -> None:
    """A field that came later has a default, which stands for an answer without it."""
    for path, (kind, type_, _) in LISTS.items():
        later = msgspec.defstruct("Later", [("invented", str, "")], bases=(type_,), frozen=True, kw_only=True)
        rows = msgspec.json.decode(answers[path], type=kind[later]).items
        assert [row.invented for row in rows] == [""] * len(_items(answers[path])), path


def test_no_answer_is_closed() -> None:
    """No type in an answer of a route forbids fields or has a fixed set of values: each would stop an older client."""
    closed = {
        f"{name} {route.method} {route.path}: {found}"
        for name, app in apps().items()
        for route in typed_routes(app)
        if isinstance(route.answers, dict)
        for type_ in route.answers.values()
        if type_ is not None
        for found in _closed(msgspec.inspect.type_info(type_), set())
    }
    assert closed == set()


def test_reports_have_no_parameters() -> None:
    """A later worker, holder or monitor adds fields, which are ignored; a parameter would be refused."""
    reports, parameters = set[str](), set[str]()
    for name, app in apps().items():
        paths = app.openapi()["paths"]
        for route in typed_routes(app):
            if route.body is not None and not route.body.__struct_config__.forbid_unknown_fields:
                place = f"{name} {route.method} {route.path}"
                given = paths[route.path][route.method.lower()].get("parameters", ())
                reports.add(place)
                parameters |= {f"{place}: {each['name']}" for each in given if each["in"] == "query"}
    assert {"provisioner POST /workers/{worker_id}/claimed", "lease-broker POST /leases/{lease_id}/renew"} <= reports
    assert parameters == set()


@pytest.fixture
def newer_service(answers: dict[str, bytes]) -> Iterator[str]:
    """URL of a provisioner that is newer than the command."""
    app = FastAPI()

    @app.get("/provisioner/{path:path}")
    async def answer(path: str, request: Request) -> Response:
        if f"/{path}" in answers:
            fields = LISTS[f"/{path}"][2]
            rows = [row | dict.fromkeys(fields, INVENTED) | {"invented": LATER} for row in _items(answers[f"/{path}"])]
            return Response(json.dumps({"items": rows, "next": None}), media_type="application/json")
        problem = Problem(type="urn:slipway:problem:out-of-ideas", title="Out of ideas", status=418, detail="ask again")
        body = json.loads(msgspec.json.encode(problem)) | {"invented": LATER}
        return Response(json.dumps(body), 418, media_type=MEDIA_TYPE)

    with serving(app) as url:
        yield url


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["pool", "ls"], INVENTED),
        (["lc", "ls"], INVENTED),
        (["worker", "ls"], INVENTED),
        (["demand", "ls"], INVENTED),
        (["worker", "ls", "-o", "json"], '"invented_at": "2026-01-05T09:59:58Z"'),
    ],
    ids=" ".join,
)
def test_the_command_lists_what_it_does_not_know(newer_service: str, arguments: list[str], shown: str) -> None:
    """As text in its column, and as JSON with its fields."""
    result = CliRunner().invoke(command, arguments, env=environment(newer_service))
    assert (result.exit_code, shown in result.stdout) == (0, True), result.output


def test_the_command_shows_a_problem_that_it_does_not_know(newer_service: str) -> None:
    result = CliRunner().invoke(command, ["pool", "show", "linux"], env=environment(newer_service))
    assert (result.exit_code, result.stderr) == (1, "Out of ideas: ask again\n")


def _items(body: bytes) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads(body)["items"]
    return items


def _closed(kind: Type, seen: set[Any]) -> Iterator[str]:
    """Types below one that an older client cannot read once a field or a value is added."""
    match kind:
        case StructType() if kind.cls not in seen:
            seen.add(kind.cls)
            struct = get_origin(kind.cls) or kind.cls
            if struct.__struct_config__.forbid_unknown_fields:
                yield f"{struct.__name__} forbids fields"
            for field in kind.fields:
                yield from (f"{struct.__name__}.{field.name}: {found}" for found in _closed(field.type, seen))
        case LiteralType() | EnumType():
            yield "has a fixed set of values"
        case UnionType():
            for one in kind.types:
                yield from _closed(one, seen)
        case ListType() | VarTupleType():
            yield from _closed(kind.item_type, seen)
        case DictType():
            yield from _closed(kind.value_type, seen)
