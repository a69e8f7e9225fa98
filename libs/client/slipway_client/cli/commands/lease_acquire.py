"""`slipway lease` commands that wait for leases: run, acquire and gang."""

import os
import signal
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

from slipway_client.cli.options import Pool, api_of, as_usage, duration_or_zero, handle_of
from slipway_client.cli.tables import as_json
from slipway_client.leases.environment import of_command, switched_off, without_secrets
from slipway_client.leases.errors import NOT_STARTED
from slipway_client.leases.log import log
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import Api
from slipway_client.view import moments

if TYPE_CHECKING:
    from slipway_api.http.lease_broker import AcquireGroup, Lease
    from slipway_client.leases.admission import Admission
    from slipway_client.leases.admitting import Unleased
    from slipway_client.leases.host import Host
    from slipway_client.leases.run import Outcome
    from slipway_client.leases.terms import Wanted

app = typer.Typer(rich_markup_mode=None)


class OnLoss(StrEnum):
    CONTINUE = "continue"
    TERM, INT, HUP, QUIT, USR1, USR2, KILL = "TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "KILL"


FailOpenWord = Annotated[
    Literal["always", "safe", "optimistic", "pessimistic"],
    typer.Option("--fail-open", envvar="SLIPWAY_LEASE_FAIL_OPEN", help="Starts without a lease; `run --help` explains"),
]
Operation = Annotated[str, typer.Option(metavar="NAME", help="Kind of operation, which the pool may weight")]
Units = Annotated[int, typer.Option(metavar="N", min=1, help="Units to acquire")]
Hold = Annotated[
    str | None, typer.Option("--hold", metavar="DURATION", help="Maximum duration [default: hold of the pool]")
]
Tenant = Annotated[str, typer.Option(metavar="NAME", help="Fair-share tenant [default: token name]")]
Priority = Annotated[int, typer.Option(metavar="N", min=0, max=9, help="Priority; 9 is highest, waiting raises it")]
RequestId = Annotated[str, typer.Option("--request-id", metavar="ID", help="Idempotency key [default: random]")]
Join = Annotated[bool, typer.Option("--join", help="Share the lease with other processes of its --request-id")]
Replaces = Annotated[str, typer.Option(metavar="ID:TOKEN", help="Lease of the previous attempt, ended by this one")]
MaxWait = Annotated[str, typer.Option(metavar="DURATION", help="Maximum wait for admission; 0 to try once")]
InGroup = Annotated[str, typer.Option("--group", metavar="NAME", help="Group whose starts are spread over time")]
GroupSize = Annotated[int, typer.Option(metavar="N", min=1, help="Number of starts in the group")]
Spread = Annotated[str | None, typer.Option(metavar="DURATION", help="Time over which the group starts")]
Member = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Index in the group, from 0 [default: by arrival]")
]
AsLeaseFormat = Annotated[
    Literal["handle", "env", "json"], typer.Option("-o", "--output", help="Output format; env prints lines for eval")
]


