"""Ids with slashes in paths: percent-encoded they reach the route whole, and only once decoded."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Final

import httpx2
import pytest
from fastapi import APIRouter, Depends, FastAPI

from slipway_common.base.ids import hash_secret
from slipway_common.web import problem
from slipway_common.web.access import Needs
from slipway_common.web.limits import CallerLimits
from slipway_common.web.paths import PathAsSent
from slipway_common.web.tokens import Tokens

SECRET: Final = "s3cret"
WRITER: Final = '[{name: writer, sha256: %s, scopes: ["demand:write:gecko-t/*"]}]'


def _app(tokens: Tokens) -> FastAPI:
    router = APIRouter(prefix="/pools/{pool_id:id}")

    @router.get("")
    async def get_pool(pool_id: str) -> str:
        return pool_id

    @router.get("/tasks/{task_id:id}")
    async def get_task(pool_id: str, task_id: str) -> list[str]:
        return [pool_id, task_id]

    @router.put("/demand")
    async def put_demand(pool_id: str, _: Annotated[str, Depends(Needs("demand:write:{pool_id}"))]) -> str:
        return pool_id

    app = FastAPI()
    app.state.tokens, app.state.limits = tokens, CallerLimits(1.0)
    problem.install(app)
    app.add_middleware(PathAsSent)
    app.include_router(router)
    return app


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    file = tmp_path / "tokens.yaml"
    file.write_text(WRITER % hash_secret(SECRET))
    transport = httpx2.ASGITransport(app=_app(Tokens(file)))
    headers = {"Authorization": f"Bearer {SECRET}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://service", headers=headers) as client:
        yield client


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        ("linux", "linux"),
        ("gecko-t%2Ft-linux-large", "gecko-t/t-linux-large"),
        ("gecko-t%2ft-linux-large", "gecko-t/t-linux-large"),
        ("linux%403f2c9a", "linux@3f2c9a"),
        ("linux@3f2c9a", "linux@3f2c9a"),
        ("a%252Fb", "a%2Fb"),
        ("a%25b", "a%b"),
        ("%zz", "%zz"),
        ("%", "%"),
        ("a%00b", "a\0b"),
        ("%ff", "\ufffd"),
    ],
)
async def test_an_id_is_decoded_once(client: httpx2.AsyncClient, sent: str, found: str) -> None:
    answer = await client.get(httpx2.URL(scheme="http", host="service", raw_path=f"/pools/{sent}".encode()))
    assert (answer.status_code, answer.json()) == (200, found)


async def test_each_id_of_a_path_is_decoded(client: httpx2.AsyncClient) -> None:
    assert (await client.get("/pools/a%2Ftasks%2Fb/tasks/c%2Fd")).json() == ["a/tasks/b", "c/d"]


@pytest.mark.parametrize("sent", ["a/b", "a/", "a//", "a%2F/b", "", "%2F/tasks", "a/demand/"])
@pytest.mark.parametrize("token", ["known", "unknown"])
async def test_slashes_as_such_divide_the_path(client: httpx2.AsyncClient, sent: str, token: str) -> None:
    """One at the end is redirected to no route, so that a caller without a token learns of none."""
    headers = {"Authorization": "Bearer stranger"} if token == "unknown" else {}
    answer = await client.get(f"/pools/{sent}", headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:slipway:problem:not-found")
    assert answer.json()["detail"].startswith("no such route; a path has no slash at its end,")


async def test_a_scope_names_the_decoded_id(client: httpx2.AsyncClient) -> None:
    assert (await client.put("/pools/gecko-t%2Flinux/demand")).json() == "gecko-t/linux"
    refused = await client.put("/pools/gecko-t%252Flinux/demand")
    assert refused.status_code == 403
    assert refused.json()["needed"] == "demand:write:gecko-t%2Flinux"


def test_the_api_describes_paths_without_the_type() -> None:
    assert set(_app(Tokens(None)).openapi()["paths"]) == {
        "/pools/{pool_id}",
        "/pools/{pool_id}/tasks/{task_id}",
        "/pools/{pool_id}/demand",
    }
