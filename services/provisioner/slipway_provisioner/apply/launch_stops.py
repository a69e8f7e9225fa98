"""Launch stops that people set and lift, recorded in the audit."""

from datetime import datetime
from typing import Final

from slipway_common.base.audited import AuditedKind
from slipway_common.database import audit
from slipway_common.database.postgres import Connection
from slipway_provisioner.store import launch_stops

EVERYTHING: Final = "everything"
KINDS: Final = {"all": AuditedKind.DEPLOYMENT, "account": AuditedKind.ACCOUNT, "pool": AuditedKind.POOL}
"""Kind of the thing that a launch stop of a scope is recorded for."""


async def stop(tx: Connection, scope: str, scope_id: str, *, reason: str, by: str, until: datetime | None) -> None:
    """Set a launch stop, or replace its reason and end."""
    await launch_stops.put(tx, scope, scope_id, reason=reason, by=by, until=until)
    subject = scope_id or EVERYTHING
    await audit.record_command(
        tx, KINDS[scope], subject, "stop-launching", by=by, reason=reason, launching=False, until=until
    )


async def start(tx: Connection, scope: str, scope_id: str, *, reason: str, by: str) -> bool:
    """Lift a launch stop; False if none was set."""
    lifted = await launch_stops.lift(tx, scope, scope_id)
    if lifted is None:
        return False
    before = {"launching": False, "stopped_by": lifted["by"], "stop_reason": lifted["reason"]}
    await audit.record_command(
        tx, KINDS[scope], scope_id or EVERYTHING, "start-launching", by=by, reason=reason, before=before, launching=True
    )
    return True
