"""The `slipway` command. Exit codes: 0 done, 1 error, 2 wrong usage or invalid file, 3 a difference was found."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from slipway_client import operations, tokens
from slipway_client.http import SERVICES, Api, Failed
from slipway_client.tables import Output, show
from slipway_common import declaration
from slipway_common.clock import utc_now
from slipway_common.strict_yaml import Invalid, Problem

DIFFERENCE: Final = 3
CHANGE_FIELDS: Final = ("kind", "id", "change", "detail")
NOTHING_TO_CHANGE: Final = "nothing to change"

File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, readable=True, help="A slipway.yaml.")]
Speed = Annotated[float, typer.Option(min=0.001, help="Divide every duration by this, as the demo does.")]
AsOutput = Annotated[Output, typer.Option("-o", "--output", help="A table for people or JSON for programs.")]
OfPool = Annotated[str | None, typer.Option("--pool", help="Only this pool's.")]


class InvalidFile(Exception):
    """A file that cannot count, with its problems."""

    def __init__(self, file: Path, problems: Sequence[Problem]) -> None:
        super().__init__(str(file))
        self.lines = [
            ": ".join(part for part in (f"{file}:{p.line}" if p.line else str(file), p.path, p.reason) if part)
            for p in problems
        ]


class _Commands(TyperGroup):
    """Turns what commands raise into words on stderr and the exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InvalidFile as error:
            lines, code = error.lines, 2
        except Failed as error:
            lines, code = [str(error)], 1
        print(*lines, sep="\n", file=sys.stderr)
        raise typer.Exit(code)


