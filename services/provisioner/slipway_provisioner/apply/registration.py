"""Registration of an instance: it takes an intent of its launch batch and gets a worker token."""

import msgspec

from slipway_common.database.postgres import Connection
from slipway_common.events.lifecycle import ENDED, LIVE
from slipway_common.events.worker import WorkerRegistered
from slipway_provisioner.apply.leases import release
from slipway_provisioner.domain.workers import AlreadyStopped, Worker, registered
from slipway_provisioner.store import batches, pools, workers


class UnknownBatch(Exception):
    """No launch batch has this id; the text is the id."""


class ForeignInstance(Exception):
    """The instance belongs to another batch; the text is its id."""


class OrphanInstance(Exception):
    """No intent of the batch is left for the instance."""


class AlreadyRegistered(Exception):
    """The instance has registered and used its token; the text is the worker id."""


async def register(
    tx: Connection, batch_id: str, instance_id: str, token_sha256: str
) -> tuple[Worker, WorkerRegistered | None]:
    """Register an instance as a worker; returns the worker, and its event unless it had registered before.

    Raises UnknownBatch, ForeignInstance, OrphanInstance, AlreadyRegistered, AlreadyStopped, IllegalTransition.
    """
    batch = await batches.lock(tx, batch_id)
    if batch is None:
        raise UnknownBatch(batch_id)
    worker = await workers.by_instance(tx, batch.account_id, instance_id)
    if worker is None:
        worker = await _lowest_unbound(tx, batch_id)
    elif worker.batch_id != batch.id:
        raise ForeignInstance(instance_id)
    if worker.state in ENDED:
        raise AlreadyStopped(worker.reason)
    if worker.registered_at is not None:
        return await _replace_token(tx, worker, token_sha256), None
    after, event = registered(worker, instance_id, token_sha256, await pools.now(tx))
    (released,) = await release(tx, [after], "registered")
    await workers.save(tx, [(released, event)])
    return released, event


async def _lowest_unbound(tx: Connection, batch_id: str) -> Worker:
    for worker in await workers.lock_batch(tx, batch_id):
        if worker.instance_id is None and worker.state in LIVE:
            return worker
    raise OrphanInstance("every intent of the batch has an instance; this one will be terminated")


async def _replace_token(tx: Connection, worker: Worker, token_sha256: str) -> Worker:
    """Replace the token of a repeated registration, whose first response was lost. Refused once a token was used."""
    if worker.token_used:
        raise AlreadyRegistered(worker.id)
    after = msgspec.structs.replace(worker, token_sha256=token_sha256)
    await workers.save_without_events(tx, [after])
    return after
