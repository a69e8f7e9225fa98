"""`slipway account limits`: safety limits of accounts and pools."""

from typing import Annotated, Final

import typer

from slipway_api.http.provisioner.accounts import AccountDetails, LaunchLimit
from slipway_client.cli.options import AsOutput, accounts, api_of, clock
from slipway_client.cli.tables import Field, Output, show
from slipway_client.transport.http import path

app = typer.Typer(rich_markup_mode=None)


def _launches(row: LaunchLimit) -> str:
    limit = row.launches_per_hour
    waiting = f" + {row.waiting} waiting" if row.waiting else ""
    return f"{row.launches}{waiting}" + ("" if limit is None else f" of {limit}")


def _spend(row: LaunchLimit) -> str:
    return "" if row.spend_per_day is None else f"{row.spend} of {row.spend_per_day}"


FIELDS: Final[tuple[Field[LaunchLimit], ...]] = (
    "scope",
    ("id", lambda row: row.scope_id),
    ("launches", _launches),
    ("left", lambda row: "" if row.launches_left is None else row.launches_left),
    ("launches free", lambda row: clock(row.launches_free_at)),
    ("spend", _spend),
    ("spend left", lambda row: row.spend_left or ""),
    ("spend free", lambda row: clock(row.spend_free_at)),
    ("stops", lambda row: row.reached),
)


@app.command("limits")
def list_limits(
    context: typer.Context,
    account: Annotated[
        str | None,
        typer.Argument(metavar="[ACCOUNT]", show_default=False, help="ID of the account", autocompletion=accounts),
    ] = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """Show limits of launches and spend, and what is left

    `launches` are those of the last hour, `spend` what the machines of the last day have cost and may still cost.
    `free`: when some of it no longer counts. `stops`: the limit that stops launches now. Pools are listed, too.

    \b
    Examples:
      slipway account limits
      slipway account limits aws-main -o json
    """
    rows = api_of(context).rows(LaunchLimit, "provisioner", "/launch-limits")
    if account is not None:
        rows = [row for row in rows if (row.value.scope, row.value.scope_id) == ("account", account)]
        if not rows:
            api_of(context).get(AccountDetails, "provisioner", path("accounts", account))  # fails if there is none
    where = "" if account is None else f" for account {account}"
    nothing = f"no limits are declared{where}: add `limits` to the declaration, and apply it"
    show(rows, FIELDS, output, nothing=nothing, drop=("spend free", "launches free"))
