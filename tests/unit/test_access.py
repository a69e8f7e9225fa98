"""Scopes of tokens, and rejections as problem documents."""

from pathlib import Path

import httpx2
import msgspec
import pytest
from fastapi import Depends, FastAPI

from slipway_common.base.ids import hash_secret
from slipway_common.base.settings import from_environment
from slipway_common.web import problem
from slipway_common.web.access import Needs, Tokens, allows
from slipway_lease_broker.settings import Settings

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


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("n" * 201, "has 201 characters; at most 200 are allowed"),
        ("\N{CRAB}" * 200, "has 800 bytes in UTF-8; at most 600 are allowed"),
        ("a\0b", "has a NUL character"),
        ("", "is empty"),
    ],
    ids=["characters", "bytes", "NUL", "empty"],
)
def test_a_name_that_rows_cannot_have(
    name: str, wrong: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service does not start with it, and says which token it is; of its secret and its name it says nothing."""
    path = tmp_path / "tokens.yaml"
    entries = [{"name": given, "sha256": hash_secret(given), "scopes": ["read"]} for given in ("good", name)]
    path.write_bytes(msgspec.json.encode(entries))
    monkeypatch.setenv("SLIPWAY_TOKENS_FILE", str(path))
    monkeypatch.setenv("SLIPWAY_DATABASE_URL", "x")
    monkeypatch.setenv("SLIPWAY_KAFKA", "x")
    with pytest.raises(SystemExit) as exit_:
        from_environment(Settings)
    said = capsys.readouterr().err
    assert exit_.value.code == 2
    assert said.startswith("SLIPWAY_TOKENS_FILE: ")
    assert said.endswith(f"{path}: the name of token 2 {wrong}; choose another one\n")
    assert hash_secret(name) not in said
    assert len(said) < 300


def test_a_reloaded_name_that_rows_cannot_have_keeps_the_last_good(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(f"- {{name: a, sha256: {hash_secret('a')}, scopes: [admin]}}")
    tokens = Tokens(path)
    assert tokens.find("a") is not None
    path.write_text(f"- {{name: {chr(0x1F980) * 200}, sha256: {hash_secret('b')}, scopes: [admin]}}")
    assert (tokens.find("a") is not None, tokens.find("b")) == (True, None)
