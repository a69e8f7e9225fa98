"""Tokens as rows: those that were revoked without their file, and the days on which a service was asked with one."""

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Final, NamedTuple

from sqlalchemy import MetaData, func, select
from sqlalchemy.dialects.postgresql import insert

from slipway_common.database import tables
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, given

REVOKED: Final = tables.revoked_token(MetaData())
USE: Final = tables.token_use(MetaData())
_USES: Final = given(USE.c.name, USE.c.day, USE.c.last_at)
_NEW: Final = insert(USE).from_select(["name", "day", "last_at"], select(*_USES.c).order_by(_USES.c.name, _USES.c.day))
RECORD_USES: Final = Statement(
    _NEW.on_conflict_do_update(
        index_elements=[USE.c.name, USE.c.day], set_={"last_at": func.greatest(USE.c.last_at, _NEW.excluded.last_at)}
    )
)
"""In the order of the key, so that two replicas do not wait for each other."""
REVOKE: Final = "INSERT INTO revoked_token (sha256, name, by, reason) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING"
LAST_USES: Final = "SELECT name, max(last_at) AS last_at FROM token_use GROUP BY name"


class Use(NamedTuple):
    """The last use of a token on a day (UTC)."""

    name: str
    day: date
    last_at: datetime


async def revoked(db: Connection) -> frozenset[str]:
    """Hashes of revoked tokens."""
    return frozenset(row["sha256"] for row in await db.fetch("SELECT sha256 FROM revoked_token"))


async def revoke(tx: Connection, sha256: str, name: str, *, by: str, reason: str) -> bool:
    """Revoke the token with this hash; False if it was revoked before."""
    return str(await tx.execute(REVOKE, sha256, name, by, reason)) == "INSERT 0 1"


async def record_uses(db: Connection, uses: Mapping[str, datetime]) -> None:
    """Record the times at which tokens were used last, a row per token and day."""
    rows = [Use(name, at.astimezone(UTC).date(), at) for name, at in uses.items()]
    if rows:
        await db.execute(RECORD_USES.text, *RECORD_USES.rows(rows))


async def last_uses(db: Connection) -> dict[str, datetime]:
    """Last use of each token that was used in the time that is kept."""
    return {row["name"]: row["last_at"] for row in await db.fetch(LAST_USES)}