app = typer.Typer(cls=_Commands, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
pool_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Worker pools.")
config_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Launch configs.")
worker_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Workers.")
lease_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Leases.")
demand_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Demand of worker pools.")
token_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Access tokens.")
app.add_typer(pool_app, name="pool")
app.add_typer(config_app, name="lc")
app.add_typer(worker_app, name="worker")
app.add_typer(lease_app, name="lease")
app.add_typer(demand_app, name="demand")
app.add_typer(token_app, name="token")
app.add_typer(operations.dlq, name="dlq")
app.add_typer(operations.topics, name="topics")


@app.callback()
def connect(
    context: typer.Context,
    provisioner: Annotated[str, typer.Option(envvar="SLIPWAY_PROVISIONER_URL")] = SERVICES["provisioner"],
    weight_calculator: Annotated[str, typer.Option(envvar="SLIPWAY_WEIGHT_CALCULATOR_URL")] = SERVICES[
        "weight-calculator"
    ],
    lease_broker: Annotated[str, typer.Option(envvar="SLIPWAY_LEASE_BROKER_URL")] = SERVICES["lease-broker"],
    token: Annotated[str, typer.Option(envvar="SLIPWAY_TOKEN", show_default=False)] = "",
) -> None:
    """Keep fleets of short-lived machines at the size that their queues ask for.

    \b
    Examples:
      slipway diff slipway.yaml                 what apply would change; exit 3 if anything
      slipway apply slipway.yaml                make it so, all or nothing per service
      slipway pool ls                           pools, what they want and what they have
      slipway worker ls --pool linux -o json    one pool's workers, for programs
      slipway demand set linux --pending 12 --claimed 3
      slipway token create --name ci --scope demand:write:linux --file tokens.yaml

    Exit codes: 0 done, 1 error, 2 wrong usage or invalid file, 3 a difference was found.
    """
    urls = {"provisioner": provisioner, "weight-calculator": weight_calculator, "lease-broker": lease_broker}
    context.obj = Api(urls, token)


@app.command()
def apply(context: typer.Context, file: File, speed: Speed = 1.0, output: AsOutput = Output.TABLE) -> None:
    """Make the deployment what FILE declares. What FILE leaves out is removed; applying twice changes nothing.

    \b
    Examples:
      slipway apply slipway.yaml
      slipway apply slipway.yaml -o json
    """
    body, api = _declared(file, speed), context.obj
    changes = _changes(api, body)
    if changes:
        api.put("lease-broker", "/lease-pools", body["lease_pools"])
        try:
            api.put("provisioner", "/declaration", body)
        except Failed as error:
            raise Failed(f"{error}\nLease pools are applied already; apply again once this is settled.") from error
    show(changes, CHANGE_FIELDS, output, nothing=NOTHING_TO_CHANGE)


@app.command()
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


@pool_app.command("ls")
def list_pools(context: typer.Context, output: AsOutput = Output.TABLE) -> None:
    """List worker pools: what they want and what they have.

    \b
    Example:
      slipway pool ls
    """
    rows = context.obj.get("provisioner", "/pools")["items"]
    fields = (
        "id",
        "mode",
        "min_capacity",
        "max_capacity",
        "pending",
        "claimed",
        "wanted",
        "serving",
        "running",
        "leaving",
    )
    show(rows, fields, output, nothing="no worker pools")


@config_app.command("ls")
def list_launch_configs(context: typer.Context, pool: OfPool = None, output: AsOutput = Output.TABLE) -> None:
    """List launch configs with the weights in force; while `circuit` is closed only probes launch there.

    \b
    Example:
      slipway lc ls --pool linux
    """
    rows = context.obj.get("provisioner", "/launch-configs", pool=pool)["items"]
    fields = (
        "id",
        "pool_id",
        "account_id",
        "zone",
        "state",
        "circuit",
        "health",
        "weight",
        "starting",
        "running",
        "reason",
    )
    show(rows, fields, output, nothing="no launch configs")


@worker_app.command("ls")
def list_workers(
    context: typer.Context,
    pool: OfPool = None,
    state: Annotated[str | None, typer.Option(help="Only those in this state.")] = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """List workers.

    \b
    Example:
      slipway worker ls --pool linux --state running
    """
    rows = context.obj.get("provisioner", "/workers", pool=pool, state=state)["items"]
    fields = ("id", "pool_id", "launch_config_id", "state", "instance_id", "requested_at", "reason")
    show(rows, fields, output, nothing="no workers")


@lease_app.command("ls")
def list_leases(context: typer.Context, pool: OfPool = None, output: AsOutput = Output.TABLE) -> None:
    """List leases that count against the limit of a lease pool.

    \b
    Example:
      slipway lease ls --pool sim-a
    """
    rows = context.obj.get("lease-broker", "/leases", pool=pool)["items"]
    fields = ("id", "lease_pool_id", "state", "units", "fencing_token", "granted_at", "expires_at", "hold_until")
    show(rows, fields, output, nothing="no leases")


@demand_app.command("set")
def set_demand(
    context: typer.Context,
    pool: Annotated[str, typer.Argument(help="Id of the worker pool.")],
    pending: Annotated[int, typer.Option(min=0, help="Tasks that wait.")],
    claimed: Annotated[int, typer.Option(min=0, help="Tasks that run now on workers of this pool.")] = 0,
    source: Annotated[str, typer.Option(help="Who counts. A pool's demand is the sum over its sources.")] = "operator",
    valid_for: Annotated[float, typer.Option(min=1, help="Seconds until the report is stale.")] = 300.0,
) -> None:
    """Report what a queue holds now. A newer report of the same source replaces it.

    \b
    Example:
      slipway demand set linux --pending 12 --claimed 3 --valid-for 600
    """
    body = {"pending": pending, "claimed": claimed, "observed_at": utc_now().isoformat(), "source": source}
    context.obj.put("provisioner", f"/pools/{pool}/demand", body | {"valid_for_seconds": valid_for})
    print(f"{pool}: {pending} pending, {claimed} claimed, from {source}")


@token_app.command("create")
def create_token(
    name: Annotated[str, typer.Option(help="Who will use it; shown in audit and errors.")],
    scope: Annotated[list[str], typer.Option(help="What it may do; may be repeated.")],
    file: Annotated[Path | None, typer.Option(dir_okay=False, help="Tokens file of the services; appended to.")] = None,
) -> None:
    """Make a token: the secret goes to stdout, once; only its hash is kept.

    Scopes: declaration:write, demand:write:POOL, launch-configs:write, lease-pools:write, launching:stop, admin; a
    trailing * matches the rest.

    \b
    Examples:
      slipway token create --name ci --scope demand:write:linux --file tokens.yaml
      export SLIPWAY_TOKEN=$(slipway token create --name me --scope admin --file tokens.yaml)
    """
    try:
        secret, line = tokens.create(name, scope, file)
    except Invalid as error:
        raise InvalidFile(file or Path("slipway token create"), error.problems) from error
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"the tokens file cannot be used: {error}") from error
    print(secret)
    if file is None:
        print(f"add to the tokens file: {line}", file=sys.stderr)


def _declared(file: Path, speed: float) -> dict[str, Any]:
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
