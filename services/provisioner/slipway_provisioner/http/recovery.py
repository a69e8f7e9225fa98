"""Routes for people: the identity of the deployment, and recovery after a restore of its database."""

from typing import Annotated

import msgspec
from fastapi import Depends, Request

from slipway_api.http.provisioner.recovery import (
    Deployment,
    LostClaim,
    OrphanInstance,
    Recovery,
    RecoveryConfirmation,
    RecoveryConfirmed,
)
from slipway_common.database.postgres import Database
from slipway_common.messaging import incarnation
from slipway_common.web.access import READ, Needs
from slipway_common.web.answers import Answer
from slipway_common.web.bodies import Body
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_common.web.runtime import database, wake
from slipway_provisioner.apply import recovery as apply
from slipway_provisioner.domain.recovery import Action, proposals
from slipway_provisioner.store import deployment, orphans, recovery, restores

router = Router(tags=["recovery"])
DatabaseDep = Annotated[Database, Depends(database)]


@router.get("/deployment", dependencies=[READ])
async def get_deployment(db: DatabaseDep) -> Answer[Deployment]:
    """Return the id with which every machine of this deployment is tagged, and the incarnation of its database."""
    return Answer(await deployment.get(db))


@router.get("/recovery", dependencies=[READ])
async def get_recovery(db: DatabaseDep) -> Answer[Recovery]:
    """Return the reason why nothing is launched after a restore, and the differences between the rows and what runs, as
    of the newest pass of the instance reaper over each account. A confirmation is refused unless the database is
    `compared` with Kafka, and while accounts are `not_listed`."""
    async with db.acquire() as connection, connection.transaction(isolation="repeatable_read", readonly=True):
        found = await orphans.listed(connection)
        revisions = await recovery.revisions(connection, {orphan.launch_config_id for orphan in found})
        proposed = proposals(found, revisions, await recovery.ended(connection, found))
        return Answer(
            Recovery(
                unconfirmed=await restores.unconfirmed(connection),
                restored=await restores.stop(connection),
                compared=await incarnation.is_trusted(connection),
                orphans=[
                    OrphanInstance(**msgspec.structs.asdict(each.orphan), action=each.action, why=each.why)
                    for each in proposed
                ],
                missing=await recovery.missing(connection),
                open_calls=await recovery.open_calls(connection),
                lost_claims=[LostClaim(**msgspec.structs.asdict(each)) for each in await recovery.lost(connection)],
                not_listed=await recovery.not_listed(connection),
            )
        )


@router.post("/recovery/confirm")
async def confirm(
    body: Body[RecoveryConfirmation],
    request: Request,
    by: Annotated[str, Depends(Needs("restores:write"))],
    db: DatabaseDep,
) -> Answer[RecoveryConfirmed]:
    """Decide about orphan instances and start launching again. From then on the instance reaper terminates orphan
    instances, except for those that wait for a decision."""
    chosen = {(each.account_id, each.instance_id): Action(each.action) for each in body.instances}
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
            f"no listing since the restore surely has all machines of {error}: those that it lacks would be launched a "
            "second time; nothing was changed. Wait for the instance reaper, or name each account as unlisted"
        )
        raise Problem(409, "not-listed", "Not every account has been listed", detail) from error
    except apply.CannotAdopt as error:
        raise Problem(409, "cannot-adopt", "The instance cannot be adopted", str(error)) from error
    wake(request)
    return Answer(confirmed)
