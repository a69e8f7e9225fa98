"""Group commit: what comes while others are being committed is committed together, in one transaction."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Generic, TypeVar

from slipway_common.database.postgres import Database
from slipway_common.observability.telemetry import logger

LOG = logger(__name__)
MEMBERS_MAX: Final = 64

Member = TypeVar("Member")
Commit = Callable[[Database, Sequence[Member]], Awaitable[None]]


class GroupCommit(Generic[Member]):
    """Commits members in groups, one at a time. A member waits for no other one to come, and a single one is committed
    at once. If a group fails, each of its members is committed alone, beside the next groups."""

    def __init__(self, together: Commit[Member], alone: Commit[Member]) -> None:
        """Both commit members in one transaction. `together` fails rather than wait long for one of them; `alone` gets
        a single one after that."""
        self._together = together
        self._alone = alone
        self._waiting: list[tuple[Member, asyncio.Future[None]]] = []
        self._serving: asyncio.Task[None] | None = None
        self._single: set[asyncio.Task[None]] = set()

    async def commit(self, database: Database, member: Member) -> None:
        """Return once the member is committed. Raises what its commit raises."""
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((member, committed))
        if self._serving is None:
            self._serving = asyncio.create_task(self._serve(database))
        await committed

    async def _serve(self, database: Database) -> None:
        try:
            while self._waiting:
                group = self._waiting[:MEMBERS_MAX]
                await self._commit(database, group)
                del self._waiting[: len(group)]  # others may have come
        except BaseException as error:  # this process ends: nobody may wait for it
            for _, committed in self._waiting:
                _settle(committed, error)
            self._waiting.clear()
        finally:
            self._serving = None

    async def _commit(self, database: Database, group: Sequence[tuple[Member, asyncio.Future[None]]]) -> None:
        try:
            await self._together(database, [member for member, _ in group])
        except Exception as error:
            LOG.info("committing each alone", members=len(group), error=repr(error))
            for member, committed in group:
                task = asyncio.create_task(self._commit_alone(database, member, committed))
                self._single.add(task)
                task.add_done_callback(self._single.discard)
        else:
            for _, committed in group:
                _settle(committed)

    async def _commit_alone(self, database: Database, member: Member, committed: asyncio.Future[None]) -> None:
        try:
            await self._alone(database, [member])
        except BaseException as error:
            _settle(committed, error)
        else:
            _settle(committed)


def _settle(committed: asyncio.Future[None], error: BaseException | None = None) -> None:
    if committed.done():
        return  # its caller was cancelled
    if error is None:
        committed.set_result(None)
    else:
        committed.set_exception(error)
