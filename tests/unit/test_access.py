"""Scopes of tokens, and rejections as problem documents."""

from pathlib import Path

import httpx2
import msgspec
import pytest
from fastapi import Depends, FastAPI

from slipway_common.base.ids import hash_secret
from slipway_common.web import problem
from slipway_common.web.access import Needs, Tokens, allows

#       scopes of a token                   asked for               allowed
SCOPES = [
    (["admin"], "declaration:write", True),
    (["declaration:write"], "declaration:write", True),
    (["declaration:write"], "launching:stop", False),
    (["demand:write:linux"], "demand:write:linux", True),
    (["demand:write:linux"], "demand:write:linux-2", False),  # a scope is not a prefix of another
    (["demand:write:*"], "demand:write:linux", True),
    (["demand:*"], "declaration:write", False),
    (["read"], "read:settings", False),
    (["read:settings"], "read", True),
    (["declaration:write"], "read", True),
    (["declaration:*"], "read:settings", True),
    (["read"], "declaration:write", False),
    (["read:*"], "declaration:write", False),
    (["administrator"], "declaration:write", False),
    ([], "declaration:write", False),
]


@pytest.mark.parametrize(("scopes", "wanted", "allowed"), SCOPES)
def test_scopes(scopes: list[str], wanted: str, allowed: bool) -> None:
    """A scope allows its exact name, a prefix with a trailing star, or all as admin."""
    assert allows(scopes, wanted) is allowed


@pytest.mark.parametrize(
    ("header", "status", "slug"),
    [
        ({}, 401, "no-token"),
        ({"Authorization": "Basic x"}, 401, "no-token"),
        ({"Authorization": "Bearer of-another-deployment"}, 401, "unknown-token"),
        ({"Authorization": "Bearer weak"}, 403, "scope-missing"),
        ({"Authorization": "Bearer strong"}, 200, ""),
    ],
)
async def test_refusals_are_problems(tmp_path: Path, header: dict[str, str], status: int, slug: str) -> None:
    """A rejection has a stable type and happens before any effect."""
    done = []
    app = FastAPI()
    tokens = tmp_path / "tokens.yaml"
    entries = [("weak", ["demand:write:*"]), ("strong", ["pools:write:p"])]
    tokens.write_bytes(
        msgspec.json.encode([{"name": n, "sha256": hash_secret(n), "scopes": scopes} for n, scopes in entries])
    )
    app.state.tokens = Tokens(tokens)
    problem.install(app)

    @app.put("/pools/{pool_id}", dependencies=[Depends(Needs("pools:write:{pool_id}"))])
    async def put(pool_id: str) -> None:
        done.append(pool_id)

    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://service") as client:
        answer = await client.put("/pools/p", headers=header)
    assert answer.status_code == status
    assert done == (["p"] if status == 200 else [])
    if slug:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == f"urn:slipway:problem:{slug}"


def test_the_file_is_read_again_and_a_bad_one_keeps_the_last_good(tmp_path: Path) -> None:
    """A new token is valid with the next request; a half-written file revokes none."""
    path = tmp_path / "tokens.yaml"
    tokens = Tokens(path)
    assert tokens.find("a") is None
    path.write_text(f"- {{name: a, sha256: {hash_secret('a')}, scopes: [admin]}}")
    assert tokens.find("a") is not None
    for bad in ("- {name: a", "- name: a", "- {name: a, sha256: x, scopes: [], more: 1}", "\x00", "7"):
        path.write_text(bad)
        assert tokens.find("a") is not None, bad
    path.unlink()
    assert tokens.find("a") is not None
    path.write_text(f"- {{name: b, sha256: {hash_secret('b')}, scopes: [admin]}}")
    assert (tokens.find("a"), tokens.find("b") is not None) == (None, True)
