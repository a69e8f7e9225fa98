"""Console output of machines that never registered: requested with their failure, settled with an alert."""

from collections.abc import Mapping, Sequence
from typing import Final

from slipway_api.events.worker import Outcome, Scope
from slipway_common.database.postgres import Connection
from slipway_common.messaging import outbox
from slipway_provisioner.domain import consoles as domain
from slipway_provisioner.domain.consoles import ConsoleOutput
from slipway_provisioner.domain.workers import Worker
from slipway_provisioner.store import consoles

TELLING: Final = frozenset({Scope.IMAGE, Scope.CONFIG})
"""Scopes of failed boots of which the console may show the cause."""


async def request(
    tx: Connection, failed: Sequence[Worker], reason: str, outcomes: Mapping[str, Outcome | None]
) -> None:
    """Request the console output of one machine per image among those that failed to boot. Locks their images."""
    wanted: dict[str, ConsoleOutput] = {}
    for worker in failed:
        outcome = outcomes.get(worker.id)
        if worker.instance_id is None or worker.batch_id is None or (outcome and outcome.scope not in TELLING):
            continue
        wanted.setdefault(
            worker.image_revision,
            ConsoleOutput(
                image_revision=worker.image_revision,
                account_id=worker.account_id,
                pool_id=worker.pool_id,
                launch_config_id=worker.launch_config_id,
                batch_id=worker.batch_id,
                worker_id=worker.id,
                instance_id=worker.instance_id,
                reason=reason,
            ),
        )
    await consoles.request(tx, [*wanted.values()])


async def settle(tx: Connection, console: ConsoleOutput, lines: Sequence[str], problem: str) -> None:
    """Store what a machine has printed, or why that is not known, and raise an alert with it."""
    if await consoles.settle(tx, console, lines, problem):
        await outbox.enqueue(tx, [domain.raised(console, lines, problem)])


async def resolve(db: Connection) -> None:
    """Resolve the alerts on images of which a machine has registered since; without a transaction if none is open."""
    if await consoles.any_open(db):
        async with db.transaction():
            await outbox.enqueue(db, [domain.resolved(image) for image in await consoles.resolve(db)])
