"""Routes for people: the identity of the deployment, and recovery after a restore of its database."""

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, ConfigDict, Field

from slipway_common.database.postgres import Database
from slipway_common.messaging import incarnation
from slipway_common.web.access import READ, Needs
from slipway_common.web.problem import Problem
from slipway_common.web.runtime import database, wake
from slipway_common.web.text import Name
from slipway_provisioner.apply import recovery as apply
from slipway_provisioner.domain.recovery import Action, proposals
from slipway_provisioner.store import deployment, orphans, recovery, restores

router = APIRouter(tags=["recovery"])
DatabaseDep = Annotated[Database, Depends(database)]
INSTANCES_MAX = 10_000


class Choice(BaseModel):
    """A decision about an orphan instance."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    account_id: Name
    instance_id: Name
    action: Action


class Confirmation(BaseModel):
    """Decisions about orphan instances. Those without one still wait. `unlisted`: accounts to confirm although
    they have not been listed since the restore."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    instances: tuple[Choice, ...] = Field((), max_length=INSTANCES_MAX)
    unlisted: tuple[Name, ...] = Field((), max_length=INSTANCES_MAX)


@router.get("/deployment", dependencies=[READ])
async def get_deployment(db: DatabaseDep) -> dict[str, Any]:
    """Return the id with which every machine of this deployment is tagged, and the incarnation of its database."""
    return msgspec.structs.asdict(await deployment.get(db))


@router.get("/recovery", dependencies=[READ])
async def get_recovery(db: DatabaseDep) -> dict[str, Any]:
    """Return the reason why nothing is launched after a restore, and the differences between the rows and what runs, as
    of the newest pass of the instance reaper over each account. A confirmation is refused unless the database is
    `compared` with Kafka, and while accounts are `not_listed`."""
    async with db.acquire() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        found = await orphans.listed(connection)
        revisions = await recovery.revisions(connection, {orphan.launch_config_id for orphan in found})
        proposed = proposals(found, revisions, await recovery.ended(connection, found))
        return {
            "unconfirmed": await restores.unconfirmed(connection),
            "restored": await restores.stop(connection),
            "compared": await incarnation.is_trusted(connection),
            "orphans": [
                msgspec.structs.asdict(each.orphan) | {"action": each.action, "why": each.why} for each in proposed
            ],
            "missing": await recovery.missing(connection),
            "open_calls": await recovery.open_calls(connection),
            "lost_claims": [msgspec.structs.asdict(each) for each in await recovery.lost(connection)],
            "not_listed": await recovery.not_listed(connection),
        }


@router.post("/recovery/confirm")
async def confirm(
    body: Confirmation, request: Request, by: Annotated[str, Depends(Needs("restores:write"))], db: DatabaseDep
) -> dict[str, Any]:
    """Decide about orphan instances and start launching again. From then on the instance reaper terminates orphan
    instances, except for those that wait for a decision."""
    chosen = {(each.account_id, each.instance_id): each.action for each in body.instances}
    try:
        async with db.acquire() as connection, connection.transaction():
            if not await incarnation.is_trusted(connection):
                detail = (
                    f"{restores.NOT_COMPARED}, or since it was restored; nothing was changed. Kafka has to be "
                    "reachable for that: `slipway doctor` shows if it is. Then try again"
                )
                raise Problem(503, "unconfirmed", "The state of the database is unknown", detail)
            confirmed = await apply.confirm(connection, chosen, unlisted=body.unlisted, by=by)
    except apply.NotListed as error:
        detail = (
            f"{error} not listed since the restore: machines that run there would be launched a second time; nothing "
            "was changed. Wait for the instance reaper, or name each account as unlisted"
        )
        raise Problem(409, "not-listed", "The instance reaper has not listed every account", detail) from error
    except apply.CannotAdopt as error:
        raise Problem(409, "cannot-adopt", "The instance cannot be adopted", str(error)) from error
    wake(request)
    return msgspec.structs.asdict(confirmed)
