"""Drains of replaced revisions, with their events."""

from collections.abc import Sequence
from typing import Any, Final

import sqlalchemy as sa

from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, given
from slipway_common.events.launch_config import LaunchConfigDraining
from slipway_common.messaging import outbox
from slipway_provisioner.domain.roll_out import DRAIN_SECONDS_MIN, Drain
from slipway_provisioner.store import configs, marks
from slipway_provisioner.store.configs import OF_NAME
from slipway_provisioner.store.tables import claim, launch_config, worker_pool

C: Final = launch_config.c
P: Final = worker_pool.c
_NOW: Final = sa.func.slipway_clock()
DRAINS: Final = given(*(C[name] for name in Drain.__struct_fields__))
# Claims are kept for a day.
LONGEST_TASK_SECONDS: Final = (
    sa.select(sa.func.max(sa.extract("epoch", sa.func.coalesce(claim.c.ended_at, _NOW) - claim.c.started_at)))
    .where(claim.c.pool_id == C.pool_id)
    .correlate(launch_config)
    .scalar_subquery()
)
DRAIN_SECONDS: Final = sa.func.coalesce(
    DRAINS.c.drain_seconds,
    C.drain_seconds,
    P.drain_seconds,
    sa.func.greatest(sa.literal(DRAIN_SECONDS_MIN, sa.Double), sa.cast(LONGEST_TASK_SECONDS, sa.Double)),
)
DRAIN: Final = Statement(
    sa.update(launch_config)
    .where(C.id == DRAINS.c.id, OF_NAME, P.id == C.pool_id, C.state == "active")
    .values(
        {field: DRAINS.c[field] for field in ("state_reason", "state_by", "replaced_by", "drain_terminate")}
        | {
            "state": "draining",
            "drain_from": _NOW,
            "drain_until": _NOW + sa.func.make_interval(0, 0, 0, 0, 0, 0, DRAIN_SECONDS),
            "drain_alerted": False,
            "revision": C.revision + 1,
        }
    )
    .returning(C.state_reason, C.state_by, C.drain_terminate, *configs.FIELDS)
)


async def drain(tx: Connection, drains: Sequence[Drain]) -> list[str]:
    """Drain active revisions: they launch nothing more, and their workers leave after their task. Returns the ids of
    those that were active. Their names are locked."""
    if not drains:
        return []
    rows = [dict(row) for row in await tx.fetch(DRAIN.text, *DRAIN.rows(sorted(drains, key=lambda drain: drain.id)))]
    await outbox.enqueue(tx, [_draining(row) for row in rows])
    await marks.dirty(tx, {row["pool_id"] for row in rows}, reason="draining")
    return [row["id"] for row in rows]


def _draining(row: dict[str, Any]) -> LaunchConfigDraining:
    values = dict(row)
    reason, by, terminate = (values.pop(name) for name in ("state_reason", "state_by", "drain_terminate"))
    return LaunchConfigDraining(**configs.state(values), reason=reason, by=by, terminate=terminate)
