"""Registration of an instance: it takes an intent of its launch batch and gets a worker token.

Where the provider attests its machines, an identity document enrols one once. The token that the machine got then is
shown by its agent after a restart, and by a repetition whose first answer was lost; the document alone is refused.
"""

import msgspec

from slipway_api.events.lifecycle import ENDED, LIVE
from slipway_api.events.worker import WorkerRegistered
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply.leases import release
from slipway_provisioner.domain.identity import Attested, IdentityRefused, Reason, check_age
from slipway_provisioner.domain.workers import AlreadyStopped, Worker, registered
from slipway_provisioner.store import batches, deadlines, pools, workers


class UnknownBatch(Exception):
    """No launch batch has this id; the text is the id."""


class ForeignInstance(Exception):
    """The instance belongs to another batch; the text is its id."""


class OrphanInstance(Exception):
    """No intent of the batch is left for the instance."""


class AlreadyRegistered(Exception):
    """The instance has registered and used its token; the text is the worker id."""


class Enrolment(msgspec.Struct, frozen=True):
    """A machine that its provider has attested, and the age up to which its document may enrol it."""

    attested: Attested
    document_age_seconds: float


async def register(
    tx: Connection, batch_id: str, instance_id: str, token_sha256: str, enrolment: Enrolment | None = None
) -> tuple[Worker, WorkerRegistered | None]:
    """Register an instance as a worker; returns the worker, and its event unless it had registered before.

    Raises UnknownBatch, ForeignInstance, OrphanInstance, AlreadyRegistered, AlreadyStopped, IllegalTransition; with an
    `enrolment` IdentityRefused.
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
        if worker.token_sha256 == token_sha256:
            return worker, None
        if enrolment is not None and worker.token_sha256 is not None:
            raise IdentityRefused(Reason.USED, _used(worker))
        return await _replace_token(tx, worker, token_sha256), None
    if enrolment is not None:
        age = await deadlines.age(tx, enrolment.attested.pending_at)
        check_age(age, age_seconds_max=enrolment.document_age_seconds)
    after, event = registered(worker, instance_id, token_sha256, await pools.now(tx))
    (released,) = await release(tx, [after], "registered")
    await workers.save(tx, [(released, event)])
    return released, event


async def _lowest_unbound(tx: Connection, batch_id: str) -> Worker:
    for worker in await workers.lock_batch(tx, batch_id):
        if worker.instance_id is None and worker.state in LIVE:
            return worker
    raise OrphanInstance("every intent of the batch has an instance; one more of the batch will be terminated")


def _used(worker: Worker) -> str:
    text = f"the document has enrolled worker {worker.id}; a restarted agent shows the token that it got then"
    return f"{text}, and whatever else shows the document has copied it"


async def _replace_token(tx: Connection, worker: Worker, token_sha256: str) -> Worker:
    """Replace the token of a repeated registration, whose first response was lost. Refused once a token was used."""
    if worker.token_used:
        raise AlreadyRegistered(worker.id)
    after = msgspec.structs.replace(worker, token_sha256=token_sha256)
    await workers.save_without_events(tx, [after])
    return after
