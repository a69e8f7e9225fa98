"""Query parameters: what is refused and how, after the token and before the body."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Final

import httpx2
import msgspec
import pytest
from fastapi import Depends, FastAPI, Query
from pydantic import BaseModel

from slipway_common.base.ids import hash_secret
from slipway_common.web import problem
from slipway_common.web.access import Needs
from slipway_common.web.answers import Answer, NoContent
from slipway_common.web.bodies import Body, Report
from slipway_common.web.conditional import Conditional
from slipway_common.web.limits import CallerLimits
from slipway_common.web.router import Router
from slipway_common.web.tokens import Tokens

SECRET: Final = "s3cret"
WRITER: Final = "[{name: writer, sha256: %s, scopes: [admin]}]"
KNOWN: Final = "known: name, dry_run, owner"
LONG: Final = "x" * 60_000


class Change(BaseModel):
    """Query parameters of a change."""

    dry_run: bool = False
    owner: str = ""


class Told(msgspec.Struct, forbid_unknown_fields=True):
    state: str


class Reported(msgspec.Struct):
    state: str


def _app(tokens: Tokens, removed: list[str]) -> FastAPI:
    router = Router(prefix="/things")
    writer = Annotated[str, Depends(Needs("things:write"))]
    how = Annotated[Change, Depends()]

    @router.delete("")
    async def remove(
        by: writer, change: how, names: Annotated[list[str] | None, Query(alias="name")] = None
    ) -> NoContent:
        removed.extend([] if change.dry_run else names or ["all"])
        return NoContent()

    @router.put("")
    async def put(by: writer, change: Annotated[Change, Query()]) -> NoContent:
        return NoContent()

    @router.get("/{name}")
    async def get_thing(name: str, by: writer) -> Answer[str]:
        return Answer(name)

    @router.post("/told")
    async def tell(by: writer, body: Body[Told]) -> NoContent:
        removed.append(body.state)
        return NoContent()

    @router.post("/reported")
    async def report(by: writer, body: Report[Reported]) -> NoContent:
        removed.append(body.state)
        return NoContent()

    app = FastAPI()
    app.state.tokens, app.state.limits = tokens, CallerLimits(10.0)
    problem.install(app)
    app.add_middleware(Conditional)
    app.include_router(router)
    return app


@pytest.fixture
def removed() -> list[str]:
    return []


@pytest.fixture
async def client(tmp_path: Path, removed: list[str]) -> AsyncIterator[httpx2.AsyncClient]:
    file = tmp_path / "tokens.yaml"
    file.write_text(WRITER % hash_secret(SECRET))
    transport = httpx2.ASGITransport(app=_app(Tokens(file), removed))
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://service", headers=headers) as client:
        yield client


#   method, path and query → the part that is wrong, and why
REFUSED: Final = [
    ("DELETE /things?dryrun=true", "query/dryrun", f"unknown parameter; did you mean dry_run? {KNOWN}"),
    ("DELETE /things?dry_run=true&dryrun=true", "query/dryrun", f"unknown parameter; did you mean dry_run? {KNOWN}"),
    ("DELETE /things?zz", "query/zz", f"unknown parameter; leave it out; {KNOWN}"),
    ("DELETE /things?DRY_RUN=true", "query/DRY_RUN", f"unknown parameter; leave it out; {KNOWN}"),
    ("DELETE /things?dry_run%20=true", "query/dry_run ", f"unknown parameter; did you mean dry_run? {KNOWN}"),
    ("DELETE /things?dry%255frun=true", "query/dry%5frun", f"unknown parameter; did you mean dry_run? {KNOWN}"),
    ("DELETE /things?names=a", "query/names", f"unknown parameter; did you mean name? {KNOWN}"),
    ("DELETE /things?name[]=a", "query/name[]", f"unknown parameter; did you mean name? {KNOWN}"),
    ("DELETE /things?=true", "query/", f"unknown parameter; leave it out; {KNOWN}"),
    ("DELETE /things?a%0d%0a%1b%ff%00=1", "query/a�����", f"unknown parameter; leave it out; {KNOWN}"),
    (f"DELETE /things?{LONG}=1", f"query/{LONG[:50]}…", f"unknown parameter; leave it out; {KNOWN}"),
    ("DELETE /things?dry_run=true&dry_run=false", "query/dry_run", "is given 2 times; give it once"),
    ("DELETE /things?dry_run=true&dry%5Frun=true&owner=a", "query/dry_run", "is given 2 times; give it once"),
    ("DELETE /things?" + "owner=a&" * 5_000, "query/owner", "is given 5000 times; give it once"),
    ("PUT /things?dryrun=1", "query/dryrun", "unknown parameter; did you mean dry_run? known: dry_run, owner"),
    ("PUT /things?owner=a&owner=a", "query/owner", "is given 2 times; give it once"),
    ("GET /things/a?limit=1", "query/limit", "unknown parameter; leave it out; this route has none"),
    ("POST /things/told?state=a", "query/state", "unknown parameter; leave it out; this route has none"),
    ("POST /things/reported?state=a", "query/state", "unknown parameter; leave it out; this route has none"),
]


@pytest.mark.parametrize(("call", "where", "reason"), REFUSED, ids=[call[:50] for call, _, _ in REFUSED])
async def test_the_first_wrong_parameter(
    client: httpx2.AsyncClient, removed: list[str], call: str, where: str, reason: str
) -> None:
    method, url = call.split(" ", 1)
    path, _, query = url.partition("?")
    place = httpx2.URL(scheme="http", host="service", raw_path=f"{path}?{query}".encode())
    answer = await client.request(method, place, content=b"{" if method == "POST" else b"")
    assert (answer.status_code, answer.json()["type"]) == (422, "urn:slipway:problem:invalid-request")
    assert answer.json()["errors"] == [{"where": where, "reason": reason}]
    assert answer.json()["detail"] == f"{where}: {reason}"
    assert removed == []
    stranger = await client.request(method, place, headers={"Authorization": "Bearer stranger"})
    assert stranger.status_code == 401


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["all"]),
        ("?", ["all"]),
        ("?&&", ["all"]),
        ("?dry%5Frun=true", []),
        ("?owner=", ["all"]),
        ("?name=a&name=b", ["a", "b"]),
    ],
)
async def test_parameters_of_the_route(
    client: httpx2.AsyncClient, removed: list[str], query: str, expected: list[str]
) -> None:
    answer = await client.request("DELETE", f"/things{query}")
    assert (answer.status_code, removed) == (204, expected)


async def test_head_is_refused_as_get(client: httpx2.AsyncClient) -> None:
    assert (await client.head("/things/a")).status_code == 200
    assert (await client.head("/things/a?full=true")).status_code == 422
