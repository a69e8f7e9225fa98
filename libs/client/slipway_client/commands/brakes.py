"""`slipway stop-launching` and `slipway start-launching`: the brakes. They work without Kafka."""

from typing import Annotated

import typer

from slipway_client import options
from slipway_client.http import Api
from slipway_client.options import For, Reason, Until, pools, until_words

OfAccount = Annotated[str | None, typer.Option("--account", help="Only in this account.")]
InPool = Annotated[str | None, typer.Option("--pool", help="Only in this pool.", autocompletion=pools)]


def stop_launching(
    context: typer.Context, reason: Reason, account: OfAccount = None, pool: InPool = None, for_: For = None,
    until: Until = None,
) -> None:  # fmt: skip
    """Start nothing more: everywhere, in one account or in one pool. Calls under way are let finish.

    \b
    Examples:
      slipway stop-launching --reason "bad image" --for 30m
      slipway stop-launching --account aws-main --reason "quota talks" --until 17:30
    """
    stop(context.obj, *_scope(account, pool), reason, for_, until)


def start_launching(context: typer.Context, account: OfAccount = None, pool: InPool = None) -> None:
    """Release a brake. Others stay: `slipway doctor` lists those in force.

    \b
    Examples:
      slipway start-launching
      slipway start-launching --account aws-main
    """
    release(context.obj, *_scope(account, pool))


def _scope(account: str | None, pool: str | None) -> tuple[str, str]:
    if account and pool:
        raise typer.BadParameter("--account and --pool exclude each other")
    return ("account", account) if account else ("pool", pool) if pool else ("all", "")


def stop(api: Api, scope: str, scope_id: str, reason: str, for_: str | None, until: str | None) -> None:
    """Pull the brake and say so."""
    ends = options.until(for_, until)
    body = {"scope": scope, "scope_id": scope_id, "reason": reason, "until": ends}
    api.post("provisioner", "/stop-launching", body)
    print(f"launching is stopped {_where(scope, scope_id)}, {until_words(ends)}")


def release(api: Api, scope: str, scope_id: str) -> None:
    """Release the brake and say what became of it."""
    body = {"scope": scope, "scope_id": scope_id, "reason": "released"}
    told = api.post("provisioner", "/start-launching", body)
    where = _where(scope, scope_id)
    print(f"launching goes on {where}" if told["was_stopped"] else f"launching was not stopped {where}")


def _where(scope: str, scope_id: str) -> str:
    return "everywhere" if scope == "all" else f"in {scope} {scope_id}"
