"""Bodies and answers of routes with types: what is refused and how, after the token; what the document says."""

import ast
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import httpx2
import msgspec
import pytest
from fastapi import Depends, FastAPI

from slipway_api.limits import RequiredName
from slipway_api.problems import Problem
from slipway_api.time import Time
from slipway_common.base.ids import hash_secret
from slipway_common.observability.metrics import counter
from slipway_common.web import openapi, problem
from slipway_common.web.access import Needs
from slipway_common.web.answers import Accepted, Answer, Tagged, stored
from slipway_common.web.bodies import Body, Report
from slipway_common.web.conditional import Conditional
from slipway_common.web.limits import CallerLimits
from slipway_common.web.router import Router
from slipway_common.web.tokens import Tokens

ROOT: Final = Path(__file__).parents[2]
SECRET: Final = "s3cret"
WRITER: Final = "[{name: writer, sha256: %s, scopes: [admin]}]"


class Part(msgspec.Struct, forbid_unknown_fields=True):
    name: RequiredName
    units: Annotated[int, msgspec.Meta(ge=1)] = 1


class Asked(msgspec.Struct, forbid_unknown_fields=True):
    """A request."""

    name: RequiredName
    """Name of the thing."""
    mode: Literal["shadow", "enforce"] = "enforce"
    parts: Annotated[list[Part], msgspec.Meta(max_length=2)] = []
    since: Time | None = None


class Told(msgspec.Struct):
    state: str
    parts: list[Part] = []


class Done(msgspec.Struct):
    name: str
    """Name of the thing."""


class Waits(msgspec.Struct):
    position: int


def _app(tokens: Tokens) -> FastAPI:
    router = Router(prefix="/things")
    writer = Annotated[str, Depends(Needs("things:write"))]

    @router.post("")
    async def ask(body: Body[Asked], by: writer) -> Answer[Done] | Accepted[Waits]:
        """Ask for a thing."""
        return Answer(Done(name=body.name)) if body.mode == "enforce" else Accepted(Waits(position=1))

    @router.post("/told")
    @router.post("/told-before")
    async def tell(by: writer, body: Report[Told]) -> Answer[Told]:
        """Tell of a thing."""
        return Answer(body)

    @router.get("")
    async def list_things(by: writer) -> Answer[list[Done]]:
        """List the things."""
        return Answer(stored([b'{"name": "a"}'], Done))

    @router.get("/{name}")
    async def get_thing(name: str, by: writer) -> Tagged[Done]:
        """Show a thing."""
        return Tagged(Done(name=name), "v1")

    app = FastAPI()
    app.state.tokens, app.state.limits = tokens, CallerLimits(1.0)
    problem.install(app)
    app.add_middleware(Conditional)
    app.include_router(router)
    return app


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    file = tmp_path / "tokens.yaml"
    file.write_text(WRITER % hash_secret(SECRET))
    return _app(Tokens(file))


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Authorization": f"Bearer {SECRET}"}
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://service", headers=headers) as client:
        yield client


@pytest.mark.parametrize(
    ("body", "where", "reason"),
    [
        ({}, "body/name", "is required"),
        ({"name": ""}, "body/name", "must be a text of at least 1 characters"),
        ({"name": "x" * 201}, "body/name", "must be a text of at most 200 characters"),
        ({"name": "\N{CRAB}" * 200}, "body/name", "Text has 800 bytes in UTF-8; at most 600 are allowed"),
        ({"name": "a\0b"}, "body/name", "Text has a NUL character"),
        ({"name": "a", "modes": "shadow"}, "body/modes", "unknown field; did you mean mode?"),
        ({"name": "a", "zz": 1}, "body/zz", "unknown field; known: name, mode, parts, since"),
        ({"name": "a", "mode": "off"}, "body/mode", "'off' is none of enforce, shadow"),
        ({"name": "a", "parts": [{"name": "b"}, {"units": 1}]}, "body/parts/1/name", "is required"),
        ({"name": "a", "parts": [{"name": "b", "units": 0}]}, "body/parts/0/units", "must be int >= 1"),
        ({"name": "a", "parts": [{"name": "b", "units": True}]}, "body/parts/0/units", "must be int, not bool"),
        ({"name": "a", "parts": [{"name": "b", "unit": 1}]}, "body/parts/0/unit", "unknown field; did you mean units?"),
        ({"name": "a", "parts": [{"name": "\0"}]}, "body/parts/…/name", "Text has a NUL character"),
        ({"name": "a", "since": "0001-01-01T00:00:00Z"}, "body/since", "Time must be within the years 1 to 9999 (UTC)"),
        ([], "body", "must be object, not array"),
    ],
)
async def test_the_first_wrong_part_of_a_body(client: httpx2.AsyncClient, body: Any, where: str, reason: str) -> None:
    answer = await client.post("/things", json=body)
    refused = answer.json()
    assert (answer.status_code, refused["type"]) == (422, "urn:slipway:problem:invalid-request")
    assert refused["errors"] == [{"where": where, "reason": reason}]
    assert refused["detail"] == f"{where}: {reason}"
    assert len(refused["request_id"]) == 36


