"""Orphan instances that wait for the decision of a person."""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, given
from slipway_provisioner.domain.reaping import Kept
from slipway_provisioner.domain.recovery import Action, Orphan
from slipway_provisioner.store.tables import orphan_instance

O: Final = orphan_instance.c  # noqa: E741 # as the aliases of the other tables
FIELDS: Final = O[Orphan.__struct_fields__]
_FOUND: Final = [field for field in FIELDS if field.name != "decision"]
_OF_ACCOUNT: Final = O.account_id == sa.bindparam("account_id")
_INSERTED: Final = postgresql.insert(orphan_instance).from_select(
    [field.name for field in _FOUND], sa.select(given(*_FOUND))
)
RECORD: Final = Statement(
    _INSERTED.on_conflict_do_update(
        index_elements=[O.account_id, O.instance_id], set_={"reason": _INSERTED.excluded.reason}
    )
)
FORGET: Final = Statement(
    sa.delete(orphan_instance).where(_OF_ACCOUNT, O.instance_id != sa.all_(array("ids", O.instance_id)))
)
LOCK: Final = Statement(sa.select(*FIELDS).where(_OF_ACCOUNT).order_by(O.instance_id).with_for_update())
LISTED: Final = Statement(sa.select(*FIELDS).order_by(O.account_id, O.instance_id))
LOCK_ALL: Final = Statement(sa.select(*FIELDS).order_by(O.account_id, O.instance_id).with_for_update())
DECIDE: Final = Statement(
    sa.update(orphan_instance)
    .where(_OF_ACCOUNT, O.instance_id == sa.any_(array("ids", O.instance_id)))
    .values(decision=sa.bindparam("outcome"))
)
ADOPTED: Final = Statement(sa.delete(orphan_instance).where(_OF_ACCOUNT, O.instance_id == sa.bindparam("instance_id")))
# Kept for an account that is listed no more: it is retired, or its removed row was deleted.
UNLISTED: Final = """
SELECT account_id FROM (
    SELECT account_id FROM orphan_instance UNION SELECT account_id FROM missing_instance) AS kept
WHERE NOT EXISTS (SELECT FROM account a WHERE a.id = kept.account_id AND NOT a.retired)
ORDER BY account_id LIMIT 1"""
OF_ACCOUNT: Final = Statement(sa.select(*FIELDS).where(_OF_ACCOUNT).order_by(O.instance_id))


async def record(tx: Connection, account_id: str, kept: Sequence[Kept], *, remaining: Sequence[str]) -> tuple[int, int]:
    """Store the orphan instances that a pass has kept, in place of those of the pass before; their decisions stay.
    Those before that are `remaining` stay too: the pass terminates them, which may fail, or its listing lacks them
    although they exist.

    Returns how many waited for a decision before and how many do now.
    """
    before = [_orphan(row) for row in await tx.fetch(LOCK.text, *LOCK.arguments(account_id=account_id))]
    found = [
        Orphan(
            account_id=account_id,
            instance_id=each.instance.id,
            batch_id=each.instance.batch_id,
            launch_config_id=each.instance.launch_config_id,
            created_at=each.instance.created_at,
            reason=each.reason,
        )
        for each in sorted(kept, key=lambda each: each.instance.id)
    ]
    ids = [orphan.instance_id for orphan in found]
    await tx.execute(FORGET.text, *FORGET.arguments(account_id=account_id, ids=[*ids, *remaining]))
    await tx.execute(RECORD.text, *RECORD.rows(found))
    decided = {orphan.instance_id for orphan in before if orphan.decision}
    waiting = {orphan.instance_id for orphan in before} - decided
    return len(waiting), len({*ids, *waiting.intersection(remaining)} - decided)


async def of_account(db: Connection, account_id: str) -> list[Orphan]:
    """Those of an account, as of the pass before."""
    return [_orphan(row) for row in await db.fetch(OF_ACCOUNT.text, *OF_ACCOUNT.arguments(account_id=account_id))]


async def listed(db: Connection) -> list[Orphan]:
    """All of them, by account."""
    return [_orphan(row) for row in await db.fetch(LISTED.text)]


async def lock_all(tx: Connection) -> list[Orphan]:
    return [_orphan(row) for row in await tx.fetch(LOCK_ALL.text)]


async def unlisted_account(db: Connection) -> str | None:
    """An account that the instance reaper lists no more, of which orphan or missing instances are still stored."""
    account_id: str | None = await db.fetchval(UNLISTED)
    return account_id


async def decide(tx: Connection, account_id: str, instance_ids: Sequence[str], action: Action) -> None:
    """Store the decision to leave or to terminate some of them. They are locked."""
    arguments = DECIDE.arguments(account_id=account_id, ids=instance_ids, outcome=action)
    await tx.execute(DECIDE.text, *arguments)


async def adopted(tx: Connection, orphan: Orphan) -> None:
    """Forget one that has a worker now. It is locked."""
    await tx.execute(ADOPTED.text, *ADOPTED.arguments(account_id=orphan.account_id, instance_id=orphan.instance_id))


def _orphan(row: Any) -> Orphan:
    return Orphan(**row)
