"""Changes to a lease pool at run time by operators and controllers, beside its declared terms (pools.py). Written under
the pool's lock; they apply from the next decision on."""

from datetime import datetime
from typing import Final

from sqlalchemy import bindparam, update

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_lease_broker.store.tables import lease_pool

THE_POOL: Final = update(lease_pool).where(lease_pool.c.id == bindparam("pool")).values(dirty=True)
PIN: Final = Statement(THE_POOL.values(pinned_reason=bindparam("reason")))
DRAIN: Final = Statement(THE_POOL.values(drained_reason=bindparam("reason")))
REPORT_UNITS: Final = Statement(THE_POOL.values(derived_units=bindparam("units"), derived_until=bindparam("until")))


async def pin(tx: Connection, lease_pool_id: str, reason: str | None) -> None:
    """Pin the limit to the declared one, so that evidence does not change it; a reason of None unpins it."""
    await tx.execute(PIN.text, *PIN.arguments(pool=lease_pool_id, reason=reason))


async def drain(tx: Connection, lease_pool_id: str, reason: str | None) -> None:
    """Drain the pool, which stops granting; a reason of None undrains it."""
    await tx.execute(DRAIN.text, *DRAIN.arguments(pool=lease_pool_id, reason=reason))


async def report_units(tx: Connection, lease_pool_id: str, units: int, until: datetime) -> None:
    """Record the units that a derived limit follows until then; afterwards the limit keeps its last value."""
    await tx.execute(REPORT_UNITS.text, *REPORT_UNITS.arguments(pool=lease_pool_id, units=units, until=until))