async def test_a_body_is_read_after_the_token(client: httpx2.AsyncClient) -> None:
    unknown = {"Authorization": "Bearer stranger"}
    for body in (b"{", b"{}"):
        assert (await client.post("/things", content=body, headers=unknown)).status_code == 401
    answer = await client.post("/things", content=b"{")
    assert (answer.status_code, answer.json()["type"]) == (400, "urn:slipway:problem:not-json")


async def test_unknown_fields_of_a_report_are_counted(client: httpx2.AsyncClient) -> None:
    unknown = counter("slipway_unknown_fields_total").labels("Told")
    before = unknown._value.get()
    body = {"state": "invented", "zone": 1, "parts": []}
    for path in ("/things/told", "/things/told-before"):
        assert (await client.post(path, json=body)).json() == {"state": "invented", "parts": []}
    assert unknown._value.get() == before + 2


async def test_a_report_is_small(client: httpx2.AsyncClient) -> None:
    """A registration has no token yet, and could otherwise have a hundred thousand fields decoded and counted."""
    body = {"state": "x", "parts": []} | {f"unknown-{number}": 0 for number in range(10_000)}
    answer = await client.post("/things/told", json=body)
    assert (answer.status_code, answer.json()["type"]) == (413, "urn:slipway:problem:body-too-large")
    body = {"state": "x" * 50_000, "parts": []}
    assert (await client.post("/things/told", json=body)).status_code == 200


async def test_a_method_that_a_path_lacks(client: httpx2.AsyncClient) -> None:
    """The refusal names those that it has (RFC 9110 §15.5.6), of all of its routes."""
    answer = await client.delete("/things")
    assert (answer.status_code, answer.json()["type"]) == (405, "urn:slipway:problem:method-not-allowed")
    assert answer.headers["allow"] == "GET, HEAD, POST"
    assert (await client.head("/things")).status_code == 200
    assert (await client.put("/things/told")).headers["allow"] == "GET, HEAD, POST"
    assert (await client.put("/things/told/x")).status_code == 404


async def test_what_its_caller_has_is_not_sent_again(app: FastAPI, client: httpx2.AsyncClient) -> None:
    """But for an answer with a tag of its own, which is that of a part of it. The document says which ones they are."""
    for path, place, expected in (("/things", "/things", 304), ("/things/a", "/things/{name}", 200)):
        known = (await client.get(path)).headers["etag"]
        again = await client.get(path, headers={"If-None-Match": known})
        assert (again.status_code, again.headers["etag"]) == (expected, known)
        documented = openapi.document(app)["paths"][place]["get"]
        named = [parameter["name"] for parameter in documented["parameters"]]
        assert ("304" in documented["responses"], "If-None-Match" in named) == (expected == 304, expected == 304), path
        assert ("headers" in documented["responses"]["200"]) is (expected == 200)
    assert known == '"v1"'


async def test_the_status_of_an_answer_is_that_of_its_type(client: httpx2.AsyncClient) -> None:
    granted = await client.post("/things", json={"name": "a"})
    assert (granted.status_code, granted.json()) == (200, {"name": "a"})
    queued = await client.post("/things", json={"name": "a", "mode": "shadow"})
    assert (queued.status_code, queued.json()) == (202, {"position": 1})
    assert (await client.get("/things")).json() == [{"name": "a"}]


def test_the_document_has_the_types_of_answers_and_bodies(app: FastAPI) -> None:
    document = openapi.document(app)
    asked = document["paths"]["/things"]["post"]
    named = {status: answer["content"] for status, answer in asked["responses"].items() if status < "3"}
    assert named == {
        "200": {"application/json": {"schema": {"$ref": "#/components/schemas/Done"}}},
        "202": {"application/json": {"schema": {"$ref": "#/components/schemas/Waits"}}},
    }
    assert asked["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Asked"}
    schemas = document["components"]["schemas"]
    assert schemas["Asked"]["properties"]["name"]["description"] == "Name of the thing."
    assert schemas["Asked"]["additionalProperties"] is False
    assert "request_id" in schemas["Problem"]["properties"]


def test_further_fields_of_problems_have_a_type() -> None:
    """Of those that routes raise, and of the facts of refused lease commands. Another one would fail the request."""
    given = set()
    for path in (ROOT / "services", ROOT / "libs/common"):
        for file in path.rglob("*.py"):
            for call in ast.walk(ast.parse(file.read_text())):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                    if call.func.id in ("Problem", "request_conflict"):
                        given |= {keyword.arg for keyword in call.keywords if keyword.arg}
                    elif call.func.id == "Refusal":
                        facts = [part for part in call.args[2:] if isinstance(part, ast.Dict)]
                        given |= {
                            str(key.value) for part in facts for key in part.keys if isinstance(key, ast.Constant)
                        }
    assert {"errors", "units_max", "fields"} <= given
    assert given <= set(Problem.__struct_fields__)


def test_a_request_whose_type_ignores_fields_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="ignores unknown fields"):

        @Router().post("/told")
        async def tell(body: Body[Told]) -> None:
            pass


def test_a_route_with_two_bodies_is_a_mistake() -> None:
    with pytest.raises(TypeError, match="the bodies first and second: a request has one"):

        @Router().post("/told")
        async def tell(first: Report[Told], second: Report[Told]) -> None:
            pass
