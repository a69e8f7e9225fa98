"""Check of accounts: each once an hour, after its declaration has changed, and for new launch configs."""

from collections.abc import Mapping
from typing import Final

from slipway_common.base.clock import monotonic_seconds
from slipway_common.database.postgres import Database
from slipway_common.observability.telemetry import logger
from slipway_provisioner.apply import account_checks as apply
from slipway_provisioner.providers.port import OutcomeUnknown, Provider
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import account_checks

LOG = logger(__name__)
LOOK_SECONDS: Final = 5.0
"""Interval at which a replica looks for an account that is due, however often it is woken."""


class AccountChecks:
    """Checks one account at a time, so that they are spread. A replica takes an account that no other checks."""

    def __init__(self, settings: Settings, providers: Mapping[str, Provider]) -> None:
        self.settings = settings
        self.providers = providers
        self._looks_at = 0.0

    async def step(self, database: Database) -> bool:
        """Check an account that is due; False if none is, or it is too early to look."""
        if monotonic_seconds() < self._looks_at:
            return False
        async with database.acquire() as db:
            begun = await account_checks.due(db, self.settings.account_check_seconds)
            if begun is None:
                async with db.transaction():
                    ended = await apply.end(db)
                self._looks_at = 0.0 if ended else monotonic_seconds() + LOOK_SECONDS
                return ended
        try:
            await apply.check(database, self.providers[begun.account.provider], begun)
        except OutcomeUnknown as error:
            # The instance reaper, which lists accounts more often, finds out if it does not answer at all.
            LOG.warning("checking an account failed", account=begun.account.id, error=str(error))
        return True
