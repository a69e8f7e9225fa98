"""Console output of machines that never registered: one per image revision, fetched once over all replicas."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from slipway_api.events.lifecycle import REGISTERED
from slipway_api.http.provisioner import workers as wire
from slipway_common.database.places import LAST_TIME, Text
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, given, names, seconds
from slipway_provisioner.domain.consoles import ConsoleOutput
from slipway_provisioner.store import accounts
from slipway_provisioner.store.clock import NOW
from slipway_provisioner.store.columns import states
from slipway_provisioner.store.tables import console_output

C: Final = console_output.c
FIELDS: Final = C[ConsoleOutput.__struct_fields__]
_REQUESTED: Final = [field for field in FIELDS if field.name != "attempts"]
_NOW: Final = sa.func.slipway_clock()
OPEN_DAYS: Final = 7
# Rows in the order of their key, so that two transactions that request several wait for each other in turn.
REQUEST: Final = Statement(
    postgresql.insert(console_output)
    .from_select([field.name for field in _REQUESTED], sa.select(given(*_REQUESTED)))
    .on_conflict_do_nothing()
)
# A replica that takes one has it until its next attempt would be due. A due time far ahead was set before the clock was
# set back.
TAKE: Final = f"""
UPDATE console_output SET attempts = attempts + 1, due_at = slipway_clock() + $1 * interval '1 s'
WHERE image_revision = ANY (ARRAY(
    SELECT image_revision FROM console_output
    WHERE (due_at <= {NOW} OR due_at > {NOW} + $2 * interval '1 s')
        AND NOT {accounts.unreachable("console_output")}
    ORDER BY due_at LIMIT 4 FOR UPDATE SKIP LOCKED))
RETURNING {names(FIELDS)}"""
_TAKEN: Final = sa.and_(
    C.image_revision == sa.bindparam("image"), C.attempts == sa.bindparam("attempt"), C.due_at.is_not(None)
)
LATER: Final = Statement(sa.update(console_output).where(_TAKEN).values(due_at=_NOW + seconds("delay")))
SETTLE: Final = Statement(
    sa.update(console_output)
    .where(_TAKEN)
    .values(due_at=None, settled_at=_NOW, lines=sa.bindparam("text"), problem=sa.bindparam("why"))
    .returning(sa.true())
)
# Once a machine of the image has registered since, or the alert has been open for a week.
RESOLVE: Final = f"""
UPDATE console_output SET resolved_at = slipway_clock() WHERE image_revision = ANY (ARRAY(
    SELECT c.image_revision FROM console_output c
    WHERE c.settled_at IS NOT NULL AND c.resolved_at IS NULL
        AND (c.settled_at < slipway_clock() - interval '{OPEN_DAYS} days' OR EXISTS (
            SELECT FROM launch_config l JOIN worker w ON w.pool_id = l.pool_id AND w.launch_config_id = l.id
            WHERE l.image_revision = c.image_revision AND l.state <> 'archived'
                AND w.state IN ({states(REGISTERED)}) AND w.registered_at > c.settled_at))
    ORDER BY c.image_revision LIMIT 20 FOR UPDATE OF c SKIP LOCKED))
RETURNING image_revision"""
ANY_OPEN: Final = """
SELECT EXISTS (SELECT FROM console_output WHERE settled_at IS NOT NULL AND resolved_at IS NULL)"""
LISTED: Final = f"""
SELECT {names(FIELDS)}, requested_at, settled_at, resolved_at, lines, problem FROM console_output
WHERE ($1::text IS NULL OR image_revision = $1) AND (requested_at, image_revision) < ($2, $3)
ORDER BY requested_at DESC, image_revision DESC LIMIT $4"""
USER_DATA: Final = """
SELECT id, name, pool_id, region, zone, instance_type, image_revision, settings, user_data
FROM launch_config WHERE id = $1"""


async def request(tx: Connection, consoles: Sequence[ConsoleOutput]) -> None:
    """Request the console output of these machines, unless one of their image has been requested."""
    if consoles:
        await tx.execute(REQUEST.text, *REQUEST.rows(sorted(consoles, key=lambda each: each.image_revision)))


async def take(db: Connection, *, taken_seconds: float, longest_seconds: float) -> list[ConsoleOutput]:
    """Take up to 4 that are due, for this caller alone for `taken_seconds`. No attempt is due later than
    `longest_seconds` from now."""
    return [_console(row) for row in await db.fetch(TAKE, taken_seconds, longest_seconds)]


async def later(db: Connection, console: ConsoleOutput, delay_seconds: float) -> None:
    """Attempt it again after some time, unless another attempt was made meanwhile."""
    arguments = LATER.arguments(image=console.image_revision, attempt=console.attempts, delay=delay_seconds)
    await db.execute(LATER.text, *arguments)


async def settle(tx: Connection, console: ConsoleOutput, lines: Sequence[str], problem: str) -> bool:
    """Store the lines, or the reason why there are none; False if another attempt was made meanwhile."""
    arguments = SETTLE.arguments(image=console.image_revision, attempt=console.attempts, text=[*lines], why=problem)
    return bool(await tx.fetchval(SETTLE.text, *arguments))


async def any_open(db: Connection) -> bool:
    """True if the alert of one is open."""
    return bool(await db.fetchval(ANY_OPEN))


async def resolve(tx: Connection) -> list[str]:
    """Mark those whose alert ends as resolved; returns their image revisions."""
    return [row["image_revision"] for row in await tx.fetch(RESOLVE)]


class ConsolePlace(NamedTuple):
    """Place in the list of console outputs."""

    requested_at: datetime
    image_revision: Text


FIRST: Final = ConsolePlace(LAST_TIME, "")


async def listed(
    db: Connection, image_revision: str | None, limit: int, *, after: ConsolePlace = FIRST
) -> list[wire.ConsoleOutput]:
    """Console outputs for people, newest first, from the one after that place."""
    rows = await db.fetch(LISTED, image_revision, *after, limit)
    return [wire.ConsoleOutput(**row) for row in rows]


async def revision(db: Connection, launch_config_id: str) -> Any:
    """The revision of a launch config with its user data; None if it was deleted."""
    return await db.fetchrow(USER_DATA, launch_config_id)


def _console(row: Any) -> ConsoleOutput:
    return ConsoleOutput(**dict(row) | {"batch_id": str(row["batch_id"]), "worker_id": str(row["worker_id"])})
