"""`slipway stop-launching` and `slipway start-launching`: the brakes. They work without Kafka."""

from typing import Annotated

import typer

from slipway_client import options
from slipway_client.options import For, Reason, Until, pools, until_words

OfAccount = Annotated[str | None, typer.Option("--account", help="Only in this account.")]
InPool = Annotated[str | None, typer.Option("--pool", help="Only in this pool.", autocompletion=pools)]


def stop_launching(
    context: typer.Context,
    reason: Reason,
    account: OfAccount = None,
    pool: InPool = None,
    for_: For = None,
    until: Until = None,
) -> None:
    """Start nothing more: everywhere, in one account or in one pool. Calls under way are let finish.

    \b
    Examples:
      slipway stop-launching --reason "bad image" --for 30m
      slipway stop-launching --account aws-main --reason "quota talks" --until 17:30
    """
    scope, scope_id = _scope(account, pool)
    ends = options.until(for_, until)
    body = {"scope": scope, "scope_id": scope_id, "reason": reason, "until": ends}
    context.obj.post("provisioner", "/stop-launching", body)
    print(f"launching is stopped {_where(scope, scope_id)}, {until_words(ends)}")


def start_launching(context: typer.Context, account: OfAccount = None, pool: InPool = None) -> None:
    """Release a brake. Others stay: `slipway doctor` lists those in force.

    \b
    Examples:
      slipway start-launching
      slipway start-launching --account aws-main
    """
    scope, scope_id = _scope(account, pool)
    body = {"scope": scope, "scope_id": scope_id, "reason": "released"}  # the API asks for one, and keeps none
    told = context.obj.post("provisioner", "/start-launching", body)
    where = _where(scope, scope_id)
    print(f"launching goes on {where}" if told["was_stopped"] else f"launching was not stopped {where}")


def _scope(account: str | None, pool: str | None) -> tuple[str, str]:
    if account and pool:
        raise typer.BadParameter("--account and --pool exclude each other")
    return ("account", account) if account else ("pool", pool) if pool else ("all", "")


def _where(scope: str, scope_id: str) -> str:
    return "everywhere" if scope == "all" else f"in {scope} {scope_id}"