@app.command("run", context_settings={"allow_interspersed_args": False})
def run_leased(
    context: typer.Context,
    pool: Pool,
    command: Annotated[list[str], typer.Argument(metavar="-- CMD…", help="Command and its arguments")],
    operation: Operation = "install",
    hold: Hold = None,
    units: Units = 1,
    tenant: Tenant = "",
    priority: Priority = 0,
    max_wait: MaxWait = "30m",
    fail_open: FailOpenWord = "safe",
    unavailable_after: Annotated[
        str, typer.Option(metavar="DURATION", help="Outage after which `safe` starts without a lease")
    ] = "10s",
    on_loss: Annotated[
        OnLoss,
        typer.Option(metavar="SIGNAL", case_sensitive=False, help="Signal to the command if its lease is lost"),
    ] = OnLoss.CONTINUE,
    throttled_exit: Annotated[
        list[int] | None,
        typer.Option(metavar="CODE", help="Exit code by which the command reports a throttle"),
    ] = None,
    status_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File for the status of the command, as JSON")
    ] = None,
    pass_token: Annotated[
        bool, typer.Option("--pass-token", help="Pass SLIPWAY_TOKEN and other secrets to the command")
    ] = False,
    attempt: Annotated[
        int, typer.Option(metavar="N", min=1, help="Attempt number; retries keep their age in the queue")
    ] = 1,
    request_id: RequestId = "",
    join: Join = False,
    replaces: Replaces = "",
    group: InGroup = "",
    group_size: GroupSize = 1,
    spread: Spread = None,
    member: Member = None,
) -> None:
    """Run a command under a lease

    Waits for a lease, renews it while the command runs, and releases it when the command ends. The command gets the
    input, output and signals of `slipway`, and SLIPWAY_LEASE_ID, SLIPWAY_FENCING_TOKEN and SLIPWAY_LEASE_POOL in its
    environment; its SLIPWAY_TOKEN permits no more than to hold that lease. SLIPWAY_LEASE=off runs the command without a
    lease.

    \b
    Without a lease, --fail-open decides:
      always       start in the end: if the lease-broker is unavailable or the pool is full in the second half of
                   --max-wait, if nothing may start after it, if the request is refused within 30 s
      safe         if the lease-broker is unavailable, start at the last known safe pace
      optimistic   if the lease-broker is unavailable, start at once
      pessimistic  start nothing

    \b
    Examples:
      slipway lease run --pool aws-ci --hold 20m -- openshift-install create cluster
      slipway lease run --pool aws-ci --attempt 2 --max-wait 30m --fail-open always -- ./install.sh
      slipway lease run --pool aws-ci --group payload-4.22 --group-size 10 --spread 15m -- ./install.sh

    Exit codes: the command's, 128+n for signal n; 127 if it is not found, 126 if it cannot be run, 125 if it was not
    started for another reason. --status-file tells an own code from the command's: {"started": true, "leased": false,
    "cause": "full", "exit_code": 0}.
    """
    if switched_off(os.environ):
        _run_switched_off(command, status_file, passes_token=pass_token)
    import asyncio

    from msgspec.structs import replace

    from slipway_client.leases.attempts import Attempt
    from slipway_client.leases.errors import NotStarted
    from slipway_client.leases.host import holder
    from slipway_client.leases.run import Job, Status, run
    from slipway_client.leases.session import Session

    api: Api = api_of(context)
    wanted = replace(_wanted(context), holder=holder(), join=join)

    def granted(lease: "Lease") -> None:
        numbered.granted(lease)
        _log_capped_hold(wanted.hold_seconds, [lease])

    numbered = Attempt(api.urls["lease-broker"], attempt, wanted, given_id=bool(request_id), log=log)
    signum = None if on_loss is OnLoss.CONTINUE else signal.Signals[f"SIG{on_loss.value}"]
    job = Job(command, pass_token, status_file, signum, frozenset(throttled_exit or ()))
    begun = _begun(max_wait, fail_open, unavailable_after)
    try:
        session = Session(_host(api, begun), numbered.wanted, begun, fenced=signum is not None)
        ended = asyncio.run(run(session, pool, job, granted))
    except Failed as error:
        job.report(Status(started=False, leased=False, cause=error.slug or "not-admitted", exit_code=NOT_STARTED))
        raise NotStarted(str(error), error.slug, error.status, path=error.path) from error
    if not ended.exit_code:
        numbered.succeeded()
    _end_as(ended)


def _end_as(ended: "Outcome") -> NoReturn:
    """End this process as its command has ended."""
    if ended.resend is not None:  # so that our caller sees that Ctrl-C ended the command
        signal.signal(ended.resend, signal.SIG_DFL)
        os.kill(os.getpid(), ended.resend)
    raise typer.Exit(ended.exit_code)


