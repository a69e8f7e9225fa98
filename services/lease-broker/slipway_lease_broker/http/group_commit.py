"""Group commit for lease commands over HTTP: commands that arrive while a batch commits form the next batch.

A batch is the commands of one lease pool, committed in one admission transaction (admission.py) and answered after it,
so that the commit and the lock of a busy pool are paid for once per batch.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, TypeAlias

from slipway_common.database.postgres import Database, is_infrastructure
from slipway_common.observability.telemetry import logger
from slipway_lease_broker.admission import Admissions
from slipway_lease_broker.domain.exchange import Outcome, Submission

LOG = logger(__name__)

BATCH_MAX: Final = 500
# Connections that batches may use at once: the loops and consumers of the process need the others.
BATCHES_MAX: Final = 4

Waiting: TypeAlias = tuple[Submission, asyncio.Future[Outcome]]


class GroupCommit:
    """Batches of lease commands; one object per process."""

    def __init__(self, admissions: Admissions) -> None:
        self._admissions = admissions
        self._queues: dict[str, list[Waiting]] = {}
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._batches = asyncio.Semaphore(BATCHES_MAX)

    async def submit(self, database: Database, submission: Submission) -> Outcome:
        """Apply the command, decide and commit. A refused command changes nothing."""
        lease_pool_id = submission.command.lease_pool_id
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(lease_pool_id, []).append((submission, future))
        if lease_pool_id not in self._serving:
            self._serving[lease_pool_id] = asyncio.create_task(self._serve(database, lease_pool_id))
        try:
            return await future
        except BaseException:
            if submission.woken is not None:  # the caller no longer waits for a grant, even if the command commits
                submission.woken.cancel()
            raise

    async def _serve(self, database: Database, lease_pool_id: str) -> None:
        try:
            while queue := self._queues.pop(lease_pool_id, None):
                for start in range(0, len(queue), BATCH_MAX):
                    await self._answer(database, lease_pool_id, queue[start : start + BATCH_MAX])
        finally:
            del self._serving[lease_pool_id]

    async def _answer(
        self, database: Database, lease_pool_id: str, waiting: Sequence[Waiting], *, at_once: bool = True
    ) -> None:
        """Commit a batch and answer its callers. Where a decision fails, each command is applied alone and the decision
        is left to the loop, because a command must not fail for that."""
        submissions = [submission for submission, _ in waiting]
        try:
            async with self._batches:
                outcomes = await self._admissions.submit(database, lease_pool_id, submissions, at_once=at_once)
        except Exception as error:
            if at_once and not is_infrastructure(error):
                LOG.warning(
                    "batch failed, applying its commands one by one", lease_pool=lease_pool_id, error=repr(error)
                )
                for one in waiting:
                    await self._answer(database, lease_pool_id, [one], at_once=False)
                return
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), outcome in zip(waiting, outcomes, strict=True):
            if not future.done():
                future.set_result(outcome)
