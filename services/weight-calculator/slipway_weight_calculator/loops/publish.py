"""Changed health becomes published weights. The one place where a weight record is written."""

from slipway_common import outbox
from slipway_common.events.weight import WeightChanged
from slipway_common.postgres import Connection, Pool
from slipway_weight_calculator import metrics
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.record import record, worth_publishing
from slipway_weight_calculator.store import configs


class PublishLoop:
    """`republish_seconds`: also an unchanged record is repeated that often, which heals whatever a stalled
    predecessor wrote last."""

    def __init__(self, policy: Policy, republish_seconds: float) -> None:
        self.policy = policy
        self.republish_seconds = republish_seconds

    async def step(self, pool: Pool) -> bool:
        """Look at the configs that changed and publish those that are worth it; True when something was published."""
        async with pool.acquire() as db, db.transaction():
            told = await self.publish(db)
        metrics.RECORDS.inc(told)
        return told > 0

    async def publish(self, tx: Connection) -> int:
        changed = await configs.lock_unpublished(tx)
        if not changed:
            return 0
        now = await configs.clock(tx)
        events: list[outbox.Traced | outbox.Tombstone] = []
        published: dict[str, WeightChanged | None] = {}
        for item in changed:
            config, last = item.row.config, item.published
            if config.state == "archived":
                if last is not None:
                    events.append(outbox.Tombstone(last))
                    published[config.id] = None
                continue
            new = record(config, item.row.health, now=now, policy=self.policy)
            if item.published_age_seconds >= self.republish_seconds or worth_publishing(last, new, self.policy):
                events.append(outbox.Traced(new, item.row.traceparent))
                published[config.id] = new
        await configs.mark_looked_at(tx, [item.row.config.id for item in changed])
        await configs.mark_published(tx, published)
        await outbox.enqueue(tx, events)
        return len(events)
