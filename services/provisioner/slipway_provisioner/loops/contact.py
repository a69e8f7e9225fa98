"""Record of the accounts that answer, to which every kind of call but a termination reports."""

from slipway_common.base.clock import monotonic_seconds
from slipway_common.database.postgres import Database
from slipway_provisioner.apply import reachability
from slipway_provisioner.settings import Settings


async def answered(database: Database, account_id: str) -> None:
    """Record an answer of an account."""
    async with database.acquire() as db, db.transaction():
        await reachability.answered(db, account_id)


async def unanswered(database: Database, account_id: str, settings: Settings, *, began: float) -> None:
    """Record that a call that `began` then was not answered."""
    async with database.acquire() as db, db.transaction():
        await reachability.unanswered(
            db,
            account_id,
            after_seconds=monotonic_seconds() - began,
            unreachable_seconds=settings.unreachable_after_seconds,
        )
