"""`slipway db`: recovery after a restore of the database, and its part of `slipway doctor`."""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final, TypeVar

import msgspec
import typer

from slipway_api.http.provisioner import recovery as answers
from slipway_client.cli.confirming import CONFIRMATION
from slipway_client.cli.options import AsOutput, Reason, api_of, clock, noun
from slipway_client.cli.tables import Field, Output, as_json, table
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import Api
from slipway_common.base.sanitize import printable

app = noun("Recover after a restore of the database")

SERVICES: Final = ("provisioner", "lease-broker", "weight-calculator")  # launching stops first
T = TypeVar("T")


class Action(StrEnum):
    """Decision about an orphan instance. An adopted one gets a worker."""

    ADOPT, LEAVE, TERMINATE = "adopt", "leave", "terminate"


ORPHANS: Final[tuple[Field[answers.OrphanInstance], ...]] = (
    ("instance", lambda row: row.instance_id),
    ("account", lambda row: row.account_id),
    ("config", lambda row: row.launch_config_id),
    ("created", lambda row: clock(row.created_at)),
    "action",
    ("reason", lambda row: f"{row.reason}; {row.why}"),
)
MISSING: Final[tuple[Field[answers.MissingInstance], ...]] = (
    ("worker", lambda row: row.worker_id),
    ("pool", lambda row: row.pool_id),
    ("instance", lambda row: row.instance_id),
    ("account", lambda row: row.account_id),
    "state",
)
OPEN_CALLS: Final[tuple[Field[answers.OpenCall], ...]] = (
    ("batch", lambda row: row.batch_id),
    ("account", lambda row: row.account_id),
    ("config", lambda row: row.launch_config_id),
    "units",
    ("started", lambda row: clock(row.started_at)),
)
LOST_CLAIMS: Final[tuple[Field[answers.LostClaim], ...]] = (
    ("pool", lambda row: row.pool_id),
    "source",
    "claimed",
    "known",
)
Names = list[str] | None


@app.command("restored")
def restored(context: typer.Context, reason: Reason) -> None:
    """Record that the database was restored

    For a database that was restored or has lost commits. Each service begins a new incarnation of its events. Nothing
    is launched or terminated until `slipway db confirm`; no lease expires for one TTL. A service that finds Kafka
    ahead of its database does the same by itself.

    \b
    Example:
      slipway db restored --reason "restored from the backup of 03:00"
    """
    for number, service in enumerate(SERVICES):
        try:
            api_of(context).post(object, service, "/restored", {"reason": reason})
        except Failed as error:
            if not number:
                raise
            done = " and ".join(SERVICES[:number])
            advice = f"Then repeat this command; another new incarnation of {done} does no harm."
            raise Failed(f"{error}\n{advice}") from error
        print(f"{service}: new incarnation")
    print("launching is stopped; `slipway doctor --after-restore` shows the differences")


