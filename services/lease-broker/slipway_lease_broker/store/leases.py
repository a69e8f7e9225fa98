"""Leases. Written only under the lock of their pool."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Integer,
    and_,
    any_,
    bindparam,
    case,
    func,
    literal_column,
    or_,
    select,
    text,
    update,
)

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Append, Statement, array, given, one_of
from slipway_lease_broker.domain.ledger import Lease, UnleasedBy
from slipway_lease_broker.domain.reception import Receiving
from slipway_lease_broker.store.rows import structs
from slipway_lease_broker.store.tables import COUNTED, lease

FIELDS: Final = lease.c[Lease.__struct_fields__]
ADD: Final = Append(FIELDS.values())
# Set by the grant.
FIXED: Final = lease.c[
    "id",
    "lease_pool_id",
    "request_id",
    "granted_units",
    "granted_at",
    "hold_until",
    "traceparent",
    "tenant",
    "operation",
    "weight",
    "owner",
    "waited_seconds",
    "mode",
    "advised_wait_seconds",
    "gang_id",
    "unleased_by",
    "uncounted_units",
]
CHANGED: Final = given(lease.c.id, *(field for field in FIELDS if field.name not in FIXED))
LIMIT: Final = bindparam("limit", type_=Integer)

# Served by the index leases_due, so that the cost does not grow with the number of leases held.
# A lease whose commands are not received now is left out, unless no command could move its deadline.
DUE: Final = Statement(
    select(*FIELDS)
    .where(
        lease.c.lease_pool_id == bindparam("pool"),
        COUNTED,
        lease.c.deadline <= bindparam("now"),
        or_(
            case((lease.c.over_kafka, bindparam("kafka", type_=Boolean)), else_=bindparam("http", type_=Boolean)),
            lease.c.deadline == func.coalesce(lease.c.counted_until, lease.c.hold_until),
        ),
    )
    .order_by(lease.c.deadline, lease.c.fencing_token)
    .limit(LIMIT)
)
NAMED: Final = Statement(select(*FIELDS).where(lease.c.id == any_(array("ids", lease.c.id))))
SAVE: Final = Statement(
    update(lease)
    .where(*one_of(CHANGED, lease.c.id))
    .values({field.name: field for field in CHANGED.c if field.name not in FIXED})
)


COUNTED_UNITS: Final = func.greatest(lease.c.units - lease.c.uncounted_units, 0)
# What was started without a lease is held by nobody: its reporter cannot prove it.
HELD_BY: Final = Statement(
    select(
        lease.c.lease_pool_id,
        case((lease.c.unleased_by.is_(None), lease.c.owner), else_="").label("holder"),
        func.sum(COUNTED_UNITS).label("units"),
    )
    .where(lease.c.lease_pool_id == any_(array("pools", lease.c.lease_pool_id)), COUNTED)
    .group_by(lease.c.lease_pool_id, text("holder"))
)
NOTHING: Final[ColumnElement[int]] = literal_column("0")
CLAIMED: Final = and_(lease.c.owner == bindparam("owner"), lease.c.unleased_by != UnleasedBy.MAX_WAIT)
WAITED: Final = lease.c.unleased_by == UnleasedBy.MAX_WAIT
CHARGED: Final = Statement(
    select(
        func.coalesce(func.sum(COUNTED_UNITS).filter(CLAIMED), NOTHING).label("units"),
        func.coalesce(func.sum(COUNTED_UNITS * lease.c.weight).filter(WAITED), NOTHING).label("waited_cost"),
    ).where(lease.c.lease_pool_id == bindparam("pool"), COUNTED, lease.c.unleased_by.is_not(None))
)


async def held_by(tx: Connection, lease_pool_ids: Collection[str]) -> dict[str, dict[str, int]]:
    """Units that count, by lease pool and owner of leases; those started without a lease are under ""."""
    found: dict[str, dict[str, int]] = {}
    for row in await tx.fetch(HELD_BY.text, list(lease_pool_ids)):
        found.setdefault(row["lease_pool_id"], {})[row["holder"]] = row["units"]
    return found


async def charged(tx: Connection, lease_pool_id: str, owner: str) -> tuple[int, int]:
    """Of unleased starts that count: the units of an owner, and the cost of those, of all owners, whose maximum wait
    was over."""
    row = await tx.fetchrow(CHARGED.text, *CHARGED.arguments(pool=lease_pool_id, owner=owner))
    return row["units"], row["waited_cost"]


async def due(tx: Connection, lease_pool_id: str, now: datetime, receiving: Receiving, *, limit: int) -> list[Lease]:
    """Counted leases whose deadline has passed and may take effect, the earliest first."""
    arguments = DUE.arguments(
        pool=lease_pool_id, now=now, kafka=receiving.kafka is not None, http=receiving.http is not None, limit=limit
    )
    return structs(await tx.fetch(DUE.text, *arguments), Lease)


async def named(tx: Connection, ids: Collection[str]) -> list[Lease]:
    return structs(await tx.fetch(NAMED.text, list(ids)), Lease) if ids else []


async def add(tx: Connection, leases: Sequence[Lease]) -> None:
    await ADD(tx, leases)


async def save(tx: Connection, leases: Sequence[Lease]) -> None:
    if leases:
        await tx.execute(SAVE.text, *SAVE.rows(leases))