def _run_switched_off(command: list[str], status_file: Path | None, *, passes_token: bool) -> NoReturn:
    """Run the command without a lease: in place of this process, unless its end is to be recorded."""
    if status_file is not None:
        import asyncio

        from slipway_client.leases.run import Job, run_switched_off

        _end_as(asyncio.run(run_switched_off(Job(command, passes_token, status_file))))
    environment = os.environ if passes_token else without_secrets(os.environ)
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 (the user's own command)
    except OSError as error:
        log(f"cannot start {command[0]}: {error.strerror}")
        raise typer.Exit(127 if isinstance(error, FileNotFoundError) else 126) from None


@app.command("acquire")
def acquire(
    context: typer.Context,
    pool: Pool,
    operation: Operation = "install",
    hold: Hold = None,
    units: Units = 1,
    tenant: Tenant = "",
    priority: Priority = 0,
    max_wait: MaxWait = "30m",
    request_id: RequestId = "",
    replaces: Replaces = "",
    group: InGroup = "",
    group_size: GroupSize = 1,
    spread: Spread = None,
    member: Member = None,
    fail_open: FailOpenWord = "pessimistic",
    output: AsLeaseFormat = "handle",
) -> None:
    """Wait for a lease and print it

    The caller renews the lease in time and releases it; `run` does both. A request with a --request-id keeps its place
    in the queue when the wait is over, and the same ID continues it; `cancel` ends it. With -o json its position is
    printed then. With --fail-open a caller that may start without a lease gets exit code 0; nothing is printed then,
    or the lease as which the start is counted.

    \b
    Examples:
      held=$(slipway lease acquire --pool aws-ci --max-wait 10m)
      eval "$(slipway lease acquire --pool aws-ci -o env)"
      slipway lease acquire --pool aws-ci --request-id "$HOST_UID" --max-wait 0 -o json

    Exit codes: 0 granted, 75 not admitted within the wait, 69 lease-broker unavailable, 77 and 78 refused.
    """
    if switched_off(os.environ):
        return
    import asyncio

    from slipway_client.leases.errors import NotAdmitted
    from slipway_client.leases.session import Session

    wanted = _wanted(context)
    begun = _begun(max_wait, fail_open)
    session = Session(_host(api_of(context), begun), wanted, begun, resumable=bool(request_id))

    try:
        granted = asyncio.run(session.acquire_to_keep())
    except NotAdmitted as error:
        if output == "json" and error.waiting is not None:
            as_json(error.waiting)
        raise
    _print(granted, wanted.request_id, wanted.hold_seconds, output)


@app.command("gang")
def acquire_gang(
    context: typer.Context,
    member: Annotated[list[str], typer.Option(metavar="POOL[:UNITS]", help="Lease pool and units; once per pool")],
    operation: Operation = "install",
    hold: Hold = None,
    tenant: Tenant = "",
    max_wait: MaxWait = "30m",
    request_id: RequestId = "",
    fail_open: FailOpenWord = "pessimistic",
    output: Annotated[
        Literal["handle", "json"], typer.Option("-o", "--output", help="Output format; handle is LEASE_ID:TOKEN")
    ] = "handle",
) -> None:
    """Acquire leases of several pools, all or none

    \b
    Example:
      slipway lease gang --member aws-ci --member quay-pulls:10 --max-wait 10m
    """
    if switched_off(os.environ):
        return
    import asyncio

    from slipway_api.http.lease_broker import AcquireGang, GangMember
    from slipway_client.leases.gang import GangRequest
    from slipway_common.base.ids import new_id

    hold_seconds = duration_or_zero("--hold", hold)
    members = []
    for text in member:
        pool, _, units = text.partition(":")
        if not pool or (units and not units.isdecimal()):
            raise typer.BadParameter(f"--member {text}: expected POOL or POOL:UNITS")
        members.append(GangMember(pool=pool, units=int(units or 1), hold_seconds=hold_seconds))
    wanted = AcquireGang(request_id=request_id or new_id(), operation=operation, tenant=tenant or None, members=members)
    begun = _begun(max_wait, fail_open)
    request = GangRequest(_host(api_of(context), begun), wanted, begun)
    _print(asyncio.run(request.acquire()), wanted.request_id, hold_seconds, output, members=len(members))


def _log_capped_hold(requested_seconds: float | None, leases: "list[Lease]") -> None:
    """Log a hold that the pool has capped."""
    from slipway_client.leases.terms import hold_seconds

    for lease in leases:
        granted_seconds = hold_seconds(lease)
        if requested_seconds is not None and granted_seconds < 0.99 * requested_seconds:
            granted, requested = moments.spelled(granted_seconds), moments.spelled(requested_seconds)
            log(f"hold capped at {granted} (requested {requested}) by pool {lease.lease_pool_id}")


def _print(
    granted: "list[Lease] | Unleased", request_id: str, hold_seconds: float | None, output: str, *, members: int = 1
) -> None:
    """Print leases, or that the caller may start without one. Variables of an earlier lease are unset then."""
    import shlex

    from slipway_client.leases.terms import handle

    if not isinstance(granted, list):
        if output == "json":
            as_json({"request_id": request_id, "state": "unleased", "cause": granted.cause})
        elif output == "env":
            print("unset SLIPWAY_LEASE_ID SLIPWAY_FENCING_TOKEN")
        return
    _log_capped_hold(hold_seconds, granted)
    match output:
        case "json":
            as_json(granted[0] if members == 1 else granted)
        case "handle":
            print(*(handle(lease) for lease in granted), sep="\n")
        case _:
            (lease,) = granted
            values = of_command({}, lease.lease_pool_id, lease)
            print(*(f"export {name}={shlex.quote(value)}" for name, value in values.items()), sep="\n")


def _wanted(context: typer.Context) -> "Wanted":
    """Request by the options that `run` and `acquire` share."""
    from slipway_client.leases.terms import Wanted
    from slipway_common.base.ids import new_id

    given = context.params
    with as_usage():
        return Wanted(
            lease_pool_id=given["pool"],
            request_id=given["request_id"] or new_id(),
            operation=given["operation"],
            units=given["units"],
            tenant=given["tenant"] or None,
            priority=given["priority"],
            hold_seconds=duration_or_zero("--hold", given["hold"]),
            replaces=handle_of(given["replaces"]) if given["replaces"] else None,
            group=_group(given["group"], given["group_size"], given["spread"], given["member"]),
        )


def _group(name: str, size: int, spread: str | None, member: int | None) -> "AcquireGroup | None":
    if not name:
        if spread is not None or member is not None or size != 1:
            raise typer.BadParameter("--group-size, --spread and --member need --group")
        return None
    from slipway_api.http.lease_broker import AcquireGroup

    if (seconds := duration_or_zero("--spread", spread)) is None:
        raise typer.BadParameter("--group needs --spread")
    if member is not None and member >= size:
        raise typer.BadParameter(f"--member must be from 0 to {size - 1} in a group of {size}")
    return AcquireGroup(name=name, size=size, spread_seconds=seconds, member=member)


def _begun(max_wait: str, fail_open: FailOpenWord, unavailable_after: str = "10s") -> "Admission":
    from slipway_client.leases.admission import Admission, FailOpen
    from slipway_common.base.clock import monotonic_seconds

    return Admission(
        begun_at=monotonic_seconds(),
        max_wait_seconds=duration_or_zero("--max-wait", max_wait) or 0.0,
        fail_open=FailOpen(fail_open),
        unavailable_seconds=duration_or_zero("--unavailable-after", unavailable_after) or 0.0,
    )


def _host(api: Api, begun: "Admission") -> "Host":
    from slipway_client.leases.host import this_host

    return this_host(api.urls["lease-broker"], lambda: api.token, begun.fail_open, log)