@app.command("confirm")
def confirm(
    context: typer.Context,
    others: Annotated[Action | None, typer.Option("--all", help="Action for all others [default: as proposed]")] = None,
    adopt: Annotated[Names, typer.Option(metavar="INSTANCE", help="Instance to adopt; repeatable")] = None,
    leave: Annotated[Names, typer.Option(metavar="INSTANCE", help="Instance to leave running; repeatable")] = None,
    terminate: Annotated[Names, typer.Option(metavar="INSTANCE", help="Instance to terminate; repeatable")] = None,
    unlisted: Annotated[Names, typer.Option(metavar="ACCOUNT", help="Account without a listing; repeatable")] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Confirmation [default: only print]")] = False,
    output: AsOutput = Output.TABLE,
) -> None:
    """Confirm decisions about orphan instances

    Orphan instances run without a row. Prints the action for each: adopt (it gets a worker), leave or terminate. With
    --yes the actions are taken, and after a restore launching starts again. That is refused until every account has
    been listed since the restore, but for those named by --unlisted. Exit code 4 without --yes, if there is something
    to confirm.

    \b
    Examples:
      slipway db confirm
      slipway db confirm --terminate i-0abc --yes
    """
    read = api_of(context).read(answers.Recovery, "provisioner", "/recovery")
    found = read.value
    given: dict[str, Action] = {}
    for action, ids in ((Action.ADOPT, adopt), (Action.LEAVE, leave), (Action.TERMINATE, terminate)):
        for instance in ids or ():
            if given.setdefault(instance, action) is not action:
                raise typer.BadParameter(
                    f"two actions for {instance}: {given[instance]} and {action}; give one of them"
                )
    known = {row.instance_id for row in found.orphans}
    if unknown := sorted(given.keys() - known):
        raise typer.BadParameter(f"no orphan instance: {', '.join(unknown)}; `slipway db confirm` lists them")
    rows = [_chosen(row, given, others) for row in found.orphans]
    if output is Output.TABLE:
        table(rows, ORPHANS, nothing="no orphan instances")
    answer = {"instances": rows} | {name: read.sent[name] for name in ("restored", "compared", "not_listed")}
    undecided = any(not row.decision for row in found.orphans)
    is_needed = bool(undecided or given or others or found.restored)
    if not (is_needed and yes):
        if output is Output.JSON:
            as_json(answer | {"done": None})
        elif is_needed:
            _print_refusals(found, unlisted or ())
            then = "; launching starts again" if found.restored else ""
            print(f"nothing was changed; with --yes: {_counted(rows)}{then}")
        raise typer.Exit(CONFIRMATION if is_needed else 0)
    instances = [{"account_id": row.account_id, "instance_id": row.instance_id, "action": row.action} for row in rows]
    body = {"instances": instances, "unlisted": unlisted or []}
    done = api_of(context).post(answers.RecoveryConfirmed, "provisioner", "/recovery/confirm", body)
    if output is Output.JSON:
        as_json(answer | {"done": done})
        return
    terminating = f"{done.terminating} to be terminated by the next pass of the instance reaper"
    print(f"{done.adopted} adopted, {done.left} left running, {terminating}")
    if done.restore:
        print("launching starts again")
    if done.open:
        print(f"{done.open} more were found meanwhile: run `slipway db confirm` again")


def _chosen(row: answers.OrphanInstance, given: Mapping[str, Action], others: Action | None) -> answers.OrphanInstance:
    """A row with the action that was chosen for it."""
    action = given.get(row.instance_id) or others
    return row if action is None else msgspec.structs.replace(row, action=action.value, why="as requested")


def _counted(rows: Sequence[answers.OrphanInstance]) -> str:
    numbers = ((action, sum(row.action == action for row in rows)) for action in Action)
    return ", ".join(f"{action} {number}" for action, number in numbers)


def _print_refusals(found: answers.Recovery, unlisted: Collection[str] = ()) -> None:
    """Print why a confirmation would be refused now, and what to do about it."""
    if not found.compared:
        reason = "the database has not been compared with Kafka since its server started, or since it was restored"
        print(f"a confirmation is refused with 503 unconfirmed: {reason}")
        print("remedy: make Kafka reachable (`slipway doctor`), then try again")
    if unknown := [each for each in found.not_listed if each.account_id not in unlisted]:
        print("accounts not listed since the restore, where more may run, and from when a listing counts:")
        for each in unknown:
            print(f"  {printable(each.account_id)}: {clock(each.counts_from) or 'known after the first one'}")
        print("a confirmation is refused with 409 not-listed unless `--unlisted ACCOUNT` names each of them")


def differences(api: Api, output: Output) -> bool:
    """Print the differences between a restored database and what runs; true if a person has to act."""
    read = api.read(answers.Recovery, "provisioner", "/recovery")
    found = read.value
    if output is Output.JSON:
        as_json(read.sent)
    else:
        reason = printable(found.unconfirmed)
        print(f"launching is stopped: {reason}" if reason else "no restore waits for confirmation")
        _print_list("Orphan instances, without a row", found.orphans, ORPHANS)
        _print_list("Missing instances (their workers are marked lost after the confirmation)", found.missing, MISSING)
        _print_list("Launch calls of unknown outcome (looked up by their tags)", found.open_calls, OPEN_CALLS)
        _print_list("Running tasks without a claim (their workers report it again)", found.lost_claims, LOST_CLAIMS)
        if found.restored:
            _print_refusals(found)
            print("\nremedy: slipway db confirm")
        elif reason:
            print("\nremedy: make Kafka reachable (`slipway doctor`)")
    return bool(found.unconfirmed or any(not row.decision for row in found.orphans))


def _print_list(heading: str, rows: Sequence[T], fields: Sequence[Field[T]]) -> None:
    print(f"\n{heading}: {len(rows) or 'none'}")
    if rows:
        table(rows, fields, nothing="")
