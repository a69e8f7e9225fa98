"""Balance of fleet and demand of a pool, written by its plans, and pools that are starved."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from slipway_api.events.lifecycle import REGISTERED, SERVING
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_provisioner.domain.deadlines import DefaultDeadlines
from slipway_provisioner.domain.starvation import Shortage
from slipway_provisioner.domain.surplus import Surplus
from slipway_provisioner.store.clock import NOW
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.deadlines import seconds
from slipway_provisioner.store.tables import pool_balance

B: Final = pool_balance.c
# Pools that may be starved by now, and those of which an alert says so; the newest decision has the reasons.
SHORTAGES: Final = f"""
SELECT b.pool_id, b.starved, coalesce(uptime_since(b.missing_since), 0) AS missing_seconds, w.starting,
    coalesce(d.details, '{{}}') AS details, coalesce((
        SELECT max({seconds("registration_seconds", "$2")})
        FROM launch_config c JOIN launch_config_name n ON n.name = c.name
        WHERE c.pool_id = b.pool_id AND c.state = 'active'), 0) AS registration_seconds
FROM pool_balance b
CROSS JOIN LATERAL (
    SELECT count(*)::int AS starting FROM worker
    WHERE pool_id = b.pool_id AND state IN ({states(SERVING - REGISTERED)})) AS w
LEFT JOIN LATERAL (
    SELECT details FROM decision WHERE pool_id = b.pool_id ORDER BY at DESC, id DESC LIMIT 1) AS d ON true
WHERE b.starved OR (b.missing_since >= '-infinity' AND b.missing_since < {NOW} - $1 * interval '1 s')
ORDER BY b.pool_id"""
SET_STARVED: Final = Statement(
    sa.update(pool_balance)
    .where(B.pool_id == sa.bindparam("pool_id"), B.starved != sa.bindparam("starved"))
    .values(starved=sa.bindparam("starved"))
    .returning(sa.true())
)


def surplus_of(stored: Any) -> Surplus:
    """Surplus of a stored balance; none if there is no row."""
    return msgspec.convert(stored, Surplus) if stored else Surplus()


async def shortages(db: Connection, defaults: DefaultDeadlines, *, after_seconds: float) -> Sequence[Shortage]:
    """Pools in which workers have been missing for `after_seconds`, and those that count as starved."""
    return [Shortage(**row) for row in await db.fetch(SHORTAGES, after_seconds, defaults)]


async def record_starved(tx: Connection, pool_id: str, *, starved: bool) -> bool:
    """Store whether an alert says that a pool is starved; True if that has changed."""
    arguments = SET_STARVED.arguments(pool_id=pool_id, starved=starved)
    return await tx.fetchval(SET_STARVED.text, *arguments) is not None
