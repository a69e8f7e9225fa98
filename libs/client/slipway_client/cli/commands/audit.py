"""`slipway audit`: the writes of people and pipelines."""

from typing import Annotated, Final

import typer

from slipway_api.http.service import AuditEntry
from slipway_client.cli.options import AsOutput, Limit, ago, api_of, clock
from slipway_client.cli.tables import Field, Output, show
from slipway_common.base.audited import AuditedKind

OfKind = Annotated[AuditedKind | None, typer.Option("--kind", help="Kind of the subjects [default: all]")]
OfSubject = Annotated[str | None, typer.Option("--subject", metavar="ID", help="ID of the subject [default: all]")]
OfCaller = Annotated[str | None, typer.Option("--by", metavar="TOKEN", help="Name of the token [default: all]")]
Since = Annotated[
    str | None, typer.Option(metavar="DURATION", help="Age of the oldest change, such as 12h [default: any]")
]


def audit(
    context: typer.Context,
    kind: OfKind = None,
    subject: OfSubject = None,
    by: OfCaller = None,
    limit: Limit = 20,
    since: Since = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """List the writes of people and pipelines

    Declarations, commands, launch stops, signals, decisions after a restore, settled dead letters and positions,
    of all services, the newest first. They are kept for 60 days by default. With -o json also the address that each
    came from, and the changed fields before and after.

    \b
    Examples:
      slipway audit --since 12h
      slipway audit --kind config --subject linux-zone-a -n 5
      slipway audit --by ci-deploy
    """
    begin = ago("--since", since)
    rows, errors = api_of(context).list_all(
        AuditEntry, "/audit", kind=kind and kind.value, subject=subject, by=by, since=begin, limit=limit + 1
    )
    newest = sorted(rows, key=lambda row: row.value.at, reverse=True)
    show(newest, FIELDS, output, nothing="no changes", limit=limit, errors=errors)


def _change(row: AuditEntry) -> str:
    """Fields that a change or a command has set; empty for a thing that was created or removed as a whole."""
    from slipway_common.declaration.changes import difference, setting

    before, after = row.before or {}, row.after or {}
    if row.result in ("created", "archived"):
        return ""
    set_ = {name: value for name, value in after.items() if value is not None}
    return ", ".join(
        setting(name, value) if row.before is None else difference(name, before.get(name), value)
        for name, value in set_.items()
        if value != "" or before.get(name)  # a field that was and stays empty has not changed
    )


FIELDS: Final[tuple[Field[AuditEntry], ...]] = (
    ("at", lambda row: clock(row.at)),
    "by",
    "action",
    "kind",
    ("subject", lambda row: row.subject_id),
    "result",
    ("change", _change),
    "reason",
)
