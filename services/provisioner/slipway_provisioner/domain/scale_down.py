"""Which workers may leave: those that wait for admission first, then idle ones. A busy worker is never told. Pure."""

from collections.abc import Sequence
from datetime import datetime, timedelta

from slipway_provisioner.domain.pool import Idle


def leave(
    surplus: int, waiting: Sequence[str], idle: Sequence[Idle], *, idle_timeout_seconds: float, now: datetime
) -> tuple[list[str], list[str]]:
    """(waiting workers to cancel, idle workers to tell), together at most `surplus`.

    Newest waiting ones go first, since the oldest will be admitted next; longest idle ones go first.
    """
    cancel = list(reversed(waiting))[:surplus]
    ripe = [w.worker_id for w in idle if now - w.since >= timedelta(seconds=idle_timeout_seconds)]
    return cancel, ripe[: surplus - len(cancel)]
