"""Commands `slipway lease` for holders of leases; lease_pools.py has those for operators.

Values go to standard output, everything else to standard error, so that scripts can capture the values.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from typer.core import TyperGroup

from slipway_client.cli.commands import lease_pools
from slipway_client.cli.options import AsOutput, OfLeasePool, now
from slipway_client.cli.options import lease_pools as pool_ids
from slipway_client.cli.tables import Field, Output, as_json, pairs, show
from slipway_client.transport.http import Api, Failed, path
from slipway_client.transport.switch import switched_off
from slipway_client.view import moments

if TYPE_CHECKING:
    from slipway_client.leases.session import Session
    from slipway_client.leases.terms import Lease, Wanted
    from slipway_common.events.lease import LeaseGroup, ReplacedLease


class _Exits(TyperGroup):
    """Maps refusals to the exit codes of lease commands. Usage errors stay 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Failed as error:
            if type(error) is Failed:
                from slipway_client.leases.errors import exit_code

                error.exit_code = exit_code(error.status, error.slug)
            elif text := ctx.obj.not_found(error):
                error.args = (text,)
            raise


app = typer.Typer(
    cls=_Exits,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Acquire, hold and manage leases

    \b
    Exit codes:
      0   success
      2   usage error
      69  lease-broker unavailable
      75  not admitted within the wait
      76  lease lost
      77  refused: token, scope or owner
      78  refused: unknown pool or invalid request
    `run` exits with the code of its command once that has started.
    """,
)
app.add_typer(lease_pools.app)


class Listing(StrEnum):
    TABLE, JSON, NAME = "table", "json", "name"


class LeaseFormat(StrEnum):
    """Output formats of a lease for scripts."""

    HANDLE, ENV, JSON = "handle", "env", "json"


class OnLoss(StrEnum):
    TERM, INT, HUP, QUIT, USR1, USR2, KILL, NONE = "TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "KILL", "none"


def _duration(option: str, text: str | None) -> float | None:
    """Seconds of a duration such as 20m; also 0."""
    if text is None or not text.strip("0s"):
        return None if text is None else 0.0
    try:
        return moments.seconds(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def _seconds(option: str, text: str) -> float:
    return _duration(option, text) or 0.0


FailOpenWord = Literal["safe", "optimistic", "pessimistic"]
Pool = Annotated[str, typer.Option("--pool", metavar="POOL", help="Lease pool", autocompletion=pool_ids)]
Operation = Annotated[str, typer.Option(metavar="NAME", help="Kind of operation, which the pool may weight")]
Units = Annotated[int, typer.Option(metavar="N", min=1, help="Units to acquire")]
Hold = Annotated[
    str | None, typer.Option("--hold", metavar="DURATION", help="Maximum duration [default: hold of the pool]")
]
Tenant = Annotated[str, typer.Option(metavar="NAME", help="Fair-share tenant [default: token name]")]
Priority = Annotated[int, typer.Option(metavar="N", min=0, max=9, help="Priority; 9 is highest, waiting raises it")]
RequestId = Annotated[str, typer.Option("--request-id", metavar="ID", help="Idempotency key [default: random]")]
Replaces = Annotated[str, typer.Option(metavar="ID:TOKEN", help="Lease of the previous attempt, ended by this one")]
MaxWait = Annotated[str, typer.Option(metavar="DURATION", help="Maximum wait for admission; 0 to try once")]
InGroup = Annotated[str, typer.Option("--group", metavar="NAME", help="Group whose starts are spread over time")]
GroupSize = Annotated[int, typer.Option(metavar="N", min=1, help="Number of starts in the group")]
Spread = Annotated[str | None, typer.Option(metavar="DURATION", help="Time over which the group starts")]
Member = Annotated[
    int | None, typer.Option(metavar="N", min=0, help="Index in the group, from 0 [default: by arrival]")
]
Held = Annotated[
    str | None,
    typer.Argument(
        metavar="[LEASE_ID:TOKEN]", help="Lease [default: SLIPWAY_LEASE_ID, SLIPWAY_FENCING_TOKEN]", show_default=False
    ),
]
AsLeaseFormat = Annotated[LeaseFormat, typer.Option("-o", "--output", help="Output format; env prints lines for eval")]


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
    fail_open: Annotated[
        FailOpenWord, typer.Option(help="Unleased starts if the broker is unavailable, see above")
    ] = "safe",
    unavailable_after: Annotated[
        str, typer.Option(metavar="DURATION", help="Outage after which `safe` starts without a lease")
    ] = "10s",
    on_loss: Annotated[
        OnLoss, typer.Option(metavar="SIGNAL", help="Signal to the command if its lease is lost, or none")
    ] = OnLoss.TERM,
    throttled_exit: Annotated[
        list[int] | None,
        typer.Option(metavar="CODE", help="Exit code by which the command reports a throttle"),
    ] = None,
    attempt: Annotated[
        int, typer.Option(metavar="N", min=1, help="Attempt number; retries keep their age in the queue")
    ] = 1,
    request_id: RequestId = "",
    replaces: Replaces = "",
    group: InGroup = "",
    group_size: GroupSize = 1,
    spread: Spread = None,
    member: Member = None,
) -> None:
    """Run a command under a lease

    Waits for a lease, renews it while the command runs, and releases it when the command ends. The command gets the
    input, output and signals of `slipway`, and SLIPWAY_LEASE_ID, SLIPWAY_FENCING_TOKEN and SLIPWAY_LEASE_POOL in its
    environment. SLIPWAY_LEASE=off runs the command without a lease.

    \b
    If the lease-broker is unavailable, --fail-open decides:
      safe         start without a lease at the last known safe pace
      optimistic   start without a lease at once
      pessimistic  wait for the lease-broker

    \b
    Examples:
      slipway lease run --pool aws-ci --hold 20m -- openshift-install create cluster
      slipway lease run --pool aws-ci --attempt 2 --max-wait 30m --fail-open safe -- ./install.sh
      slipway lease run --pool aws-ci --group payload-4.22 --group-size 10 --spread 15m -- ./install.sh

    Exit codes: the command's, 128+n for signal n, 127 if it is not found, 126 if it cannot be run. Before it starts:
    75 not admitted within the wait, 69 lease-broker unavailable, 77 and 78 refused, 2 usage error.
    """
    if switched_off(os.environ):
        _exec(command)
    import asyncio

    from slipway_client.leases.attempts import Attempt
    from slipway_client.leases.log import log
    from slipway_client.leases.run import run

    api: Api = context.obj
    wanted = _wanted(
        pool,
        request_id=request_id,
        operation=operation,
        units=units,
        tenant=tenant,
        priority=priority,
        hold=hold,
        replaces=replaces,
        group=_group(group, group_size, spread, member),
    )

    def granted(lease: "Lease") -> None:
        numbered.granted(lease)
        _log_capped_hold(wanted.hold_seconds, [lease])

    numbered = Attempt(api.urls["lease-broker"], attempt, wanted, given_id=bool(request_id), log=log)
    session = _session(api, numbered.wanted, max_wait, fail_open, unavailable_after)
    signum = None if on_loss is OnLoss.NONE else signal.Signals[f"SIG{on_loss.value}"]
    ended = asyncio.run(
        run(
            session,
            pool,
            command,
            on_loss=signum,
            throttled=frozenset(throttled_exit or ()),
            granted=granted,
            log=log,
        )
    )
    if ended.resend is not None:  # so that our caller sees that Ctrl-C ended the command
        signal.signal(ended.resend, signal.SIG_DFL)
        os.kill(os.getpid(), ended.resend)
    if not ended.exit_code:
        numbered.succeeded()
    raise typer.Exit(ended.exit_code)


def _exec(command: list[str]) -> None:
    """Replace this process by the command: leases are switched off."""
    try:
        os.execvp(command[0], command)  # noqa: S606 (the user's own command)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
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
    output: AsLeaseFormat = LeaseFormat.HANDLE,
) -> None:
    """Wait for a lease and print it

    The caller renews the lease in time and releases it; `run` does both. A request with a --request-id keeps its place
    in the queue when the wait is over, and the same ID continues it; `cancel` ends it. With -o json its position is
    printed then.

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
    from slipway_client.leases.terms import Lease

    wanted = _wanted(
        pool,
        request_id=request_id,
        operation=operation,
        units=units,
        tenant=tenant,
        priority=priority,
        hold=hold,
        replaces=replaces,
        group=_group(group, group_size, spread, member),
    )
    session = _session(context.obj, wanted, max_wait, "pessimistic", resumable=bool(request_id))
    try:
        lease = asyncio.run(session.acquire())
    except NotAdmitted as error:
        if output is LeaseFormat.JSON and error.waiting is not None:
            import msgspec

            as_json({"request_id": wanted.request_id, "state": "waiting", **msgspec.structs.asdict(error.waiting)})
        raise
    assert isinstance(lease, Lease)
    _log_capped_hold(wanted.hold_seconds, [lease])
    _print_leases([lease], output)


def _log_capped_hold(requested_seconds: float | None, leases: "list[Lease]") -> None:
    """Log a hold that the pool has capped."""
    from slipway_client.leases.log import log

    for lease in leases:
        hold_seconds = lease.hold_seconds
        if requested_seconds is not None and hold_seconds is not None and hold_seconds < 0.99 * requested_seconds:
            granted, requested = moments.spelled(hold_seconds), moments.spelled(requested_seconds)
            log(f"hold capped at {granted} (requested {requested}) by pool {lease.lease_pool_id}")


def _print_leases(leases: "list[Lease]", output: LeaseFormat) -> None:
    import shlex

    import msgspec

    match output:
        case LeaseFormat.JSON:
            shown = [msgspec.structs.asdict(lease) for lease in leases]
            as_json(shown[0] if len(shown) == 1 else shown)
        case LeaseFormat.HANDLE:
            print(*(lease.handle for lease in leases), sep="\n")
        case LeaseFormat.ENV:
            (lease,) = leases
            values = {
                "SLIPWAY_LEASE_ID": lease.lease_id,
                "SLIPWAY_FENCING_TOKEN": str(lease.fencing_token),
                "SLIPWAY_LEASE_POOL": lease.lease_pool_id,
            }
            print(*(f"export {name}={shlex.quote(value)}" for name, value in values.items()), sep="\n")


@app.command("gang")
def acquire_gang(
    context: typer.Context,
    member: Annotated[list[str], typer.Option(metavar="POOL[:UNITS]", help="Lease pool and units; once per pool")],
    operation: Operation = "install",
    hold: Hold = None,
    tenant: Tenant = "",
    max_wait: MaxWait = "30m",
    request_id: RequestId = "",
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

    from slipway_client.leases import gang
    from slipway_client.leases.log import log
    from slipway_client.leases.terms import Gang, Member
    from slipway_common.base.ids import new_id

    hold_seconds = _duration("--hold", hold)
    members = []
    for text in member:
        pool, _, units = text.partition(":")
        if not pool or (units and not units.isdecimal()):
            raise typer.BadParameter(f"--member {text}: expected POOL or POOL:UNITS")
        members.append(Member(pool=pool, units=int(units or 1), hold_seconds=hold_seconds))
    wanted = Gang(request_id=request_id or new_id(), operation=operation, tenant=tenant, members=tuple(members))
    api: Api = context.obj
    max_wait_seconds = _seconds("--max-wait", max_wait)
    leases = asyncio.run(
        gang.acquire(api.urls["lease-broker"], api.token, wanted, max_wait_seconds=max_wait_seconds, log=log)
    )
    _log_capped_hold(hold_seconds, leases)
    _print_leases(leases, LeaseFormat(output))


@app.command("renew")
@app.command("heartbeat", hidden=True)
def renew(
    context: typer.Context,
    lease: Held = None,
    progress: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Progress marker; required by pools with a progress limit")
    ] = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """Renew a lease and print its remaining TTL in seconds

    \b
    Examples:
      slipway lease renew "$held"
      slipway lease heartbeat "$held"           the same

    Exit codes: 76 lease lost; 69, 77, 78 as for all lease commands.
    """
    for id_, token in _held(lease):
        body = {"fencing_token": token} | ({} if progress is None else {"progress": progress})
        answer = context.obj.post("lease-broker", path("leases", id_, "renew"), body)
        _print_result(answer, f"{answer['ttl_seconds_left']:.0f}", output)


@app.command("confirm")
def confirm(context: typer.Context, lease: Held = None, output: AsOutput = Output.TABLE) -> None:
    """Confirm a reserved lease and print its TTL in seconds

    \b
    Example:
      slipway lease confirm "$held"
    """
    for id_, token in _held(lease):
        answer = context.obj.post("lease-broker", path("leases", id_, "confirm"), {"fencing_token": token})
        _print_result(answer, f"{answer['ttl_seconds_left']:.0f}", output)


@app.command("release")
def release(
    context: typer.Context,
    lease: Held = None,
    remaining: Annotated[int | None, typer.Option(metavar="N", min=0, help="Units to keep [default: none]")] = None,
    result: Annotated[
        str, typer.Option("--result", metavar="RESULT", help="Result; `failed` slows down the tenant")
    ] = "done",
    throttled: Annotated[bool, typer.Option("--throttled", help="Throttled by the account")] = False,
    retry_after: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Retry-After of the account; implies --throttled")
    ] = None,
    quota_remaining: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Remaining quota reported by the account")
    ] = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """Release a lease and print the number of released units

    Idempotent: a second release prints 0.

    \b
    Examples:
      slipway lease release "$held"
      slipway lease release --result failed --throttled --retry-after 2m
    """
    evidence = {
        "remaining": remaining,
        "retry_after_seconds": _duration("--retry-after", retry_after),
        "quota_remaining": quota_remaining,
    }
    for id_, token in _held(lease):
        body = {"fencing_token": token, "result": result, "throttled": throttled or retry_after is not None}
        body |= {name: value for name, value in evidence.items() if value is not None}
        answer = context.obj.post("lease-broker", path("leases", id_, "release"), body)
        _print_result(answer, str(answer["released_units"]), output)


@app.command("cancel")
def cancel(
    context: typer.Context,
    pool: Pool,
    request: Annotated[str, typer.Argument(metavar="REQUEST_ID", help="ID of the request")],
) -> None:
    """Cancel a lease request

    A lease that was already granted to it is released.

    \b
    Example:
      slipway lease cancel --pool aws-ci "$HOST_UID"
    """
    if not (pool and request):
        raise typer.BadParameter("--pool or REQUEST_ID is empty: is a variable not set?")
    context.obj.delete("lease-broker", path("lease-pools", pool, "requests", request))


@app.command("status")
def status(
    context: typer.Context,
    lease: Annotated[
        str | None, typer.Argument(metavar="[LEASE_ID]", help="Lease [default: SLIPWAY_LEASE_ID]", show_default=False)
    ] = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """Show a lease

    \b
    Example:
      slipway lease status "$SLIPWAY_LEASE_ID"
    """
    if not (id_ := lease.partition(":")[0] if lease else os.environ.get("SLIPWAY_LEASE_ID", "")):
        raise typer.BadParameter("no lease: pass LEASE_ID or set SLIPWAY_LEASE_ID")
    row = context.obj.get("lease-broker", path("leases", id_))
    if output is Output.JSON:
        as_json(row)
    else:
        pairs({name: value for name, value in row.items() if name != "id"}, now())  # the same as lease_id


def _clock(field: str) -> Field:
    """Column of times."""
    heading = field.removesuffix("_at").replace("_", " ")
    return heading, lambda row: moments.clock(moments.at(row[field]), now()) if row.get(field) else None


def _id(row: Mapping[str, Any]) -> str:
    return str(row.get("lease_id") or row["id"])


LEASES: Final[tuple[Field, ...]] = (
    ("id", _id),
    ("pool", lambda row: row["lease_pool_id"]),
    "tenant",
    "operation",
    "state",
    "units",
    ("token", lambda row: row["fencing_token"]),
    _clock("granted_at"),
    _clock("expires_at"),
    _clock("hold_until"),
)


@app.command("ls")
def list_leases(
    context: typer.Context,
    pool: OfLeasePool = None,
    tenant: Annotated[str | None, typer.Option("--tenant", metavar="NAME", help="Tenant [default: all]")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Leases of all holders in all pools")] = False,
    output: Annotated[
        Listing, typer.Option("-o", "--output", help="Output format; name is one lease ID per line")
    ] = Listing.TABLE,
) -> None:
    """List leases, by default those of your own token

    Only leases that count against a limit. With --pool, --tenant or --all those of all holders, also Slipway's own
    launches.

    \b
    Examples:
      slipway lease ls -o name
      slipway lease ls --pool sim-a
    """
    mine = not (everybody or pool or tenant) or None
    rows = context.obj.get("lease-broker", "/leases", pool=pool, tenant=tenant, mine=mine)["items"]
    if output is Listing.NAME:
        for row in rows:
            print(_id(row))
    else:
        drop = ("granted", "operation", "token", "hold until", "tenant", "units")
        show(rows, LEASES, Output(output.value), nothing="no leases", drop=drop)


def _print_result(answer: Mapping[str, Any], value: str, output: Output) -> None:
    if output is Output.JSON:
        as_json(answer)
    else:
        print(value)


def _held(given: str | None) -> "Iterator[tuple[str, int]]":
    """Yield ID and fencing token of the command's lease; nothing if leases are switched off."""
    if switched_off(os.environ):
        return
    environment = os.environ
    text = given or f"{environment.get('SLIPWAY_LEASE_ID', '')}:{environment.get('SLIPWAY_FENCING_TOKEN', '')}"
    if text == ":":
        raise typer.BadParameter("no lease: pass LEASE_ID:TOKEN or set SLIPWAY_LEASE_ID and SLIPWAY_FENCING_TOKEN")
    handle = _handle(text)
    yield handle.lease_id, handle.fencing_token


def _handle(text: str) -> "ReplacedLease":
    from slipway_client.leases.terms import parse_handle

    try:
        return parse_handle(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _group(name: str, size: int, spread: str | None, member: int | None) -> "LeaseGroup | None":
    if not name:
        if spread is not None or member is not None or size != 1:
            raise typer.BadParameter("--group-size, --spread and --member need --group")
        return None
    from slipway_common.events.lease import LeaseGroup

    if (seconds := _duration("--spread", spread)) is None:
        raise typer.BadParameter("--group needs --spread")
    if member is not None and member >= size:
        raise typer.BadParameter(f"--member must be from 0 to {size - 1} in a group of {size}")
    return LeaseGroup(name=name, size=size, spread_seconds=seconds, member=member)


def _wanted(
    pool: str,
    *,
    request_id: str,
    operation: str,
    units: int,
    tenant: str,
    priority: int,
    hold: str | None,
    replaces: str,
    group: "LeaseGroup | None",
) -> "Wanted":
    from slipway_client.leases.terms import Wanted
    from slipway_common.base.ids import new_id

    hold_seconds, before = _duration("--hold", hold), _handle(replaces) if replaces else None
    try:
        return Wanted(
            lease_pool_id=pool,
            request_id=request_id or new_id(),
            operation=operation,
            units=units,
            tenant=tenant,
            priority=priority,
            hold_seconds=hold_seconds,
            replaces=before,
            group=group,
        )
    except ValueError as error:
        raise typer.BadParameter(f"--pool: {error}") from error


def _session(
    api: Api, wanted: "Wanted", max_wait: str, fail_open: str, unavailable_after: str = "0", *, resumable: bool = False
) -> "Session":
    from slipway_client.leases.admission import Admission, FailOpen
    from slipway_client.leases.log import log
    from slipway_client.leases.session import open_session
    from slipway_common.base.clock import monotonic_seconds

    admission = Admission(
        begun_at=monotonic_seconds(),
        max_wait_seconds=_seconds("--max-wait", max_wait),
        fail_open=FailOpen(fail_open),
        unavailable_seconds=_seconds("--unavailable-after", unavailable_after),
    )
    return open_session(api.urls["lease-broker"], api.token, wanted, admission, log, resumable=resumable)
