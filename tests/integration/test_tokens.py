"""Tokens that are revoked without their file, and their last use: of replicas on one database."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
import pytest

from slipway_common.base.clock import utc_now
from slipway_common.base.ids import hash_secret
from slipway_common.service import TOKENS_SECONDS, USES_SECONDS, Service, ServiceSettings
from tests.support.harness import SERVICE, Place, until

SCOPES: Final = {"ci": ["read"], "admin": ["admin"], "idle": ["read"]}
REVOCATION: Final = {"reason": "the runner was stolen"}
Replica = Callable[[], Service]


@pytest.fixture
def replica(place: Place, tmp_path: Path) -> Replica:
    """Replicas of a service with one tokens file, each a process of its own but for its loops."""
    file = tmp_path / "tokens.yaml"
    entries = [{"name": name, "sha256": hash_secret(name), "scopes": scopes} for name, scopes in SCOPES.items()]
    file.write_bytes(msgspec.json.encode(entries))

    def start() -> Service:
        service = Service(SERVICE, ServiceSettings(database_url=place.url, kafka="nowhere:1", tokens_file=file))
        service.runtime.database = place.database
        return service

    return start


@asynccontextmanager
async def client(service: Service, token: str) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Authorization": f"Bearer {token}"}
    transport = httpx2.ASGITransport(app=service.app())
    async with httpx2.AsyncClient(transport=transport, base_url="http://service", headers=headers) as http:
        yield http


async def test_a_revoked_token_is_refused_by_all_replicas(place: Place, replica: Replica) -> None:
    """At once by the one that was asked, and by the others after their next step, which is due within 5 s. Its row in
    the audit says who revoked it, and repeating it changes nothing."""
    assert TOKENS_SECONDS <= 2.5, "a step may take as long again"
    asked, other = replica(), replica()
    async with client(asked, "admin") as admin, client(asked, "ci") as here, client(other, "ci") as there:
        assert [(await each.get("/audit")).status_code for each in (here, there)] == [200, 200]
        first = await admin.post("/tokens/ci/revoke", json=REVOCATION)
        assert (first.status_code, first.json()) == (200, {"name": "ci", "was_revoked": False})
        assert (await here.get("/audit")).status_code == 401
        await other._follow_tokens(place.database)
        assert (await there.get("/audit")).status_code == 401
        assert (await admin.post("/tokens/ci/revoke", json=REVOCATION)).json()["was_revoked"]
        rows: list[dict[str, Any]] = (await admin.get("/audit", params={"kind": "token"})).json()["items"]
        assert [(row["by"], row["subject_id"], row["action"]) for row in rows] == [("admin", "ci", "revoke")]
        assert rows[0]["reason"] == REVOCATION["reason"]
        listed = {row["name"]: row for row in (await admin.get("/tokens")).json()["items"]}
        assert {name: row["revoked"] for name, row in listed.items()} == {"ci": True, "admin": False, "idle": False}
        unknown = await admin.post("/tokens/nobody/revoke", json=REVOCATION)
        assert unknown.status_code == 404


async def test_a_new_token_of_the_name_is_none_that_was_revoked(replica: Replica, tmp_path: Path) -> None:
    service = replica()
    async with client(service, "admin") as admin, client(service, "another") as renewed:
        await admin.post("/tokens/ci/revoke", json=REVOCATION)
        entries = [{"name": "ci", "sha256": hash_secret("another"), "scopes": ["read"]}]
        (tmp_path / "tokens.yaml").write_bytes(msgspec.json.encode(entries))
        assert (await renewed.get("/audit")).status_code == 200


async def test_the_last_use_of_a_token_is_a_row_a_day(place: Place, replica: Replica) -> None:
    """Of any number of requests, written together: not by them. The list has the newest of all days."""
    service = replica()
    began = utc_now()
    async with client(service, "ci") as ci, client(service, "admin") as admin:
        for _ in range(3):
            await ci.get("/audit")
        assert await place.database.fetchval("SELECT count(*) FROM token_use") == 0
        await place.database.execute(
            "INSERT INTO token_use VALUES ('ci', '2026-01-01', '2026-01-01T12:00:00Z'),"
            " ('idle', '2026-01-02', '2026-01-02T12:00:00Z')"
        )
        service._uses_at -= USES_SECONDS
        await service._follow_tokens(place.database)
        rows = await place.database.fetch("SELECT name, count(*) AS days FROM token_use GROUP BY name ORDER BY name")
        assert [tuple(row) for row in rows] == [("ci", 2), ("idle", 1)]
        listed = {row["name"]: row["last_used_at"] for row in (await admin.get("/tokens")).json()["items"]}
    assert listed["ci"] >= began.isoformat()
    assert (listed["admin"], listed["idle"][:10]) == (None, "2026-01-02")


async def test_uses_that_could_not_be_written_are_written_later(place: Place, replica: Replica) -> None:
    service = replica()
    async with client(service, "ci") as ci:
        await ci.get("/audit")
    service._uses_at -= USES_SECONDS
    await place.database.execute("ALTER TABLE token_use RENAME TO elsewhere")
    with pytest.raises(Exception, match="token_use"):
        await service._follow_tokens(place.database)
    await place.database.execute("ALTER TABLE elsewhere RENAME TO token_use")
    await service._follow_tokens(place.database)
    assert await place.database.fetchval("SELECT name FROM token_use") == "ci"


async def test_a_replica_that_starts_knows_revoked_tokens_at_once(replica: Replica) -> None:
    """Before its first request that needs the database, whenever the loop that follows them has its first turn."""
    asked, started = replica(), replica()
    async with client(asked, "admin") as admin:
        await admin.post("/tokens/ci/revoke", json=REVOCATION)
    started.runtime.database = None
    started.loops = [loop for loop in started.loops if loop.name != "tokens"]
    app = started.app()
    async with app.router.lifespan_context(app), client(started, "ci") as ci:
        await until(lambda: started.runtime.database is not None)
        assert (await ci.get("/audit")).status_code == 401
