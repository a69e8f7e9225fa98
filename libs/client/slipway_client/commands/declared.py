"""`slipway apply` and `slipway diff`: the deployment as a file declares it."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from slipway_client.http import Api, Failed
from slipway_client.options import AsOutput
from slipway_client.tables import Output, show

if TYPE_CHECKING:
    from slipway_common.strict_yaml import Problem

DIFFERENCE: Final = 3
CHANGE_FIELDS: Final = ("kind", "id", "change", "detail")
NOTHING_TO_CHANGE: Final = "nothing to change"
DECLARED_ALREADY: Final = "something is declared already; nothing was changed"

File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="A slipway.yaml.")]
IfEmpty = Annotated[
    bool, typer.Option("--if-empty", help="Change nothing once any launch config was declared: for starts that repeat.")
]
Speed = Annotated[float, typer.Option(min=0.001, help="Divide every duration by this, as the demo does.")]


class InvalidFile(Exception):
    """A file that cannot count, with its problems."""

    def __init__(self, file: Path, problems: "Sequence[Problem]") -> None:
        super().__init__(str(file))
        self.lines = [
            ": ".join(part for part in (f"{file}:{p.line}" if p.line else str(file), p.path, p.reason) if part)
            for p in problems
        ]


def apply(
    context: typer.Context, file: File, speed: Speed = 1.0, if_empty: IfEmpty = False, output: AsOutput = Output.TABLE
) -> None:
    """Make the deployment what FILE declares. What FILE leaves out is removed; applying twice changes nothing.

    \b
    Examples:
      slipway apply slipway.yaml
      slipway apply slipway.yaml -o json
      slipway apply --if-empty slipway.yaml
    """
    body, api = _declared(file, speed), context.obj
    if if_empty and api.get("provisioner", "/launch-configs")["items"]:  # archived ones are listed too
        show([], CHANGE_FIELDS, output, nothing=DECLARED_ALREADY)
        return
    changes = _changes(api, body)
    if changes:
        api.put("lease-broker", "/lease-pools", body["lease_pools"])
        try:
            api.put("provisioner", "/declaration", body)
        except Failed as error:
            raise Failed(f"{error}\nLease pools are applied already; apply again once this is settled.") from error
    show(changes, CHANGE_FIELDS, output, nothing=NOTHING_TO_CHANGE)


def diff(context: typer.Context, file: File, speed: Speed = 1.0, output: AsOutput = Output.TABLE) -> None:
    """Show what `apply` would change, and change nothing. Exit code 3 when there is a difference.

    \b
    Example:
      slipway diff slipway.yaml || echo "not what is declared"
    """
    changes = _changes(context.obj, _declared(file, speed))
    show(changes, CHANGE_FIELDS, output, nothing=NOTHING_TO_CHANGE)
    if changes:
        raise typer.Exit(DIFFERENCE)


def _declared(file: Path, speed: float) -> dict[str, Any]:
    from slipway_common import declaration
    from slipway_common.strict_yaml import Invalid, Problem

    try:
        declared = declaration.load(file.read_text(encoding="utf-8"))
        return declaration.scaled(declared, speed).model_dump(mode="json")
    except Invalid as error:
        raise InvalidFile(file, error.problems) from error
    except UnicodeDecodeError as error:
        raise InvalidFile(file, [Problem("", f"is not UTF-8 text: {error.reason}")]) from error


def _changes(api: Api, body: dict[str, Any]) -> list[dict[str, Any]]:
    """What both services would change. They refuse here what they would refuse later."""
    lease_pools = api.put("lease-broker", "/lease-pools", body["lease_pools"], dry_run=True)["items"]
    rest = api.put("provisioner", "/declaration", body, dry_run=True)["items"]
    return [
        {"kind": "lease pool", "id": made["id"], "change": made["change"], "detail": _terms(made["fields"])}
        for made in lease_pools
        if made["change"] != "unchanged"
    ] + [{"kind": made["kind"], "id": made["id"], "change": made["action"], "detail": made["detail"]} for made in rest]


def _terms(fields: dict[str, list[Any]]) -> str:
    return ", ".join(f"{name}: {before} → {after}" for name, (before, after) in fields.items() if before is not None)
