"""A round of the prune loop on the database of a test."""

from types import SimpleNamespace

from slipway_common.database.postgres import Database
from slipway_common.database.retention import PruneLoop, Retention, Rule
from slipway_common.messaging.retention import RETENTION


async def prune_all(database: Database, retention: Retention, **kept_days: float) -> None:
    """Delete all that the rules of a service say, by default with the default settings."""
    rules = (*RETENTION, *retention)
    defaults = {rule.setting: rule.days for rule in rules if isinstance(rule, Rule) and rule.setting}
    loop = PruneLoop(rules, SimpleNamespace(**(defaults | kept_days)))
    while await loop.step(database):
        pass
