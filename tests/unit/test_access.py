"""Scopes of tokens, and rejections as problem documents."""

import resource
from datetime import timedelta
from pathlib import Path

import httpx2
import msgspec
import pytest
from fastapi import Depends, FastAPI

from slipway_common.base.clock import utc_now
from slipway_common.base.ids import hash_secret
from slipway_common.web import problem
from slipway_common.web.access import Needs, allows
from slipway_common.web.limits import CallerLimits
from slipway_common.web.tokens import Tokens

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
        ({"Authorization": "Bearer late"}, 401, "expired-token"),
        ({"Authorization": "Bearer strong"}, 200, ""),
    ],
)
async def test_refusals_are_problems(tmp_path: Path, header: dict[str, str], status: int, slug: str) -> None:
    """A rejection has a stable type and happens before any effect."""
    done = []
    app = FastAPI()
    tokens = tmp_path / "tokens.yaml"
    entries = [("weak", ["demand:write:*"]), ("strong", ["pools:write:p"])]
    late = {"name": "late", "sha256": hash_secret("late"), "scopes": ["admin"], "expires_at": "2020-01-01T00:00:00Z"}
    tokens.write_bytes(
        msgspec.json.encode([late, *({"name": n, "sha256": hash_secret(n), "scopes": s} for n, s in entries)])
    )
    app.state.tokens, app.state.limits = Tokens(tokens), CallerLimits(1.0)
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
    for bad in ("- {name: a", "\x00", "7", "name: a"):
        path.write_text(bad)
        assert tokens.find("a") is not None, bad
        assert len(tokens.refused) == 1, bad
    path.unlink()
    assert tokens.find("a") is not None
    path.write_text(f"- {{name: b, sha256: {hash_secret('b')}, scopes: [admin]}}")
    assert (tokens.find("a"), tokens.find("b") is not None, tokens.refused) == (None, True, ())


def test_a_file_that_cannot_be_read_for_a_while_is_read_afterwards(tmp_path: Path) -> None:
    """Although it does not change then: here the process has no free descriptor, as in a flood."""
    path = tmp_path / "tokens.yaml"
    path.write_text(f"- {{name: a, sha256: {hash_secret('a')}, scopes: [admin]}}")
    tokens, limits = Tokens(path), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        assert tokens.find("a") is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert "Too many open files" in tokens.refused[0]
    assert (tokens.find("a") is not None, tokens.refused) == (True, ())


GOOD = {"name": "good", "sha256": hash_secret("good"), "scopes": ["read"]}


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({"name": "n" * 201}, "the name has 201 characters; at most 200 are allowed; choose another one"),
        ({"name": "\N{CRAB}" * 200}, "the name has 800 bytes in UTF-8; at most 600 are allowed"),
        ({"name": ""}, "the name is empty"),
        ({"name": 7}, "name is not what an entry has"),
        ({"sha256": "x"}, "sha256 is no hash in 64 lower-case hexadecimal digits"),
        ({"sha256": hash_secret("bad").upper()}, "sha256 is no hash"),
        ({"scopes": ["write:everything"]}, "scope 1 allows nothing; scopes are read,"),
        ({"scopes": ["read", "*"]}, "scope 2 allows nothing by itself; write admin"),
        ({"scopes": ["pools:write:"]}, "scope 1 allows nothing"),
        ({"more": 1}, "it is not what an entry has"),
        ({"name": "good"}, "an earlier token has its name"),
        ({"sha256": hash_secret("good")}, "an earlier token has its hash"),
        ({"expires_at": "soon"}, "expires_at is not what an entry has"),
    ],
)
def test_a_bad_entry_is_refused_alone(entry: dict[str, object], why: str, tmp_path: Path) -> None:
    """Its position is said, and nothing of what it is: text in the wrong field may be a secret."""
    path = tmp_path / "tokens.yaml"
    bad = {"name": "bad", "sha256": hash_secret("bad"), "scopes": ["read"]} | entry
    last = {"name": "last", "sha256": hash_secret("last"), "scopes": ["read"]}
    path.write_bytes(msgspec.json.encode([GOOD, bad, last]))
    tokens = Tokens(path)
    assert [tokens.find(secret) is not None for secret in ("good", "bad", "last")] == [True, False, True]
    (said,) = tokens.refused
    assert said.startswith(f"{path}: token 2: {why}")
    assert hash_secret("bad") not in said
    path.write_bytes(msgspec.json.encode([GOOD]))
    assert (tokens.find("good") is not None, tokens.refused) == (True, ())


def test_names_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    """`no` is a country and a name, and no boolean that locks all others out."""
    path = tmp_path / "tokens.yaml"
    path.write_text(f"- {{name: no, sha256: {hash_secret('no')}, scopes: [read]}}\n")
    found = Tokens(path).find("no")
    assert found is not None
    assert found.name == "no"


@pytest.mark.parametrize(("seconds", "expired"), [(-1, True), (3600, False)])
def test_a_token_expires(seconds: float, expired: bool, tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    at = utc_now() + timedelta(seconds=seconds)
    for written in (at.isoformat(), at.replace(tzinfo=None).isoformat()):  # without a zone it is UTC
        path.write_bytes(msgspec.json.encode([GOOD | {"expires_at": written}]))
        found = Tokens(path).find("good")
        assert found is not None
        assert found.expired is expired
