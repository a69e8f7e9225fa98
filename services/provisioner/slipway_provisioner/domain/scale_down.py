"""Scale-down: cancels workers that wait for admission first, then stops idle ones, never busy ones. Starts may fail,
so they replace no idle worker before they have registered. Idle workers of draining revisions stop even if they are
wanted, a part at a time, so that their replacements can boot. Surplus that lasts, or exceeds the maximum, leaves also
where no worker is idle for long: idle ones at once, then busy ones after their tasks. Pure."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Final

from slipway_provisioner.domain.pool import Busy, Idle

DRAINED_SHARE_MAX: Final = 0.25
"""Share of the wanted workers that may be missing while idle workers of draining revisions stop."""


def select(
    surplus: int,
    waiting: Sequence[str],
    idle: Sequence[Idle],
    *,
    registered_surplus: int,
    at_once: int,
    idle_timeout_seconds: float,
    now: datetime,
) -> tuple[list[str], list[str]]:
    """(waiting workers to cancel, idle workers to stop), together at most `surplus`, of which `registered_surplus` have
    registered; `at_once` of these stop also before the idle timeout.

    The newest waiting workers come first, since the oldest are admitted next; then the longest idle ones.
    """
    cancel = list(reversed(waiting))[:surplus]
    stop = [
        w.worker_id for place, w in enumerate(idle) if place < at_once or w.left_seconds(now, idle_timeout_seconds) <= 0
    ]
    return cancel, stop[: max(0, min(surplus - len(cancel), registered_surplus))]


def marks(busy: Sequence[Busy], surplus: int) -> tuple[list[str], list[str]]:
    """(busy workers to mark, marks to clear), so that the first `surplus` of them leave after their tasks. Those of
    draining revisions do so without a mark."""
    ordered = sorted(busy, key=lambda w: (not w.draining, not w.marked))
    mark = [w.worker_id for w in ordered[:surplus] if not (w.draining or w.marked)]
    return mark, [w.worker_id for w in ordered[surplus:] if w.marked]


def drained(idle: Sequence[Idle], draining: Collection[str], *, wanted: int, missing: int) -> list[str]:
    """Idle workers of the `draining` revisions to stop now, with `missing` ones that leave or have not registered."""
    ids = [worker.worker_id for worker in idle if worker.config_id in draining]
    return ids[: leaving_room(wanted=wanted, missing=missing)]


def leaving_room(*, wanted: int, missing: int) -> int:
    """Number of workers that may start to leave although they are wanted; at least one leaves at a time."""
    return max(0, max(1, int(wanted * DRAINED_SHARE_MAX)) - missing)
