"""`slipway plugins` commands."""

from pathlib import Path
from typing import Annotated, Final

import typer

from slipway_client.cli.options import AsOutput, noun
from slipway_client.cli.tables import Field, Output, show
from slipway_client.transport.plugins import SOCKET, PluginProcess, processes
from slipway_client.view import moments

MEBIBYTE: Final = 1 << 20

app = noun("Inspect plugin processes of slipway-terraform")

FIELDS: Final[tuple[Field[PluginProcess], ...]] = (
    "handle",
    "source",
    "version",
    "pid",
    "state",
    "in_use",
    ("age", lambda row: moments.spelled(row.age_seconds)),
    "invocations",
    ("memory", lambda row: f"{row.memory_bytes / MEBIBYTE:.0f} MiB" if row.memory_bytes else "-"),
)


@app.command("ls")
def list_plugins(
    socket: Annotated[
        Path, typer.Option(metavar="PATH", envvar="SLIPWAY_TERRAFORM_SOCKET", help="Socket of the daemon")
    ] = SOCKET,
    output: AsOutput = Output.TABLE,
) -> None:
    """List provider plugin processes of slipway-terraform

    `handle` is the beginning of a keyed hash of source, version and configuration: equal ones are one configuration.

    \b
    Example:
      slipway plugins ls
    """
    show(processes(socket), FIELDS, output, nothing="no plugin processes", drop=("version", "pid"))
