"""Errors of workers that are counted, and pruned, at the same time."""

from typing import Final

import slipway_provisioner
from slipway_common.database.retention import DAY_SECONDS
from slipway_provisioner.store import errors, retention
from tests.support.harness import until_ended_or_waiting
from tests.support.provisioner import Provisioner, in_transaction
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)
OLD: Final = """
UPDATE worker_error SET at = at - interval '61 days';
UPDATE worker_error_hour SET hour = hour - interval '61 days'"""


@locking("store.errors.COUNT")
async def test_two_workers_report_the_same_error(provisioner: Provisioner) -> None:
    """The second waits for the first, and both are counted."""
    first, second = await provisioner.starting(2)
    async with provisioner.database.acquire() as db, db.transaction():
        await errors.record(db, first, "disk-full", "a")
        waiting = provisioner.start(in_transaction(provisioner, lambda tx: errors.record(tx, second, "disk-full", "b")))
        await provisioner.until_waiting(waiting)
    assert await waiting
    assert await provisioner.database.fetchval("SELECT number FROM worker_error_hour") == 2


@locking("store.retention.DELETE_ERRORS", "store.retention.DELETE_ERROR_HOURS")
async def test_errors_are_pruned_twice_at_once(provisioner: Provisioner) -> None:
    """The second does not wait for the first, and leaves its rows to it."""
    (worker,) = await provisioner.starting()
    await in_transaction(provisioner, lambda tx: errors.record(tx, worker, "disk-full", "a"))
    await provisioner.database.execute(OLD)
    async with provisioner.database.acquire() as db, db.transaction():
        assert await db.execute(retention.DELETE_ERRORS.text, 14 * DAY_SECONDS) == "DELETE 1"
        assert await db.execute(retention.DELETE_ERROR_HOURS.text, 60 * DAY_SECONDS) == "DELETE 1"
        pruning = provisioner.start(provisioner.prune())
        await until_ended_or_waiting(provisioner.database, pruning)
        assert pruning.done(), "pruning waits for a lock"
    await pruning
