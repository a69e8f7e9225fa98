"""`slipway apply` and `slipway diff`: the deployment as declared in files."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Final, TextIO

import typer

from slipway_api.http.lease_pools import DeclaredLeasePools
from slipway_api.http.provisioner.declaration import DeclarationResult
from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_client.cli import confirming
from slipway_client.cli.options import AsOutput, DrainFor, Replace, Terminate, api_of, now, roll_out
from slipway_client.cli.tables import Output, as_json, show, table
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import Api, Parameter
from slipway_client.view.replaced import Replacement, lines, names_of, replacements, with_replacements
from slipway_common.base.sanitize import printable

if TYPE_CHECKING:
    from slipway_client.cli.declarations import Declarations

DIFFERENCE: Final = 3
POOLS_MAX: Final = 20
NOTHING_TO_CHANGE: Final = "no changes"
DECLARED_ALREADY: Final = "the deployment already declares launch configs; nothing was changed (--if-empty)"
# A declaration of 50 MB is read by a service for minutes.
TIMEOUT_SECONDS: Final = 900.0

Files = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[FILE]...", show_default=False, help="Declarations, such as slipway.yaml; - for stdin"),
]
From = Annotated[
    list[Path] | None,
    typer.Option("-f", "--file", metavar="FILE|DIR", show_default=False, help="Declaration, or folder of declarations"),
]
IfEmpty = Annotated[bool, typer.Option("--if-empty", help="No change if a launch config is already declared")]
Speed = Annotated[float, typer.Option(metavar="FACTOR", min=0.001, help="Divisor of all durations, as in the demo")]
Prune = Annotated[bool, typer.Option("--prune", help="Removal of what no file declares, of any owner")]
Adopt = Annotated[bool, typer.Option("--adopt", help="Takeover of what other owners declared")]
DefaultOwner = Annotated[
    str | None,
    typer.Option("--owner", metavar="NAME", help="Owner without metadata.owner [default: the file's name]"),
]

Result = DeclaredLeasePools | DeclarationResult
Send = Callable[..., Result]


def apply(
    context: typer.Context,
    files: Files = None,
    from_: From = None,
    prune: Prune = False,
    adopt: Adopt = False,
    confirm: confirming.Confirm = None,
    replace: Replace = None,
    drain_for: DrainFor = None,
    terminate: Terminate = False,
    owner: DefaultOwner = None,
    speed: Speed = 1.0,
    if_empty: IfEmpty = False,
    output: AsOutput = Output.TABLE,
) -> None:
    """Apply declarations to the deployment

    Removes what the same owner (metadata.owner, else the file's name) declared before and now leaves out; a section
    that is absent is not changed. All files are applied together. Applying a file twice changes nothing.

    \b
    Examples:
      slipway apply slipway.yaml
      slipway apply -f declarations/ -o json
      generate | slipway apply --owner generator -
      slipway apply --if-empty slipway.yaml
      slipway apply slipway.yaml --replace now             a secret has leaked
      slipway apply slipway.yaml --confirm 3f2c9a81d07e    dangerous changes, as shown by diff
    """
    api = api_of(context).within(TIMEOUT_SECONDS)
    if if_empty and api.items(LaunchConfig, "provisioner", "/launch-configs", all=True):
        show([], (), output, nothing=DECLARED_ALREADY)
        return
    planned = _Plan(api, _read(files, from_, speed, owner), prune, adopt, roll_out(replace, drain_for, terminate))
    if planned.dangers and confirm != planned.digest:
        command = confirming.command_line(context, "apply")
        raise confirming.ConfirmationNeeded(command, planned.changes, planned.more, planned.dangers, planned.digest)
    names = names_of(planned.changes)
    before = api.items(LaunchConfig, "provisioner", "/launch-configs", name=names) if names else []
    planned.carry_out()
    after = api.items(LaunchConfig, "provisioner", "/launch-configs", name=names) if names else []
    planned.show(output, replacements(before, after, planned.changes))


def diff(
    context: typer.Context,
    files: Files = None,
    from_: From = None,
    prune: Prune = False,
    adopt: Adopt = False,
    replace: Replace = None,
    drain_for: DrainFor = None,
    terminate: Terminate = False,
    owner: DefaultOwner = None,
    speed: Speed = 1.0,
    output: AsOutput = Output.TABLE,
) -> None:
    """Show the changes that `apply` would make

    Exit code 3 if there are any. Dangerous ones are followed by the command that makes them.

    \b
    Examples:
      slipway diff slipway.yaml || echo "deployment differs from slipway.yaml"
      slipway diff -f declarations/
    """
    api = api_of(context).within(TIMEOUT_SECONDS)
    planned = _Plan(api, _read(files, from_, speed, owner), prune, adopt, roll_out(replace, drain_for, terminate))
    planned.show(output)
    if planned.dangers:
        command = confirming.command_line(context, "apply")
        _print(confirming.confirmation(command, planned.dangers, planned.digest), sys.stderr)
    if planned.changes:
        raise typer.Exit(DIFFERENCE)


class _Plan:
    """Changes that the services would make, each as a dry run. Invalid declarations are refused here already."""

    def __init__(
        self, api: Api, declared: "Declarations", prune: bool, adopt: bool, replacing: Mapping[str, Parameter]
    ) -> None:
        from slipway_common.declaration.changes import combined_digest

        declared.check_references(api)
        paced, self.hints = declared.pace_launches(api, prune)
        how = {"prune": prune or None, "adopt": adopt or None}
        self._send: dict[str, Send] = {}  # lease pools first, which accounts refer to
        if declared.has_lease_pools:
            self._send["lease-broker"] = lambda **given: api.put(
                DeclaredLeasePools, "lease-broker", "/lease-pools", declared.lease_pools(), **how, **given
            )
        if declared.has_others:
            self._send["provisioner"] = lambda **given: api.put(
                DeclarationResult, "provisioner", "/declaration", declared.lines, **how, **replacing, **given
            )
        self._answers = {service: send(dry_run=True) for service, send in self._send.items()}
        answers = self._answers.values()
        self.changes = [row for answer in answers for row in answer.items if row.result != "unchanged"]
        self.paced = [paced[row.id] for row in self.changes if row.kind == "lease pool" and row.id in paced]
        self.more = sum(answer.more for answer in answers)
        self.dangers = [danger for answer in answers for danger in answer.dangers]
        results = [answer for answer in answers if isinstance(answer, DeclarationResult)]
        self.previews = [
            f"launch config {row.config}: {row.problem}" for answer in results for row in answer.previews or ()
        ]
        self.costs = [row.text for answer in results for row in answer.costs]
        self.unpriced = [row.text for answer in results for row in answer.unpriced]
        self.digest = combined_digest([answer.digest for answer in answers])

    def show(self, output: Output, replaced: Mapping[str, Replacement] = MappingProxyType({})) -> None:
        """Print the changes; those that the services only counted are mentioned. `replaced`: what has been replaced."""
        if output is Output.JSON:
            as_json(with_replacements(self.changes, replaced))
        else:
            table(self.changes, confirming.CHANGE_FIELDS, nothing=NOTHING_TO_CHANGE)
            _print(lines(replaced, now()), sys.stdout)
            _print(_first(self.paced, "launches in"), sys.stdout)
            _print(_first(self.costs, "the costs of"), sys.stdout)
        _print(_first(self.unpriced, "launches without a price in"), sys.stderr)
        _print(self.hints, sys.stderr)
        _print(self.previews, sys.stderr)
        if self.more:
            print(f"and {self.more:,} more changes, which are not listed", file=sys.stderr)

    def carry_out(self) -> None:
        """Make the changes, in one service after the other."""
        applied = False
        for service, answer in self._answers.items():
            if answer.items:
                try:
                    self._send[service](confirm=answer.digest)
                except Failed as error:
                    text = str(error)
                    if error.slug == confirming.REQUIRED:
                        text += "\nThe deployment has changed since the check; see `slipway diff`."
                    if applied:
                        text += "\nThe lease pools were applied; fix this and apply again."
                    raise Failed(text, error.slug, error.status, path=error.path) from error
                applied = True


def _print(sentences: Iterable[str], to: TextIO) -> None:
    for sentence in sentences:
        print(printable(sentence), file=to)


def _first(sentences: Sequence[str], about: str) -> list[str]:
    """The first sentences of many, each about a pool, and the number of further pools."""
    more = len(sentences) - POOLS_MAX
    return [*sentences[:POOLS_MAX], *([f"and {about} {more:,} more pools"] if more > 0 else [])]


def _read(files: list[Path] | None, from_: list[Path] | None, speed: float, owner: str | None) -> "Declarations":
    from slipway_client.cli.declarations import Declarations, files_of

    for file in files or ():
        if file.is_dir():
            raise typer.BadParameter(f"{file} is a folder; -f {file} applies the declarations in it")
    declared = Declarations()
    declared.read(files_of([*(files or ()), *(from_ or ())]), speed, owner)
    return declared
