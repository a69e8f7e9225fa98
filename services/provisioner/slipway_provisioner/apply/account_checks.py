"""Check of an account: asks its provider, and stores the findings with the alerts that they raise and resolve."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from slipway_common.database.postgres import Connection, Database
from slipway_common.messaging import outbox
from slipway_provisioner.domain import account_check
from slipway_provisioner.domain.account_check import Finding
from slipway_provisioner.providers.port import OutcomeUnknown, Provider
from slipway_provisioner.store import account_checks
from slipway_provisioner.store.account_checks import Begun

CHECK_SECONDS_MAX: Final = 90.0
"""Longest check, most of which is waiting for tokens that launches do not need."""


async def check(database: Database, provider: Provider, begun: Begun) -> None:
    """Check an account and store the findings. Raises OutcomeUnknown if it does not answer; those of the check before
    stay then."""
    account = begun.account
    unusable = [
        account_check.unusable(config["name"], problem)
        for config in begun.configs
        if (problem := provider.config_problem(account.settings, config["settings"]))
    ]
    try:
        async with asyncio.timeout(CHECK_SECONDS_MAX):
            found = [*unusable, *await provider.check(account, begun.configs)]
    except TimeoutError:
        raise OutcomeUnknown(f"the check of account {account.id} took more than {CHECK_SECONDS_MAX:g} s") from None
    async with database.acquire() as db, db.transaction():
        await record(db, account.id, found, begun.began_at)


async def record(tx: Connection, account_id: str, found: Sequence[Finding], began_at: datetime) -> None:
    """Store findings and publish the changes of alerts, unless a check that began later has been recorded."""
    before = await account_checks.lock(tx, account_id, began_at)
    if before is None:
        return
    after = account_check.compared(before, found)
    await account_checks.record(tx, account_id, after.findings, began_at)
    await outbox.enqueue(tx, account_check.alerts(account_id, after))


async def end(tx: Connection) -> bool:
    """Resolve the alerts of an account that is checked no more, since it is retired or removed; False if there is
    none."""
    account_id = await account_checks.ended(tx)
    if account_id is None:
        return False
    after = account_check.compared(await account_checks.findings(tx, account_id), [])
    await account_checks.record(tx, account_id, [], None)
    await outbox.enqueue(tx, account_check.alerts(account_id, after))
    return True
