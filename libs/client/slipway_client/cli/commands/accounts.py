"""`slipway account` commands."""

from collections.abc import Sequence
from typing import Annotated, Final, TypeVar

import typer

from slipway_api.http.provisioner import accounts as answers
from slipway_client.cli.options import AsOutput, Reason, accounts, api_of, clock, noun
from slipway_client.cli.tables import Field, Output, as_json, details, show, table
from slipway_client.transport.http import path
from slipway_client.view.phrases import count
from slipway_common.base.sanitize import printable

app = noun("Manage provider accounts")

T = TypeVar("T")
AccountId = Annotated[str, typer.Argument(metavar="ACCOUNT", help="ID of the account", autocompletion=accounts)]


def _state(row: answers.Account) -> str:
    if row.retired:
        return "retired"
    if row.unreachable:
        return "unreachable"
    if row.mass_unresponsive:
        return "unresponsive workers"
    if row.throttled:
        return "throttled"
    return "removed" if row.removed else "reachable"


def _problems(row: answers.Account) -> str:
    """Problems and warnings of the last check; unknown before the first one."""
    if row.checked_at is None:
        return "-"
    warnings = f" +{row.warnings}" if row.warnings else ""
    return f"{row.problems}{warnings}"


FIELDS: Final[tuple[Field[answers.Account], ...]] = (
    "id",
    "provider",
    "region",
    "identity",
    ("state", _state),
    ("problems", _problems),
    ("checked", lambda row: row.checked_at and clock(row.checked_at)),
    "serving",
    "leaving",
    "unknown_calls",
    "may_still_run",
)
FINDINGS: Final[tuple[Field[answers.AccountFinding], ...]] = (
    "state",
    ("check", lambda row: row.kind),
    ("subject", lambda row: row.subject or None),
    ("detail", lambda row: row.message),
)
NOT_CHECKED: Final = "not checked yet"
PROBLEM: Final = 3
CHECK_SECONDS: Final = 120.0
"""Longer than any check."""
MACHINES: Final[tuple[Field[answers.UnreachableMachine], ...]] = (
    ("worker", lambda row: row.worker_id),
    ("pool", lambda row: row.pool_id),
    ("launch config", lambda row: row.launch_config_id),
    ("instance", lambda row: row.instance_id or "unknown"),
    ("batch", lambda row: row.batch_id),
    ("since", lambda row: clock(row.since)),
)


@app.command("ls")
def list_accounts(context: typer.Context, output: AsOutput = Output.TABLE) -> None:
    """List accounts

    `problems` are those of the last check, +1 a warning; `checked` is its time. `unknown_calls` are launch calls of
    unknown outcome, `may_still_run` the machines left in a retired account. A `removed` account is no longer declared,
    and listed while anything is left there.

    \b
    Example:
      slipway account ls
    """
    rows = api_of(context).rows(answers.Account, "provisioner", "/accounts")
    dropped = ("provider", "region", "identity", "may still run", "unknown calls")
    show(rows, FIELDS, output, nothing="no accounts", drop=dropped)


@app.command("check")
def check_account(context: typer.Context, account: AccountId, output: AsOutput = Output.TABLE) -> None:
    """Check an account and print remedies for its problems

    Asks the provider who the credential belongs to and when it ends, and for missing permissions (by dry runs), clock,
    quotas, subnets, images and launch configs. Changes nothing there. Exit code 3 if there is a problem, else 0:
    warnings, and what could not be found out (unknown), are none. The provisioner does the same every hour.

    \b
    Examples:
      slipway account check aws-main
      slipway account check aws-main -o json
    """
    api = api_of(context).within(CHECK_SECONDS)
    checked = api.read(answers.AccountDetails, "provisioner", path("accounts", account, "check"), "POST", {})
    row = checked.value
    if output is Output.JSON:
        as_json(checked.sent)
    else:
        _print_findings(row.findings)
        others = f", {count(row.warnings, 'warning')}" if row.warnings else ""
        print(f"\naccount {printable(row.id)}: {count(row.problems, 'problem')}{others}")
    if row.problems:
        raise typer.Exit(PROBLEM)


