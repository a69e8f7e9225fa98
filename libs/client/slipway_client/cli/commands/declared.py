"""`slipway apply` and `slipway diff`: the deployment as declared in a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from slipway_client.cli.options import AsOutput
from slipway_client.cli.tables import Output, show
from slipway_client.transport.http import Api, Failed

if TYPE_CHECKING:
    from slipway_common.declaration.strict_yaml import DocumentProblem

DIFFERENCE: Final = 3
CHANGE_FIELDS: Final = ("kind", "id", "change", "detail")
NOTHING_TO_CHANGE: Final = "no changes"
DECLARED_ALREADY: Final = "the deployment already declares launch configs; nothing was changed (--if-empty)"

File = Annotated[
    Path,
    typer.Argument(
        metavar="FILE", exists=True, dir_okay=False, readable=True, help="Declaration, such as slipway.yaml"
    ),
]
IfEmpty = Annotated[bool, typer.Option("--if-empty", help="No change if a launch config is already declared")]
Speed = Annotated[float, typer.Option(metavar="FACTOR", min=0.001, help="Divisor of all durations, as in the demo")]


class InvalidFile(Exception):
    """Invalid file, with its problems."""

    def __init__(self, file: Path, problems: "Sequence[DocumentProblem]") -> None:
        super().__init__(str(file))
        self.lines = [
            ": ".join(part for part in (f"{file}:{p.line}" if p.line else str(file), p.path, p.reason) if part)
            for p in problems
        ]


def apply(
    context: typer.Context, file: File, speed: Speed = 1.0, if_empty: IfEmpty = False, output: AsOutput = Output.TABLE
) -> None:
    """Apply a declaration to the deployment

    Objects that FILE leaves out are removed. Applying a file twice changes nothing.

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
            raise Failed(f"{error}\nThe lease pools were applied; fix this and apply again.") from error
    show(changes, CHANGE_FIELDS, output, nothing=NOTHING_TO_CHANGE)


def diff(context: typer.Context, file: File, speed: Speed = 1.0, output: AsOutput = Output.TABLE) -> None:
    """Show the changes that `apply` would make

    Exit code 3 if there are any.

    \b
    Example:
      slipway diff slipway.yaml || echo "deployment differs from slipway.yaml"
    """
    changes = _changes(context.obj, _declared(file, speed))
    show(changes, CHANGE_FIELDS, output, nothing=NOTHING_TO_CHANGE)
    if changes:
        raise typer.Exit(DIFFERENCE)


def _declared(file: Path, speed: float) -> dict[str, Any]:
    from slipway_common.declaration.parsing import load
    from slipway_common.declaration.scaling import scaled
    from slipway_common.declaration.strict_yaml import DocumentProblem, Invalid

    try:
        return scaled(load(file.read_text(encoding="utf-8")), speed).model_dump(mode="json")
    except Invalid as error:
        raise InvalidFile(file, error.problems) from error
    except UnicodeDecodeError as error:
        raise InvalidFile(file, [DocumentProblem("", f"is not UTF-8 text: {error.reason}")]) from error


def _changes(api: Api, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Changes that both services would make. Invalid declarations are refused here already."""
    lease_pools = api.put("lease-broker", "/lease-pools", body["lease_pools"], dry_run=True)["items"]
    rest = api.put("provisioner", "/declaration", body, dry_run=True)["items"]
    return [
        {"kind": "lease pool", "id": made["id"], "change": made["change"], "detail": _terms(made["fields"])}
        for made in lease_pools
        if made["change"] != "unchanged"
    ] + [{"kind": made["kind"], "id": made["id"], "change": made["action"], "detail": made["detail"]} for made in rest]


def _terms(fields: dict[str, list[Any]]) -> str:
    return ", ".join(f"{name}: {before} → {after}" for name, (before, after) in fields.items() if before is not None)
