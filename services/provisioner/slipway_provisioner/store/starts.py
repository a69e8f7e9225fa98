"""Starts of launch calls: what they lock, what they read under these locks, and what they write.

Several leases take as many statements as one. Locks come in the order of all transactions, and everything is read in a
statement after the last of them, since a statement's snapshot is older than the locks that it takes.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import arrays, columns, names
from slipway_common.messaging import outbox
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.launching import BatchState
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.store import accounts, configs, leases, limits, workers
from slipway_provisioner.store.batches import CALL, Batch
from slipway_provisioner.store.leases import Lease
from slipway_provisioner.store.tables import worker

_LIMITS: Final = limits.OF_BOTH.format(pool="c.pool_id", account="c.account_id")
LOCK: Final = f"""
SELECT {names(leases.FIELDS, "(s.leased).")}, {names(workers.FIELDS, "(s.intent).")}, s.limited
FROM lock_starts($1) AS s"""
# The launch config of each lease is looked up: a kept plan of a join could read all of them.
READ: Final = f"""
SELECT l.id AS lease_id, slipway_clock() AS now, (SELECT id FROM incarnation) AS incarnation,
    EXISTS (SELECT FROM launch_limit WHERE {_LIMITS}) AS limited, {names(configs.STARTED, "c.")},
    (SELECT row_to_json(a) FROM (
        SELECT {names(accounts.COLUMNS)}, (SELECT id FROM deployment) AS deployment
        FROM account WHERE id = c.account_id) AS a) AS account,
    (SELECT CASE count(*) WHEN 1 THEN min(d.source) ELSE '' END FROM demand d
        WHERE d.pool_id = c.pool_id AND d.ended_at IS NULL) AS source
FROM lease l CROSS JOIN LATERAL (SELECT * FROM launch_config WHERE id = l.launch_config_id LIMIT 1) AS c
JOIN launch_config_name n ON n.name = c.name JOIN worker_pool p ON p.id = c.pool_id
WHERE l.id = ANY($1) AND {configs.MAY_START}"""
CALLING: Final = ("id", "state", "batch_id", "reason")
# By their ids as well: a kept plan of the join alone could read all workers.
WRITE: Final = f"""
WITH called AS (
    INSERT INTO launch_batch ({names(CALL)}, state, started_at, call_deadline, called_at, called_seconds, charged)
    SELECT {names(CALL)}, '{BatchState.CALLING}', slipway_clock(),
        slipway_clock() + timeout_seconds * interval '1 s', slipway_clock(), timeout_seconds, units
    FROM unnest({arrays(CALL)}) AS b ({names(CALL)})),
calling AS (
    UPDATE worker w SET state = s.state, batch_id = s.batch_id, reason = s.reason
    FROM unnest({arrays(worker.c[CALLING], len(CALL) + 1)}) AS s ({", ".join(CALLING)})
    WHERE w.id = ANY(${len(CALL) + 1}) AND w.id = s.id),
{outbox.insertion(len(CALL) + len(CALLING) + 1)}"""


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """A lease with the intents that may start under it, locked, and what is known after the locks. `config` is the row
    of the revision, `source` the only source of demand of its pool, or empty."""

    lease: Lease
    waiting: Sequence[Worker]
    config: Mapping[str, Any]
    account: Account
    source: str
    now: datetime


class Locked(msgspec.Struct, frozen=True):
    """A locked lease with its waiting intents, whose launch config is locked against commands that forbid its start.
    `limited`: its safety limits are locked."""

    lease: Lease
    waiting: list[Worker]
    limited: bool


async def lock(tx: Connection, lease_ids: Sequence[str]) -> dict[str, Locked]:
    """Lock what starts depend on, except leases and intents that others have locked; returns what is locked, by
    lease. Of several leases, those that would have to wait or are under a safety limit are left out."""
    locked: dict[str, Locked] = {}
    for row in await tx.fetch(LOCK, lease_ids):
        *values, limited = row.values()
        lease = _lease(values)
        locked.setdefault(lease.id, Locked(lease, [], limited)).waiting.append(_worker(values))
    return locked


async def read(tx: Connection, locked: Mapping[str, Locked], *, unlimited: bool) -> list[Start]:
    """Read what starts under locked leases need. Leases that may not start are left out, and if `unlimited` those that
    have come under a safety limit."""
    if not locked:
        return []
    return [
        Start(
            lease=locked[row["lease_id"]].lease,
            waiting=locked[row["lease_id"]].waiting,
            config=row,
            account=msgspec.convert(row["account"], Account),
            source=row["source"],
            now=row["now"],
        )
        for row in await tx.fetch(READ, list(locked))
        if not (unlimited and row["limited"])
    ]


def _lease(values: Sequence[Any]) -> Lease:
    return Lease(**dict(zip(Lease.__struct_fields__, values, strict=False)))


def _worker(values: Sequence[Any]) -> Worker:
    return workers.from_row(dict(zip(Worker.__struct_fields__, values[len(Lease.__struct_fields__) :], strict=True)))


async def write(
    tx: Connection, calls: Sequence[Batch], calling: Sequence[Worker], events: Sequence[outbox.Traced]
) -> None:
    """Store batches whose calls may be made after the commit, their intents, and the events of their starts."""
    await tx.execute(
        WRITE,
        *columns(calls, [field.name for field in CALL]).values(),
        *columns(calling, CALLING).values(),
        *await outbox.columns(tx, events),
    )