def _print_findings(findings: Sequence[answers.AccountFinding]) -> None:
    """Print findings as a table, and below it a remedy for each that has one."""
    table(findings, FINDINGS, nothing=NOT_CHECKED, drop=("subject",))
    remedies = [finding for finding in findings if finding.remedy]
    if remedies:
        print()
    for finding in remedies:
        about = f"{finding.kind} {finding.subject}".strip()
        print(printable(f"{about}: {finding.remedy}"))


@app.command("show")
def show_account(context: typer.Context, account: AccountId, output: AsOutput = Output.TABLE) -> None:
    """Show an account, its last check and its machines

    \b
    Example:
      slipway account show aws-main
    """
    read = api_of(context).read(answers.AccountDetails, "provisioner", path("accounts", account))
    if not details(read, output, ("findings", "machines"), (None, "")):
        return
    row = read.value
    print()
    _print_findings(row.findings)
    print()
    table(row.machines, MACHINES, nothing="no retirement left a machine", drop=("launch config", "pool"))
    if any(machine.instance_id is None for machine in row.machines):
        print("unknown: the call may have launched it; look in the provider's console for the tag slipway-batch=BATCH")


@app.command("retire")
def retire_account(context: typer.Context, account: AccountId, reason: Reason) -> None:
    """Retire an account that will not answer again

    Settles its unknown calls and leaving workers as unreachable, so that other accounts launch in their place. No call
    is made in it until `slipway account reinstate`. Refused while it answers.

    \b
    Example:
      slipway account retire aws-old --reason "the account was closed"
    """
    row = _command(context, answers.RetiredAccount, account, "retire", reason)
    left = f"; {count(row.may_still_run, 'machine')} may still run there: `slipway account show {row.id}`"
    already = " already, and nothing was changed" if row.was_retired else ""
    print(f"account {row.id} is retired{already}{left if row.may_still_run else ''}")


@app.command("reinstate")
def reinstate_account(context: typer.Context, account: AccountId, reason: Reason) -> None:
    """Resume calls to a retired account

    Once it answers, it launches again, and the machines that were left there are terminated.

    \b
    Example:
      slipway account reinstate aws-old --reason "support has reopened it"
    """
    row = _command(context, answers.Account, account, "reinstate", reason)
    print(f"account {row.id} is reinstated; it launches again once it answers")


@app.command("confirm-unresponsive")
def confirm_unresponsive(context: typer.Context, account: AccountId, reason: Reason) -> None:
    """Stop the unresponsive workers of an account

    Slipway stops none by itself while over a fifth of an account's workers, and over 10, have lost contact: they may
    only be cut off, and still run their tasks. Confirm once they are known to be dead.

    \b
    Example:
      slipway account confirm-unresponsive aws-main --reason "the host was powered off"
    """
    row = _command(context, answers.ConfirmedUnresponsive, account, "confirm-unresponsive", reason)
    print(f"{count(row.stopped, 'unresponsive worker')} of account {row.id} asked to stop")


def _command(context: typer.Context, type_: type[T], account: str, verb: str, reason: str) -> T:
    return api_of(context).post(type_, "provisioner", path("accounts", account, verb), {"reason": reason})


def _launches(row: answers.LaunchLimit) -> str:
    limit = row.launches_per_hour
    waiting = f" + {row.waiting} waiting" if row.waiting else ""
    return f"{row.launches}{waiting}" + ("" if limit is None else f" of {limit}")


LIMITS: Final[tuple[Field[answers.LaunchLimit], ...]] = (
    "scope",
    ("id", lambda row: row.scope_id),
    ("launches", _launches),
    ("left", lambda row: "" if row.launches_left is None else row.launches_left),
    ("launches free", lambda row: clock(row.launches_free_at)),
    ("spend", lambda row: "" if row.spend_per_day is None else f"{row.spend} of {row.spend_per_day}"),
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
    rows = api_of(context).rows(answers.LaunchLimit, "provisioner", "/launch-limits")
    if account is not None:
        rows = [row for row in rows if (row.value.scope, row.value.scope_id) == ("account", account)]
        if not rows:
            api_of(context).get(object, "provisioner", path("accounts", account))  # fails if there is none
    where = "" if account is None else f" for account {account}"
    nothing = f"no limits are declared{where}: add `limits` to the declaration, and apply it"
    show(rows, LIMITS, output, nothing=nothing, drop=("spend free", "launches free"))
