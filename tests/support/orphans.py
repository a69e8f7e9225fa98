"""A restored database that has lost its workspaces, and passes of the instance reaper over what still exists."""

from typing import Any, Final

import msgspec
import pytest

from slipway_common.messaging.incarnation import Incarnation
from slipway_provisioner.apply import recovery
from slipway_provisioner.domain.recovery import Action
from slipway_provisioner.loops import reap
from slipway_provisioner.providers.port import OutcomeUnknown
from slipway_provisioner.providers.terraform.adapter import Terraform
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import orphans
from tests.support.harness import until
from tests.support.provisioner import KEY
from tests.support.terraform_fleet import Fleet

SETTINGS: Final = Settings(database_url="", kafka="", registration_keys=KEY, call_timeout_seconds=5.0)
LOST: Final = ("workspace", "workspace_document", "workspace_listing")
RAISED: Final = "SELECT value FROM outbox WHERE type = 'io.slipway.alert.raised.v1' ORDER BY id"


async def restored(fleet: Fleet) -> None:
    """Lose all rows of workspaces, as if the database had been restored from before them, so long ago that the next
    listing counts."""
    for table in LOST:
        await fleet.database.execute(f"DELETE FROM {table}")
    renewal = Incarnation("new", "restored", ("old",), 2**50, None)
    async with fleet.database.acquire() as db, db.transaction():
        await recovery.stop_until_confirmed(db, renewal)
        await db.execute("UPDATE launch_stop SET at = at - interval '1 hour'")


async def reaped(fleet: Fleet, provider: Terraform) -> list[str]:
    """Pass over the account; returns the orphans that wait for a person, with the reasons."""
    await reap.pass_over(fleet.database, fleet.account, settings=SETTINGS, providers={"terraform": provider})
    async with fleet.database.acquire() as db:
        return [f"{each.instance_id}: {each.reason}" for each in await orphans.of_account(db, fleet.account.id)]


async def confirmed(fleet: Fleet, action: Action) -> None:
    async with fleet.database.acquire() as db, db.transaction():
        chosen = {(each.account_id, each.instance_id): action for each in await orphans.listed(db)}
        await recovery.confirm(db, chosen, by="ann")


async def until_listed(fleet: Fleet) -> None:
    """Until a listing has ended that begins now at the earliest."""
    await fleet.database.execute("UPDATE workspace_listing SET listed_at = NULL, due_at = slipway_clock()")
    ended = "SELECT listed_at FROM workspace_listing"
    await until(lambda: fleet.database.fetchval(ended), "the account is listed")


async def not_listed_yet(fleet: Fleet, provider: Terraform) -> None:
    """Ask for the first listing since a restore. Until it has ended the account counts as not listed."""
    with pytest.raises(OutcomeUnknown, match="not been listed since the restore"):
        await provider.instances(fleet.account)


async def alerts(fleet: Fleet, kind: str) -> list[dict[str, Any]]:
    """Alerts of a kind that were raised."""
    raised = [msgspec.json.decode(row["value"]) for row in await fleet.database.fetch(RAISED)]
    return [alert for alert in raised if alert["kind"] == kind]
