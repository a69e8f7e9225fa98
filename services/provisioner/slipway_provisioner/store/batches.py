"""Launch batches: committed provider calls and their outcomes."""

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import msgspec
import sqlalchemy as sa

from slipway_api.http.provisioner.workers import LaunchBatch
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, arrays, columns, names, seconds
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.launching import BatchState
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.store import accounts, workers
from slipway_provisioner.store.clock import NOW
from slipway_provisioner.store.tables import launch_batch


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One provider call: 1…n intents of one config with one body and one token. `id` is also the instance tag.

    An attempt to resolve it lasts at most `timeout_seconds`. Its last call that may have taken effect was made at
    `called_at`, may do so for `called_seconds`, and is listed `visibility_seconds` later. `handle`: it was accepted.
    `price`: that of a machine per hour, if it was known; it costs `minute_seconds` at least.
    """

    id: str
    launch_config_id: str
    pool_id: str
    account_id: str
    lease_id: str
    token: str
    body: dict[str, Any]
    units: int
    timeout_seconds: float
    visibility_seconds: float
    repeatable: bool
    state: str = BatchState.CALLING
    outcome: str = ""
    repeats: int = 0
    started_at: datetime | None = None
    call_deadline: datetime | None = None
    called_at: datetime | None = None
    called_seconds: float = 0.0
    handle: str = ""
    poll_at: datetime | None = None
    price: Decimal | None = None
    minute_seconds: float = 60.0


class Overdue(msgspec.Struct, frozen=True):
    """A batch past its deadline. `listed`: by now its account lists every instance of its last call."""

    batch: Batch
    listed: bool


class OpenCall(msgspec.Struct, frozen=True):
    """A locked call whose outcome is not recorded: its account, all of its intents, and the time after the lock.
    `unanswered`: the account has left a call unanswered since the last one that it answered."""

    account: Account
    intents: list[Worker]
    now: datetime
    unanswered: bool


class KnownOutcome(msgspec.Struct, frozen=True):
    """A certain outcome of a call, and how many machines count towards limits, with those that were never seen."""

    id: str
    outcome: str
    charged: int
    unproven: int = 0


C: Final = launch_batch.c
FIELDS: Final = C[Batch.__struct_fields__]
CALL: Final = C[
    "id",
    "launch_config_id",
    "pool_id",
    "account_id",
    "lease_id",
    "token",
    "body",
    "units",
    "timeout_seconds",
    "visibility_seconds",
    "repeatable",
    "price",
    "minute_seconds",
]
_NOW: Final = sa.func.slipway_clock()
INSERT: Final = Statement(
    sa.insert(launch_batch).values(
        {field.name: sa.bindparam(field.name) for field in CALL}
        | {
            "state": BatchState.CALLING,
            "started_at": _NOW,
            "call_deadline": _NOW + seconds("timeout"),
            "called_at": _NOW,
            "called_seconds": sa.bindparam("timeout"),
            "charged": sa.bindparam("units"),
        }
    )
)
_ID: Final = C.id == sa.bindparam("batch_id")
_CALLING: Final = C.state == BatchState.CALLING
_ONE: Final = sa.select(*FIELDS).where(C.id == sa.bindparam("id"))
GET: Final = Statement(_ONE)
LOCK: Final = Statement(_ONE.with_for_update())
# User data, up to 16 KB, are needed for repeats only. By their ids as well: a kept plan of the join alone could read
# all batches.
_KNOWN: Final = ("id", "outcome", "charged", "unproven")
KNOWN: Final = f"""
UPDATE launch_batch b SET state = '{BatchState.KNOWN}', outcome = k.outcome, known_at = slipway_clock(),
    charged = k.charged, unproven = k.unproven, body = b.body - 'user_data'
