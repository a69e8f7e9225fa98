"""`slipway export`: the deployment as a declaration."""

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

from slipway_client.cli.tables import as_json
from slipway_client.transport.http import Failed


class Format(StrEnum):
    YAML, JSON = "yaml", "json"


Owner = Annotated[str | None, typer.Option(metavar="NAME", help="Owner of what is printed [default: all owners]")]
AsFormat = Annotated[Format, typer.Option("-o", "--output", help="Output format")]


def export(context: typer.Context, owner: Owner = None, output: AsFormat = Format.YAML) -> None:
    """Print the deployment as a declaration

    Applied, it changes nothing. What several owners declared is printed without metadata; applying that as one file
    takes --adopt.

    \b
    Examples:
      slipway export > slipway.yaml
      slipway export --owner team-a
    """
    from slipway_common.declaration.parsing import ENTRY
    from slipway_common.declaration.strict_yaml import write

    api = context.obj
    rows: dict[str, list[dict[str, Any]]] = {
        "lease_pools": [
            {"owner": row["owner"], "spec": {name: row[name] for name in ENTRY["lease_pools"].model_fields}}
            for row in api.get("lease-broker", "/lease-pools")["items"]
            if not row.get("archived") and owner in (None, row["owner"])
        ],
        **api.get("provisioner", "/declaration", owner=owner),
    }
    owners = {row["owner"] for found in rows.values() for row in found}
    if not owners:
        raise Failed(f"nothing is declared by {owner}" if owner else "nothing is declared")
    declaration: dict[str, Any] = {"version": 1}
    if len(owners) == 1 and (only := owners.pop()):
        declaration["metadata"] = {"owner": only}
    for section, entry in ENTRY.items():
        if found := rows[section]:
            specs = [entry.model_validate(row["spec"]) for row in found]
            declaration[section] = [spec.model_dump(mode="json", exclude_defaults=True) for spec in specs]
    if output is Format.JSON:
        as_json(declaration)
    else:
        sys.stdout.write(write(declaration))
