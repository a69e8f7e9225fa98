"""Scale-down: cancels workers that wait for admission first, then stops idle ones, never busy ones. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from slipway_provisioner.domain.pool import Idle


def select(
    surplus: int, waiting: Sequence[str], idle: Sequence[Idle], *, idle_timeout_seconds: float, now: datetime
) -> tuple[list[str], list[str]]:
    """(waiting workers to cancel, idle workers to stop), together at most `surplus`.

    The newest waiting workers come first, since the oldest are admitted next; then the longest idle ones.
    """
    cancel = list(reversed(waiting))[:surplus]
    overdue = [w.worker_id for w in idle if now - w.since >= timedelta(seconds=idle_timeout_seconds)]
    return cancel, overdue[: surplus - len(cancel)]