FROM unnest({arrays(C[_KNOWN])}) AS k ({", ".join(_KNOWN)}) WHERE b.id = ANY($1) AND b.id = k.id"""
LOCK_CALLS: Final = f"""
SELECT c.call_id, slipway_clock() AS now, (SELECT row_to_json(a) FROM (
        SELECT {names(accounts.COLUMNS, "(c.called).")}, (SELECT id FROM deployment) AS deployment,
            (c.called).unanswered_since IS NOT NULL AS unanswered) AS a) AS account,
    {names(workers.FIELDS, "(c.intent).")}
FROM lock_calls($1::uuid[], $2) AS c"""
REPEATED: Final = Statement(sa.update(launch_batch).where(_ID).values(called_at=_NOW, called_seconds=C.timeout_seconds))
# Another attempt may have repeated the call meanwhile: that call counts.
NOT_REPEATABLE: Final = Statement(
    sa.update(launch_batch)
    .where(_ID, _CALLING, C.repeats == sa.bindparam("attempt"))
    .values(
        repeatable=False,
        called_at=sa.func.coalesce(sa.bindparam("at", type_=C.called_at.type), C.called_at),
        called_seconds=sa.bindparam("called"),
    )
)
ACCEPTED: Final = Statement(
    sa.update(launch_batch)
    .where(_ID)
    .values(
        handle=sa.bindparam("by"),
        repeatable=False,
        called_at=_NOW,
        called_seconds=sa.bindparam("accepted"),
        call_deadline=_NOW + seconds("accepted"),
        poll_at=_NOW + seconds("poll"),
    )
)
POLLED: Final = Statement(sa.update(launch_batch).where(_ID, _CALLING).values(poll_at=_NOW + seconds("poll")))
# The replica that takes a batch past its deadline gets a new deadline for its attempt; after that any replica may take
# it. An attempt began `timeout_seconds` before its deadline. Its uptime counts, since after a jump of the clock it may
# still be in flight.
OVERDUE: Final = f"""
UPDATE launch_batch SET repeats = repeats + 1, call_deadline = slipway_clock() + timeout_seconds * interval '1 s'
WHERE id = ANY (ARRAY(
    SELECT id FROM launch_batch
    WHERE state = '{BatchState.CALLING}' AND NOT {accounts.unreachable("launch_batch")}
        AND call_deadline < {NOW} - $1 * interval '1 s'
        AND uptime_since(call_deadline - timeout_seconds * interval '1 s') > $1 + timeout_seconds
    ORDER BY call_deadline LIMIT 20 FOR UPDATE SKIP LOCKED))
RETURNING {names(FIELDS)},
    called_at < slipway_clock() - (called_seconds + visibility_seconds) * interval '1 s'
        AND uptime_since(called_at) > called_seconds + visibility_seconds AS listed"""
# While a replica polls, no other does. A poll in the far future was set before the clock was set back.
POLLABLE: Final = f"""
UPDATE launch_batch SET poll_at = slipway_clock() + timeout_seconds * interval '1 s' WHERE id = ANY (ARRAY(
    SELECT id FROM launch_batch
    WHERE state = '{BatchState.CALLING}' AND handle <> '' AND NOT {accounts.unreachable("launch_batch")}
        AND poll_at NOT BETWEEN {NOW}
            AND {NOW} + greatest(timeout_seconds, $1) * interval '1 s'
    ORDER BY poll_at LIMIT 20 FOR UPDATE SKIP LOCKED))
