"""`slipway audit`: who changed which declared object, and who reported and confirmed restores."""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from slipway_client.cli.options import AsOutput, now
from slipway_client.cli.tables import Field, Output, show
from slipway_client.view import moments


class AuditedKind(StrEnum):
    """Kinds of declared objects, workers with exported states, and the database with its restores and keys."""

    ACCOUNT = "account"
    POOL = "pool"
    CONFIG = "config"
    LEASE_POOL = "lease-pool"
    WORKER = "worker"
    DATABASE = "database"


OfKind = Annotated[AuditedKind | None, typer.Option("--kind", help="Kind of the objects [default: all]")]
OfId = Annotated[str | None, typer.Option("--id", metavar="ID", help="ID of the object [default: all]")]
Most = Annotated[int, typer.Option("-n", metavar="N", min=1, max=1000, help="Maximum number of changes")]
Since = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Age of the oldest change, such as 12h [default: any]")
]


def audit(
    context: typer.Context,
    kind: OfKind = None,
    id_: OfId = None,
    limit: Most = 20,
    since: Since = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """List changes of declared objects, and who made them

    Declarations and commands on accounts, pools, launch configs and lease pools, restores of the database,
    decisions about orphan instances, and exports of Terraform states, the newest first. They are kept for 60 days by
    default. With -o json the changed fields before and after.

    \b
    Examples:
      slipway audit --since 12h
      slipway audit --kind config --id linux-zone-a -n 5
    """
    api = context.obj
    given = {"id": id_, "since": _begin(since), "limit": limit}
    rows: list[dict[str, Any]] = []
    if kind is not AuditedKind.LEASE_POOL:
        rows += api.get("provisioner", "/audit", kind=kind and kind.value, **given)["items"]
    if kind in (None, AuditedKind.LEASE_POOL):
        rows += api.get("lease-broker", "/audit", **given)["items"]
    newest = sorted(rows, key=lambda row: moments.at(row["at"]), reverse=True)[:limit]
    show(newest, FIELDS, output, nothing="no changes")


def _begin(since: str | None) -> str | None:
    try:
        return (now() - timedelta(seconds=moments.seconds(since))).isoformat() if since else None
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(f"--since: {error}") from error


def _change(row: Mapping[str, Any]) -> str:
    """Fields that a change or a command has set; empty for an object that was created or removed as a whole."""
    from slipway_common.declaration.changes import difference

    before, after = row["before"] or {}, row["after"] or {}
    if row["result"] in ("created", "archived"):
        return ""
    return ", ".join(difference(name, before.get(name), value) for name, value in after.items() if value is not None)


FIELDS: Final[tuple[Field, ...]] = (
    ("at", lambda row: moments.clock(moments.at(row["at"]), now())),
    "by",
    "action",
    "kind",
    ("id", lambda row: row["subject_id"]),
    "result",
    ("change", _change),
    ("reason", lambda row: row.get("reason") or ""),
)
