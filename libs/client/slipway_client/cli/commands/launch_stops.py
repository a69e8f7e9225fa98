"""`slipway stop-launching` and `slipway start-launching`. They work without Kafka."""

from typing import Annotated

import typer

from slipway_api.http.provisioner.pools import LaunchStop, LaunchStopResult
from slipway_client.cli import options
from slipway_client.cli.options import For, OfPool, Reason, Until, api_of, now, until_text
from slipway_client.view import phrases
from slipway_common.base.sanitize import printable

OfAccount = Annotated[str | None, typer.Option("--account", metavar="ACCOUNT", help="Account [default: all]")]


def stop_launching(
    context: typer.Context,
    reason: Reason,
    account: OfAccount = None,
    pool: OfPool = None,
    for_: For = None,
    until: Until = None,
) -> None:
    """Stop all launches, or those of an account or pool

    Launch calls in progress are completed.

    \b
    Examples:
      slipway stop-launching --reason "bad image" --for 30m
      slipway stop-launching --account aws-main --reason "quota talks" --until 17:30
    """
    scope, scope_id = _scope(account, pool)
    ends = options.until(for_, until)
    body = {"scope": scope, "scope_id": scope_id, "reason": reason, "until": ends}
    api_of(context).post(object, "provisioner", "/stop-launching", body)
    print(f"launches stopped {phrases.where(scope, scope_id)} {until_text(ends)}")


def start_launching(context: typer.Context, reason: Reason, account: OfAccount = None, pool: OfPool = None) -> None:
    """Lift a launch stop

    Other launch stops stay in force and are printed with the command that lifts each.

    \b
    Examples:
      slipway start-launching --reason "image rolled back"
      slipway start-launching --account aws-main --reason "quota raised"
    """
    scope, scope_id = _scope(account, pool)
    body = {"scope": scope, "scope_id": scope_id, "reason": reason}
    answer = api_of(context).post(LaunchStopResult, "provisioner", "/start-launching", body)
    where = phrases.where(scope, scope_id)
    print(f"launches resumed {where}" if answer.was_stopped else f"launches were not stopped {where}")
    for stop in api_of(context).items(LaunchStop, "provisioner", "/launch-stops"):
        print(printable(f"still in force: {phrases.launch_stop(stop, now())}"))
        print(f"remedy: {phrases.start_launching(stop)}")


def _scope(account: str | None, pool: str | None) -> tuple[str, str]:
    if account and pool:
        raise typer.BadParameter("--account and --pool are mutually exclusive")
    return ("account", account) if account else ("pool", pool) if pool else ("all", "")