RETURNING {names(FIELDS)}"""
# Compared as text, since a tag that an account lists can be any text.
STATES: Final = Statement(
    sa.select(C.id, C.state).where(sa.cast(C.id, sa.Text) == sa.any_(sa.bindparam("ids", type_=sa.ARRAY(sa.Text))))
)


def from_row(row: Any) -> Batch:
    return Batch(**{field.name: row[field.name] for field in FIELDS} | {"id": str(row["id"])})


async def insert(tx: Connection, batch: Batch) -> None:
    call = {field.name: getattr(batch, field.name) for field in CALL}
    await tx.execute(INSERT.text, *INSERT.arguments(**call, timeout=batch.timeout_seconds))


async def lock(tx: Connection, batch_id: str) -> Batch | None:
    row = await tx.fetchrow(LOCK.text, *LOCK.arguments(id=batch_id))
    return None if row is None else from_row(row)


async def get(db: Connection, batch_id: str) -> Batch | None:
    row = await db.fetchrow(GET.text, *GET.arguments(id=batch_id))
    return None if row is None else from_row(row)


def described(batch: Batch) -> LaunchBatch:
    """Batch as shown to people, without the body, which holds the config's settings, and without the token. The price
    is exact as text."""
    shown = {name: getattr(batch, name) for name in LaunchBatch.__struct_fields__}
    return LaunchBatch(**shown | {"price": None if batch.price is None else str(batch.price)})


async def lock_calls(tx: Connection, batch_ids: Sequence[str], *, lock_seconds: float | None) -> dict[str, OpenCall]:
    """Lock batches whose outcome is not recorded, with their intents. Nothing in the transaction waits longer than
    `lock_seconds` for a lock [default: the session's time]."""
    timeout = None if lock_seconds is None else f"{lock_seconds * 1000:.0f}ms"
    calls: dict[str, OpenCall] = {}
    for row in await tx.fetch(LOCK_CALLS, batch_ids, timeout):
        call_id, now, account, *values = row.values()
        found = OpenCall(msgspec.convert(account, Account), [], now, account["unanswered"])
        call = calls.setdefault(str(call_id), found)
        if row["id"] is not None:
            call.intents.append(workers.from_row(dict(zip(Worker.__struct_fields__, values, strict=True))))
    return calls


async def known(tx: Connection, outcomes: Sequence[KnownOutcome]) -> None:
    """Record certain outcomes. The batches are locked."""
    await tx.execute(KNOWN, *columns(outcomes, _KNOWN).values())


async def repeated(tx: Connection, batch_id: str) -> None:
    """Record that the call of a batch may be made again now. The batch is locked."""
    await tx.execute(REPEATED.text, *REPEATED.arguments(batch_id=batch_id))


async def not_repeatable(db: Connection, batch: Batch) -> None:
    """Record that the call of this attempt had no effect, and that repeating it proves nothing."""
    arguments = NOT_REPEATABLE.arguments(
        batch_id=batch.id,
        attempt=batch.repeats,
        at=batch.called_at,
        called=batch.called_seconds if batch.called_at is not None else batch.timeout_seconds,
    )
    await db.execute(NOT_REPEATABLE.text, *arguments)


async def accepted(tx: Connection, batch_id: str, handle: str, *, accepted_seconds: float, poll_seconds: float) -> None:
    """Record that the provider works on the call for `accepted_seconds` at most. The batch is locked."""
    arguments = ACCEPTED.arguments(batch_id=batch_id, by=handle, accepted=accepted_seconds, poll=poll_seconds)
    await tx.execute(ACCEPTED.text, *arguments)


async def take_overdue(db: Connection, *, wait_seconds: float) -> list[Overdue]:
    """Take up to 20 batches whose deadline passed `wait_seconds` ago without a recorded outcome, for this caller alone
    until their new deadline."""
    rows = await db.fetch(OVERDUE, wait_seconds)
    return [Overdue(from_row(row), row["listed"]) for row in rows]


async def take_pollable(db: Connection, *, poll_seconds: float) -> list[Batch]:
    """Take up to 20 accepted batches that are due for a poll, for this caller alone until its timeout."""
    return [from_row(row) for row in await db.fetch(POLLABLE, poll_seconds)]


async def polled(db: Connection, batch_id: str, *, poll_seconds: float) -> None:
    """Poll a batch again after `poll_seconds`."""
    await db.execute(POLLED.text, *POLLED.arguments(batch_id=batch_id, poll=poll_seconds))


async def states(db: Connection, ids: list[str]) -> dict[str, str]:
    """Batch id → state; unknown ids are absent."""
    rows = await db.fetch(STATES.text, *STATES.arguments(ids=ids))
    return {str(row["id"]): row["state"] for row in rows}
