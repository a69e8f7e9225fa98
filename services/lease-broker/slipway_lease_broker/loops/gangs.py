"""Gangs that had their turn in one lease pool are tried, until all their pools have room: then they start in all of
them at once."""

from collections.abc import Callable

import msgspec

from slipway_common.postgres import Pool
from slipway_lease_broker.admission import decide_gang, tell
from slipway_lease_broker.domain.decide import Decision
from slipway_lease_broker.store import gangs


class GangLoop(msgspec.Struct, frozen=True):
    lost_linger_seconds: float
    committed: Callable[[Decision], None] = tell  # called after each commit

    async def step(self, database: Pool) -> bool:
        """Try each once; True when one started, since what it no longer keeps may be another's."""
        async with database.acquire() as db:
            started = False
            for gang_id in await gangs.ready(db):
                async with db.transaction():
                    decisions = await decide_gang(db, gang_id, lost_linger_seconds=self.lost_linger_seconds)
                for decision in decisions:
                    self.committed(decision)
                started = started or bool(decisions)
        return started
