"""Termination of the instances of stopping workers. The instance reaper confirms it.

A refusal counts only if it is definite and names the instance, which is asked for alone then: a call for many may fail
for one of them, and a throttle, a timeout or a refused credential says nothing about an instance.
"""

import asyncio
from collections.abc import Mapping, Sequence

from slipway_common.database.postgres import Database
from slipway_common.observability.telemetry import logger
from slipway_provisioner.apply import refused_terminations
from slipway_provisioner.domain.cloud import Account, Protected
from slipway_provisioner.providers.port import Provider, TerminationRefused
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import accounts, restores
from slipway_provisioner.store.terminations import Terminable, take_terminable

LOG = logger(__name__)


async def terminate_instances(database: Database, *, settings: Settings, providers: Mapping[str, Provider]) -> bool:
    """Terminate instances of stopping workers after the grace period, and record which are refused."""
    async with database.acquire() as db:
        if await restores.unconfirmed(db):
            return False
        taken = await take_terminable(
            db, grace_seconds=settings.stop_grace_seconds, again_seconds=settings.reap_seconds
        )
        by_id = {id_: await accounts.get(db, id_) for id_ in {each.account_id for each in taken}}

    async def terminate(account: Account) -> None:
        of_account = [each for each in taken if each.account_id == account.id]
        await _terminate(database, account, providers[account.provider], of_account, settings)

    await asyncio.gather(*map(terminate, by_id.values()))
    await refused_terminations.settle(database, settings.hour_seconds)
    return False


async def _terminate(
    database: Database, account: Account, provider: Provider, taken: Sequence[Terminable], settings: Settings
) -> None:
    """Terminate instances of one account. A failure is retried when the instances are taken again."""
    instance_ids = [each.instance_id for each in taken]
    refused: Mapping[str, Protected] = {}
    try:
        await provider.terminate(account, instance_ids)
    except Exception as error:
        LOG.warning("terminating instances failed and will be retried", instances=instance_ids, error=repr(error))
        refused = error.instances if isinstance(error, TerminationRefused) else {}
        accepted = []
    else:
        accepted = [each.worker_id for each in taken if each.refused]
    if not (refused or accepted):
        return
    alone = refused if len(taken) == 1 else await _refused_alone(account, provider, sorted(refused))
    async with database.acquire() as db, db.transaction():
        if refused:
            await refused_terminations.record_refused(db, account.id, refused)
        if named := [each.worker_id for each in taken if each.instance_id in alone]:
            await refused_terminations.count_refusals(db, account.id, named, settings.stuck_after_seconds)
        if accepted:
            await refused_terminations.forget_refusals(db, accepted)


async def _refused_alone(account: Account, provider: Provider, instance_ids: Sequence[str]) -> list[str]:
    """Those of these instances whose termination is refused also where it is all that is asked for."""
    refused = []
    for instance_id in instance_ids:
        try:
            await provider.terminate(account, [instance_id])
        except Exception as error:
            if isinstance(error, TerminationRefused) and instance_id in error.instances:
                refused.append(instance_id)
            else:
                LOG.info("terminating an instance alone failed", instance=instance_id, error=repr(error))
    return refused
