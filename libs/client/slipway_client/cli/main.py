"""The `slipway` command, composed of one module per noun."""

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup, TyperOption

from slipway_client.cli.commands import (
    account_limits,
    accounts,
    alerts,
    audit,
    configs,
    declared,
    demand,
    doctor,
    errors,
    events,
    export,
    imports,
    launch_stops,
    leases,
    operations,
    plugins,
    pool_changes,
    pools,
    providers,
    recovery,
    signals,
    states,
    tokens,
    top,
    user_data,
    weights,
    why,
    workers,
)
from slipway_client.cli.invalid_file import InvalidFile
from slipway_client.transport.http import KAFKA, SERVICES, Api, Failed
from slipway_common.base.sanitize import printable

COMPLETION_HELP: Final = {
    "install_completion": "Install completion for the current shell",
    "show_completion": "Print the completion script of the current shell",
    "help": "Show this message and exit",
}


VERBS: Final = {"get": "ls", "list": "ls", "ls": "ls", "describe": "show", "show": "show"}
"""Verbs with which commands of other tools begin, and those of `slipway`."""


class _Commands(TyperGroup):
    """Prints errors of commands on stderr and exits with their exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidFile as error:
            lines, code = error.lines, 2
        except Failed as error:
            lines, code = str(error).split("\n"), error.exit_code
        print(*map(printable, lines), sep="\n", file=sys.stderr)
        raise typer.Exit(code)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments name. `get pools`, as with other tools, is refused with the command to run."""
        verb, noun = (*args, "", "")[:2]
        if verb in VERBS and (group := noun.lower().removesuffix("s")) in self.commands:
            ctx.fail(f"No such command '{verb}'. The noun comes first: slipway {group} {VERBS[verb]}")
        return super().resolve_command(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        """Parameters, with short help for those that typer adds."""
        params: list[Any] = super().get_params(ctx)
        for param in params:
            if isinstance(param, TyperOption) and param.name in COMPLETION_HELP:
                param.help = COMPLETION_HELP[param.name]
        return params


app = typer.Typer(cls=_Commands, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
app.command()(declared.apply)
app.command()(declared.diff)
app.command()(export.export)
app.command("user-data")(user_data.user_data)
app.command()(top.top)
pools.app.add_typer(pool_changes.app)
app.add_typer(pools.app, name="pool")
app.add_typer(configs.app, name="lc")
workers.app.command("state")(states.export_state)
workers.app.command("unlock")(states.unlock)
app.add_typer(workers.app, name="worker")
app.add_typer(workers.decision, name="decision")
app.add_typer(errors.app, name="error")
accounts.app.add_typer(account_limits.app)
app.add_typer(accounts.app, name="account")
app.add_typer(states.app, name="state-key")
app.add_typer(providers.app, name="provider")
app.add_typer(plugins.app, name="plugins")
app.add_typer(leases.app, name="lease")
app.add_typer(imports.app, name="import")
app.add_typer(weights.app, name="weights")
app.add_typer(signals.app, name="signal")
app.add_typer(demand.app, name="demand")
app.command()(launch_stops.stop_launching)
app.command()(launch_stops.start_launching)
app.add_typer(events.app, name="events")
app.add_typer(alerts.app, name="alert")
app.command()(audit.audit)
app.command()(why.why)
app.command()(doctor.doctor)
app.add_typer(operations.dlq, name="dlq")
app.add_typer(operations.topics, name="topics")
app.add_typer(recovery.app, name="db")
app.add_typer(tokens.app, name="token")


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"slipway {version('slipway-client')}")
        raise typer.Exit


@app.callback()
def connect(
    context: typer.Context,
    provisioner: Annotated[
        str, typer.Option(metavar="URL", envvar="SLIPWAY_PROVISIONER_URL", help="URL of the provisioner")
    ] = SERVICES["provisioner"],
    weight_calculator: Annotated[
        str, typer.Option(metavar="URL", envvar="SLIPWAY_WEIGHT_CALCULATOR_URL", help="URL of the weight-calculator")
    ] = SERVICES["weight-calculator"],
    lease_broker: Annotated[
        str, typer.Option(metavar="URL", envvar="SLIPWAY_LEASE_BROKER_URL", help="URL of the lease-broker")
    ] = SERVICES["lease-broker"],
    token: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="TOKEN",
            envvar="SLIPWAY_TOKEN",
            show_default=False,
            help="Access token; `ps` shows it if passed here",
        ),
    ] = "",
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="SLIPWAY_TOKEN_FILE", dir_okay=False, help="File with the access token"),
    ] = None,
    kafka: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", envvar=["KAFKA", "SLIPWAY_KAFKA"], help="Kafka bootstrap servers"),
    ] = KAFKA,
    topic_prefix: Annotated[
        str,
        typer.Option(
            metavar="PREFIX", envvar=["TOPIC_PREFIX", "SLIPWAY_TOPIC_PREFIX"], help="Prefix of all topic names"
        ),
    ] = "",
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit")
    ] = False,
) -> None:
    """Autoscale fleets of short-lived workers to their queues

    \b
    Examples:
      slipway diff slipway.yaml                 show pending changes; exit 3 if any
      slipway apply slipway.yaml                apply them, atomically per service
      slipway pool ls                           list worker pools
      slipway worker ls --pool linux -o json    list the workers of a pool as JSON
      slipway lc pause linux-zone-b --reason maintenance --for 30m
      slipway events tail --pool linux          follow the events of a pool
      slipway pool set-image linux linux-2      replace the image of a pool
      slipway why linux                         explain the size of a pool
      slipway doctor                            check the deployment
      slipway demand set linux --pending 12 --claimed 3
      slipway token create --name ci --scope demand:write:linux --file tokens.yaml

    Exit codes: 0 success, 1 error, 2 usage error or invalid file, 3 changes found (diff) or problems found (doctor),
    4 confirmation needed.
    """
    urls = {"provisioner": provisioner, "weight-calculator": weight_calculator, "lease-broker": lease_broker}
    context.obj = Api(urls, token, token_file=token_file, kafka=kafka, topic_prefix=topic_prefix)
