"""Each service as a role of its own, which owns its schema and reads no other: without a superuser and SET ROLE."""

from pathlib import Path
from typing import Final

import asyncpg
import pytest

from slipway_common.database import migrate, postgres
from slipway_common.database.postgres import role_of, schema_of, session_settings, user_of
from slipway_local.servers.postgres import EmbeddedPostgres

SERVICES: Final = ("provisioner", "weight-calculator", "lease-broker")
ROLES: Final = Path(__file__).parents[2] / "infra/postgres/roles.sql"


def url_as(url: str, service: str) -> str:
    return url.replace("//postgres", f"//{role_of(service)}", 1)


@pytest.fixture
async def url(postgres: EmbeddedPostgres) -> str:
    """A database whose roles an administrator has made, twice."""
    url = await postgres.create_database("roles")
    administrator = await asyncpg.connect(url)
    try:
        for _ in range(2):
            await administrator.execute(ROLES.read_text())
    finally:
        await administrator.close()
    return url


async def test_each_owns_its_schema_alone(url: str) -> None:
    for service in SERVICES:
        await migrate.upgrade(url_as(url, service), service)
        await migrate.upgrade(url_as(url, service), service)
    for service in SERVICES:
        database = await postgres.connect(url_as(url, service), service)
        try:
            assert await postgres.schema_revision(database) == migrate.head(service)
            who = await database.fetchrow("SELECT session_user::text, current_user::text, current_schema()::text")
            assert tuple(who) == (role_of(service), role_of(service), schema_of(service))
            owned = await database.fetch(
                "SELECT DISTINCT tableowner::text FROM pg_tables WHERE schemaname = $1", who[2]
            )
            assert [row["tableowner"] for row in owned] == [role_of(service)]
            rights = "SELECT rolsuper OR rolcreaterole OR rolcreatedb OR rolbypassrls FROM pg_roles WHERE rolname = $1"
            assert not await database.fetchval(rights, role_of(service))
            for other in SERVICES:
                if other != service:
                    with pytest.raises(asyncpg.InsufficientPrivilegeError):
                        await database.fetchval(f"SELECT count(*) FROM {schema_of(other)}.outbox")
                    with pytest.raises(asyncpg.InsufficientPrivilegeError):
                        await database.execute(f"SET ROLE {role_of(other)}")
        finally:
            await database.close()


@pytest.mark.parametrize(
    ("url", "user"),
    [
        ("postgresql://slipway_provisioner:x@db:5432/slipway?sslmode=verify-full", "slipway_provisioner"),
        ("postgresql:///slipway?host=/run&user=slipway_provisioner", "slipway_provisioner"),
        ("postgresql://db/slipway", ""),
        ("postgresql://vault%2Da@db/slipway", "vault-a"),
    ],
)
def test_role_is_taken_by_other_users_alone(url: str, user: str) -> None:
    assert user_of(url) == user
    assert ("role" in session_settings(url, "provisioner")) == (user != "slipway_provisioner")
