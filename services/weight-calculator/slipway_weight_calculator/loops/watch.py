"""What time alone changes: probe permits that are due are issued, weights that have faded are looked at again."""

from collections.abc import Sequence
from datetime import datetime
from itertools import groupby

from slipway_common.postgres import Pool
from slipway_weight_calculator import metrics
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.waiting import pass_time
from slipway_weight_calculator.store import configs
from slipway_weight_calculator.store.configs import Row


class WatchLoop:
    """`refresh_seconds`: how long a weight may fade, by the age of its evidence alone, before it is looked at again."""

    def __init__(self, policy: Policy, refresh_seconds: float) -> None:
        self.policy = policy
        self.refresh_seconds = refresh_seconds

    async def step(self, pool: Pool) -> bool:
        """Issue what is due; True when a permit or its time changed."""
        async with pool.acquire() as db:
            await configs.mark_stale(db, self.refresh_seconds)
            seen = await configs.waiting(db)
            if not self.changed(seen, await configs.clock(db)):
                return False
            async with db.transaction():
                # Read again under the locks: an outcome may have come in between.
                rows = await configs.lock(db, [row.config.id for row in seen])
                changed = self.changed(rows, await configs.clock(db))
                await configs.write(db, changed)
        metrics.PERMITS.inc(sum(row.health.gate.ready for row in changed))
        return bool(changed)

    def changed(self, rows: Sequence[Row], now: datetime) -> list[Row]:
        """The rows of whole pools as they are at `now`, if different."""
        changed: dict[str, Row] = {}
        by_pool = sorted(rows, key=lambda row: row.config.pool_id)
        for _, members in groupby(by_pool, key=lambda row: row.config.pool_id):
            pool = {row.config.id: row for row in members}
            active = [config_id for config_id, row in pool.items() if row.config.state == "active"]
            health = {config_id: row.health for config_id, row in pool.items()}
            for config_id, after in pass_time(health, active, now=now, policy=self.policy).items():
                changed[config_id] = Row(pool[config_id].config, after, pool[config_id].traceparent)
        return [changed[config_id] for config_id in sorted(changed)]
