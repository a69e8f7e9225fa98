"""The `slipway` command, composed of one module per noun."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from slipway_client.commands import (
    brakes,
    configs,
    declared,
    doctor,
    events,
    imports,
    leases,
    operations,
    pools,
    signals,
    tokens,
    top,
    weights,
    why,
    workers,
)
from slipway_client.commands.declared import InvalidFile
from slipway_client.foreign import printable
from slipway_client.http import KAFKA, SERVICES, Api, Failed


class _Commands(TyperGroup):
    """Turns what commands raise into words on stderr and the exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidFile as error:
            lines, code = error.lines, 2
        except Failed as error:
            lines, code = str(error).split("\n"), error.exit_code
        print(*map(printable, lines), sep="\n", file=sys.stderr)
        raise typer.Exit(code)


app = typer.Typer(cls=_Commands, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(declared.apply)
app.command()(declared.diff)
app.command()(top.top)
app.add_typer(pools.app, name="pool")
app.add_typer(configs.app, name="lc")
app.add_typer(workers.app, name="worker")
app.add_typer(workers.decision, name="decision")
app.add_typer(leases.app, name="lease")
app.add_typer(imports.app, name="import")
app.add_typer(weights.app, name="weights")
app.add_typer(signals.app, name="signal")
app.add_typer(pools.demand, name="demand")
app.command()(brakes.stop_launching)
app.command()(brakes.start_launching)
app.add_typer(events.app, name="events")
app.command()(why.why)
app.command()(doctor.doctor)
app.add_typer(operations.dlq, name="dlq")
app.add_typer(operations.topics, name="topics")
app.add_typer(tokens.app, name="token")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"slipway {version('slipway-client')}")
        raise typer.Exit


@app.callback()
def connect(
    context: typer.Context,
    provisioner: Annotated[str, typer.Option(envvar="SLIPWAY_PROVISIONER_URL")] = SERVICES["provisioner"],
    weight_calculator: Annotated[str, typer.Option(envvar="SLIPWAY_WEIGHT_CALCULATOR_URL")] = SERVICES[
        "weight-calculator"
    ],
    lease_broker: Annotated[str, typer.Option(envvar="SLIPWAY_LEASE_BROKER_URL")] = SERVICES["lease-broker"],
    token: Annotated[str, typer.Option(envvar="SLIPWAY_TOKEN", show_default=False)] = "",
    token_file: Annotated[
        Path | None, typer.Option(envvar="SLIPWAY_TOKEN_FILE", dir_okay=False, help="Holds the token.")
    ] = None,
    kafka: Annotated[
        str, typer.Option(envvar=["KAFKA", "SLIPWAY_KAFKA"], help="Bootstrap servers, host:port,…")
    ] = KAFKA,
    topic_prefix: Annotated[
        str, typer.Option(envvar=["TOPIC_PREFIX", "SLIPWAY_TOPIC_PREFIX"], help="Before every topic's name.")
    ] = "",
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Keep fleets of short-lived machines at the size that their queues ask for.

    \b
    Examples:
      slipway diff slipway.yaml                 what apply would change; exit 3 if anything
      slipway apply slipway.yaml                make it so, all or nothing per service
      slipway pool ls                           pools, what they want and what they have
      slipway worker ls --pool linux -o json    one pool's workers, for programs
      slipway lc pause linux-zone-b --reason maintenance --for 30m
      slipway events tail --pool linux          what happens, as it happens
      slipway why linux                         what a pool has, and what holds it back
      slipway doctor                            whether all works, and what to do
      slipway demand set linux --pending 12 --claimed 3
      slipway token create --name ci --scope demand:write:linux --file tokens.yaml

    Exit codes: 0 done, 1 error, 2 wrong usage or invalid file, 3 a difference was found (diff) or something is wrong
    (doctor).
    """
    urls = {"provisioner": provisioner, "weight-calculator": weight_calculator, "lease-broker": lease_broker}
    if not token and token_file:
        from slipway_common.settings import UnreadableFile, read_value

        try:
            token = read_value("SLIPWAY_TOKEN_FILE", token_file)
        except UnreadableFile as error:
            raise Failed(str(error)) from error
    context.obj = Api(urls, token, kafka=kafka, topic_prefix=topic_prefix)
