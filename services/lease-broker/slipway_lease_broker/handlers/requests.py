"""Consumer of lease commands: applies a batch of the request topic and decides in the same transaction.

Confirms, renewals and releases are answered here, since they need no decision: under the pool's lock a lease is either
live or ended. For lease pools with changed units or requests the decision is made at once, by the function that the
decide loop uses. The loop handles deadlines, and batches that are too large for one transaction.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from slipway_common.database.postgres import Connection, is_infrastructure
from slipway_common.messaging.records import Received
from slipway_lease_broker.admission import RETRY_SECONDS, Admissions
from slipway_lease_broker.domain.exchange import Submission
from slipway_lease_broker.domain.sender import Sender

# The locks of a batch are held until it commits: a batch with more due pools is left to the loop.
AT_ONCE_MAX: Final = 16


class LeaseCommandHandler:
    """Applies batches of lease commands, and decides at once for up to `at_once_max` pools that become due."""

    def __init__(self, admissions: Admissions, *, at_once_max: int = AT_ONCE_MAX) -> None:
        self._admissions = admissions
        self._at_once_max = at_once_max
        # Lease pool → until when its decisions are left to the loop after one failed here. Without this, commands would
        # be dead-lettered because of a decision that fails.
        self._failed: dict[str, datetime] = {}

    async def handle(self, tx: Connection, received: Sequence[Received]) -> Callable[[], None]:
        """Apply a batch of commands in order; returns a function to call after the commit. Raises BadEvent for a
        command that can never be applied."""
        commands = [
            Submission(
                command=record.event,
                sender=Sender(name=record.source, over_kafka=True, adapter=True),
                traceparent=record.traceparent,
                answered=False,
            )
            for record in received
            if record.event is not None
        ]
        admission = self._admissions.begin(tx)
        await admission.lock({submission.command.lease_pool_id for submission in commands})
        try:
            await admission.apply(commands, at_once_max=self._at_once_max, put_off=self._failed)
        except Exception as error:
            if not is_infrastructure(error):
                self._failed |= dict.fromkeys(admission.deciding, admission.now + timedelta(seconds=RETRY_SECONDS))
            raise
        return admission.committed
