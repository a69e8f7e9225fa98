"""The `slipway` command, composed of one module per noun."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup, TyperOption

from slipway_client.cli import nouns
from slipway_client.transport import trust
from slipway_client.transport.failed import KAFKA, SERVICES, Failed
from slipway_common.base.sanitize import printable

COMPLETION_HELP: Final = {
    "install_completion": "Install completion for the current shell",
    "show_completion": "Print the completion script of the current shell",
    "help": "Show this message and exit",
}


VERBS: Final = {"get": "ls", "list": "ls", "ls": "ls", "describe": "show", "show": "show"}
"""Verbs with which commands of other tools begin, and those of `slipway`."""


class _Commands(TyperGroup):
    """Loads the modules of the command that runs, prints errors on stderr and exits with their exit code."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands: Any = nouns.Commands()

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in nouns.COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Failed as error:
            print(*map(printable, str(error).split("\n")), sep="\n", file=sys.stderr)
            raise typer.Exit(error.exit_code) from None

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
    ca: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", envvar=trust.CA, dir_okay=False, help="Trusted authorities in PEM [default: the system's]"
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar=trust.CERTIFICATE, dir_okay=False, help="Client certificate in PEM"),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", envvar=trust.KEY, dir_okay=False, help="Key of the certificate [default: in its file]"
        ),
    ] = None,
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
    # In the environment, so that commands that this one starts trust the same.
    for variable, file in ((trust.CA, ca), (trust.CERTIFICATE, certificate), (trust.KEY, key)):
        if file is not None:
            os.environ[variable] = str(file)
    from slipway_client.transport.http import Api

    context.obj = Api(urls, token, token_file=token_file, kafka=kafka, topic_prefix=topic_prefix)
