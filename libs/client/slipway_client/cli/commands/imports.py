"""`slipway import` commands: import of declarations of other systems."""

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from slipway_api.http.lease_pools import DeclaredSlots, DeclareSlots, SlotsChange
from slipway_client.cli.commands.declared import NOTHING_TO_CHANGE
from slipway_client.cli.invalid_file import InvalidFile
from slipway_client.cli.options import AsOutput, api_of, noun, seconds_of
from slipway_client.cli.tables import Field, Output, as_json, table
from slipway_common.base.sanitize import printable
from slipway_common.base.text import listed

app: Final = noun("Import declarations of other systems")

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", exists=True, dir_okay=False, readable=True, help="Boskos resources, as in _boskos.yaml"
    ),
]


@app.callback()
def imports() -> None:
    pass


@app.command("boskos")
def boskos(
    context: typer.Context,
    file: File,
    hold: Annotated[str, typer.Option("--hold", metavar="DURATION", help="Hold of new lease pools")] = "1d",
    ttl: Annotated[str, typer.Option(metavar="DURATION", help="TTL of leases in new lease pools")] = "30m",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Preview of the changes; nothing is applied")] = False,
    output: AsOutput = Output.TABLE,
) -> None:
    """Import Boskos resources as slots of lease pools

    Each resource type becomes a lease pool of that name. Importing a file twice changes nothing; a slot that FILE no
    longer lists is removed, if it is leased once it is released; types that FILE does not list are not changed.

    \b
    Examples:
      slipway import boskos --dry-run _boskos.yaml
      slipway import boskos --hold 4h --ttl 30m _boskos.yaml
    """
    from slipway_client.cli.boskos_file import resources
    from slipway_client.cli.declarations import text_of
    from slipway_common.declaration.strict_yaml import Invalid

    try:
        found = resources(text_of(file))
    except Invalid as error:
        raise InvalidFile((file, error)) from error
    body = DeclareSlots(
        slots=found.slots, hold_seconds=seconds_of("--hold", hold), ttl_seconds=seconds_of("--ttl", ttl)
    )
    read = api_of(context).read(DeclaredSlots, "lease-broker", "/slots", method="PUT", body=body, dry_run=dry_run)
    items = read.value.items
    changed = [item for item in items if item.result != "unchanged" or item.added or item.removed or item.restored]
    new = [item.id for item in items if item.result in {"created", "reactivated"}]
    for note in [*found.notes, *map(_kept, items), *([_declare(new)] if new else [])]:
        if note:
            print(printable(note), file=sys.stderr)
    if output is Output.JSON:
        as_json(read.sent["items"])
    else:
        table(changed, CHANGES, nothing=NOTHING_TO_CHANGE)


CHANGES: Final[tuple[Field[SlotsChange], ...]] = (
    ("lease pool", lambda row: row.id),
    "result",
    ("limit", lambda row: "unchanged" if row.limit is None else row.limit),
    ("slots added", lambda row: listed(row.added)),
    ("slots removed", lambda row: listed(row.removed)),
    ("slots listed again", lambda row: listed(row.restored)),
)


def _kept(item: SlotsChange) -> str:
    if not item.kept:
        return ""
    return f"{item.id}: no longer listed, but still leased: {listed(item.kept)}; removed once released"


def _declare(new: list[str]) -> str:
    return (
        f"declare {listed(new)} in slipway.yaml too, which then owns them: `slipway apply --prune` removes the others"
    )
