"""Changes to a lease pool at run time by operators and controllers, beside its declared terms (pools.py). Written under
the pool's lock; they apply from the next decision on."""

from datetime import datetime
from typing import Final

from sqlalchemy import BigInteger, bindparam, func, select, update

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement
from slipway_lease_broker.store.tables import lease_pool

THE_POOL: Final = update(lease_pool).where(lease_pool.c.id == bindparam("pool")).values(dirty=True)
PIN: Final = Statement(THE_POOL.values(pinned_reason=bindparam("reason")))
DRAIN: Final = Statement(THE_POOL.values(drained_reason=bindparam("reason")))
REPORT_UNITS: Final = Statement(THE_POOL.values(derived_units=bindparam("units"), derived_until=bindparam("until")))
_ALL: Final = select(lease_pool.c.id).order_by(lease_pool.c.id).with_for_update()
RESTORED: Final = Statement(
    update(lease_pool)
    .where(lease_pool.c.id.in_(_ALL))
    .values(
        incomplete_until=func.slipway_clock() + func.make_interval(0, 0, 0, 0, 0, 0, lease_pool.c.ttl_seconds),
        last_token=func.greatest(lease_pool.c.last_token, bindparam("base", type_=BigInteger)),
        dirty=True,
    )
)


async def restored(tx: Connection, token_base: int) -> None:
    """Let no lease expire and grant none for one TTL. In it the holders of leases that the database may lack fail to
    renew them, and give them up. Fencing tokens continue above `token_base`."""
    await tx.execute(RESTORED.text, *RESTORED.arguments(base=token_base))


async def pin(tx: Connection, lease_pool_id: str, reason: str | None) -> None:
    """Pin the limit to the declared one, so that evidence does not change it; a reason of None unpins it."""
    await tx.execute(PIN.text, *PIN.arguments(pool=lease_pool_id, reason=reason))


async def drain(tx: Connection, lease_pool_id: str, reason: str | None) -> None:
    """Drain the pool, which stops granting; a reason of None undrains it."""
    await tx.execute(DRAIN.text, *DRAIN.arguments(pool=lease_pool_id, reason=reason))


async def report_units(tx: Connection, lease_pool_id: str, units: int, until: datetime) -> None:
    """Record the units that a derived limit follows until then; afterwards the limit keeps its last value."""
    await tx.execute(REPORT_UNITS.text, *REPORT_UNITS.arguments(pool=lease_pool_id, units=units, until=until))
