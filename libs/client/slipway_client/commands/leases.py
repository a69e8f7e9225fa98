"""`slipway lease`: what asks for leases, holds them and gives them back. lease_pools.py has what operators do.

Values go to standard output, everything else to standard error, so that a script may take what it gets.
"""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from typer.core import TyperGroup

from slipway_client import moments
from slipway_client.commands import lease_pools
from slipway_client.http import Api, Failed, path
from slipway_client.options import AsOutput, OfLeasePool, now
from slipway_client.options import lease_pools as pool_ids
from slipway_client.switch import switched_off
from slipway_client.tables import Field, Output, as_json, pairs, short, show

if TYPE_CHECKING:
    from slipway_client.leases.session import Session
    from slipway_client.leases.terms import Lease, Wanted
    from slipway_common.events.lease import LeaseGroup, ReplacedLease


class _Exits(TyperGroup):
    """A refusal ends with the code of its kind, whoever asked. Usage stays 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Failed as error:
            if type(error) is Failed:
                from slipway_client.leases.errors import exit_code

                error.exit_code = exit_code(error.status, error.slug)
            raise


app = typer.Typer(
    cls=_Exits,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Leases: admission to accounts.

    \b
    Exit codes: 0 done; 75 not admitted within the wait; 69 the lease-broker does not answer; 76 the lease is lost;
    77 refused (token, scope, owner); 78 refused (unknown pool, bad request); 2 wrong usage. `run` ends as its command
    does, once that ran.
    """,
)
app.add_typer(lease_pools.app)


class Listing(StrEnum):
    TABLE, JSON, NAME = "table", "json", "name"


class Handed(StrEnum):
    """How a lease is handed to a script."""

    HANDLE, ENV, JSON = "handle", "env", "json"


class OnLoss(StrEnum):
    TERM, INT, HUP, QUIT, USR1, USR2, KILL, NONE = "TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "KILL", "none"


def _duration(option: str, text: str | None) -> float | None:
    """Seconds of a duration such as 20m; 0 is one too."""
    if text is None or not text.strip("0s"):
        return None if text is None else 0.0
    try:
        return moments.seconds(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def _seconds(option: str, text: str) -> float:
    return _duration(option, text) or 0.0


FailOpenWord = Literal["safe", "optimistic", "pessimistic"]
Pool = Annotated[str, typer.Option("--pool", help="The lease pool.", autocompletion=pool_ids)]
Operation = Annotated[str, typer.Option(help="Kind of work; pools weigh kinds differently.")]
Units = Annotated[int, typer.Option(min=1, help="How many starts this is.")]
Hold = Annotated[str | None, typer.Option("--hold", metavar="DURATION", help="End the lease by itself after this.")]
Tenant = Annotated[str, typer.Option(help="Whose share it counts in; without one the token's name.")]
Priority = Annotated[int, typer.Option(min=0, max=9, help="9 goes first; waiting raises it.")]
RequestId = Annotated[str, typer.Option("--request-id", help="The same id again is the same request.")]
Replaces = Annotated[
    str, typer.Option(metavar="ID:TOKEN", help="Lease of the attempt before: it ends, its age counts.")
]
MaxWait = Annotated[str, typer.Option(metavar="DURATION", help="How long to wait in all; 0: ask once.")]
InGroup = Annotated[str, typer.Option("--group", help="Starts of a group are spread.")]
GroupSize = Annotated[int, typer.Option(min=1, help="How many the group has.")]
Spread = Annotated[str | None, typer.Option(metavar="DURATION", help="Over how long the group starts.")]
Member = Annotated[int | None, typer.Option(min=0, help="Which of the group this is; without one by arrival.")]
Held = Annotated[
    str | None,
    typer.Argument(
        metavar="[LEASE_ID:TOKEN]",
        help="As `acquire` prints it; without one SLIPWAY_LEASE_ID and _FENCING_TOKEN.",
        show_default=False,
    ),
]
AsHanded = Annotated[Handed, typer.Option("-o", "--output", help="LEASE_ID:TOKEN, lines for `eval`, or JSON.")]


@app.command("run", context_settings={"allow_interspersed_args": False})
def run_leased(
    context: typer.Context,
    pool: Pool,
    command: Annotated[list[str], typer.Argument(metavar="-- CMD…", help="What runs under the lease.")],
    operation: Operation = "install",
    hold: Hold = None,
    units: Units = 1,
    tenant: Tenant = "",
    priority: Priority = 0,
    max_wait: MaxWait = "30m",
    fail_open: Annotated[
        FailOpenWord, typer.Option(help="While the broker is silent: start at the last safe pace, at once, or never.")
    ] = "safe",
    silent_after: Annotated[
        str, typer.Option(metavar="DURATION", help="In mode safe: how long a broker may be silent.")
    ] = "10s",
    on_loss: Annotated[
        OnLoss, typer.Option(help="Signal for the command when its lease is lost: not renewed in time, or replaced.")
    ] = OnLoss.TERM,
    throttled_exit: Annotated[
        list[int] | None,
        typer.Option(metavar="CODE", help="The command's exit code that means: the account throttled it."),
    ] = None,
    attempt: Annotated[int, typer.Option(min=1, help="From 2 on this continues the attempt before.")] = 1,
    request_id: RequestId = "",
    replaces: Replaces = "",
    group: InGroup = "",
    group_size: GroupSize = 1,
    spread: Spread = None,
    member: Member = None,
) -> None:
    """Run a command while a lease is held: wait for it, renew it, give it back once, however the command ends.

    The command gets our input, output and signals, and SLIPWAY_LEASE_ID, SLIPWAY_FENCING_TOKEN and SLIPWAY_LEASE_POOL.
    Nothing of the caller's shell is changed: its traps are its own. SLIPWAY_LEASE=off runs the command alone.

    \b
    Examples:
      slipway lease run --pool aws-ci --hold 20m -- openshift-install create cluster
      slipway lease run --pool aws-ci --attempt 2 --max-wait 30m --fail-open safe -- ./install.sh
      slipway lease run --pool aws-ci --group payload-4.22 --group-size 10 --spread 15m -- ./install.sh

    Exit codes: the command's, 128+n for signal n, 127 and 126 when it is not found and cannot be run. Before it
    runs: 75 not admitted within the wait, 69 the broker does not answer, 77 and 78 refused, 2 wrong usage.
    """
    if switched_off(os.environ):
        _become(command)
    import asyncio

    from slipway_client.leases import log
    from slipway_client.leases.attempts import Attempt
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
        _tell_hold(wanted.hold_seconds, [lease])

    numbered = Attempt(api.urls["lease-broker"], attempt, wanted, given_id=bool(request_id), say=log.say)
    session = _session(api, numbered.wanted, max_wait, fail_open, silent_after)
    signum = None if on_loss is OnLoss.NONE else signal.Signals[f"SIG{on_loss.value}"]
    ended = asyncio.run(
        run(
            session,
            pool,
            command,
            on_loss=signum,
            throttled=frozenset(throttled_exit or ()),
            granted=granted,
            say=log.say,
        )
    )
    if ended.resend is not None:  # so that our caller sees what Ctrl-C has done
        signal.signal(ended.resend, signal.SIG_DFL)
        os.kill(os.getpid(), ended.resend)
    if not ended.exit_code:
        numbered.succeeded()
    raise typer.Exit(ended.exit_code)


def _become(command: list[str]) -> None:
    """Switched off: as if we had never been there."""
    try:
        os.execvp(command[0], command)  # noqa: S606 (the very command that was given)
    except OSError as error:
        print(f"{command[0]} cannot be started: {error.strerror}", file=sys.stderr)
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
    output: AsHanded = Handed.HANDLE,
) -> None:
    """Wait for a lease and print it. Whoever takes it renews it in time and gives it back: `run` does both.

    A request with an id of its caller's stays in the queue when the wait is over, so that asking again finds its place
    there; `cancel` ends it. With -o json the place is printed then.

    \b
    Examples:
      held=$(slipway lease acquire --pool aws-ci --max-wait 10m)
      eval "$(slipway lease acquire --pool aws-ci -o env)"
      slipway lease acquire --pool aws-ci --request-id "$HOST_UID" --max-wait 0 -o json

    Exit codes: 0 granted, 75 not admitted within the wait, 69 the broker does not answer, 77 and 78 refused.
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
    session = _session(context.obj, wanted, max_wait, "pessimistic", comes_back=bool(request_id))
    try:
        lease = asyncio.run(session.acquire())
    except NotAdmitted as error:
        if output is Handed.JSON and error.waiting is not None:
            import msgspec

            as_json({"request_id": wanted.request_id, "state": "waiting", **msgspec.structs.asdict(error.waiting)})
        raise
    assert isinstance(lease, Lease)
    _tell_hold(wanted.hold_seconds, [lease])
    _hand([lease], output)


def _tell_hold(asked_seconds: float | None, leases: "list[Lease]") -> None:
    """No lease is held for longer than its pool's hold: whoever asked for more has to know."""
    from slipway_client.leases import log

    for lease in leases:
        if asked_seconds is not None and lease.hold_seconds is not None and lease.hold_seconds < 0.99 * asked_seconds:
            given, asked = moments.spelled(lease.hold_seconds), moments.spelled(asked_seconds)
            log.say(f"the hold of this lease is {given}, not {asked}: {lease.lease_pool_id} grants no longer ones")


def _hand(leases: "list[Lease]", output: Handed) -> None:
    import shlex

    import msgspec

    match output:
        case Handed.JSON:
            shown = [msgspec.structs.asdict(lease) for lease in leases]
            as_json(shown[0] if len(shown) == 1 else shown)
        case Handed.HANDLE:
            print(*(lease.handle for lease in leases), sep="\n")
        case Handed.ENV:
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
    member: Annotated[list[str], typer.Option(metavar="POOL[:UNITS]", help="Give it once for each pool.")],
    operation: Operation = "install",
    hold: Hold = None,
    tenant: Tenant = "",
    max_wait: MaxWait = "30m",
    request_id: RequestId = "",
    output: Annotated[
        Literal["handle", "json"], typer.Option("-o", "--output", help="A LEASE_ID:TOKEN a line, or JSON.")
    ] = "handle",
) -> None:
    """Wait for leases of several pools at once: all of them, or none.

    \b
    Example:
      slipway lease gang --member aws-ci --member quay-pulls:10 --max-wait 10m
    """
    if switched_off(os.environ):
        return
    import asyncio

    from slipway_client.leases import gang, log
    from slipway_client.leases.terms import Gang, Member
    from slipway_common.ids import new_id

    hold_seconds = _duration("--hold", hold)
    members = []
    for text in member:
        pool, _, units = text.partition(":")
        if not pool or (units and not units.isdecimal()):
            raise typer.BadParameter(f"--member {text}: write POOL or POOL:UNITS")
        members.append(Member(pool=pool, units=int(units or 1), hold_seconds=hold_seconds))
    wanted = Gang(request_id=request_id or new_id(), operation=operation, tenant=tenant, members=tuple(members))
    api: Api = context.obj
    max_wait_seconds = _seconds("--max-wait", max_wait)
    leases = asyncio.run(
        gang.acquire(api.urls["lease-broker"], api.token, wanted, max_wait_seconds=max_wait_seconds, say=log.say)
    )
    _tell_hold(hold_seconds, leases)
    _hand(leases, Handed(output))


@app.command("renew")
@app.command("heartbeat", hidden=True)
def renew(
    context: typer.Context,
    lease: Held = None,
    progress: Annotated[
        str | None, typer.Option(help="Any text that changes while the work gets on; some pools ask for it.")
    ] = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """Say that a lease is still held; prints for how many seconds more.

    \b
    Examples:
      slipway lease renew "$held"
      slipway lease heartbeat "$held"           the same

    Exit codes: 76 the lease is lost; 69, 77, 78 as for all.
    """
    for id_, token in _held(lease):
        body = {"fencing_token": token} | ({} if progress is None else {"progress": progress})
        told = context.obj.post("lease-broker", path("leases", id_, "renew"), body)
        _tell(told, f"{told['ttl_seconds_left']:.0f}", output)


@app.command("confirm")
def confirm(context: typer.Context, lease: Held = None, output: AsOutput = Output.TABLE) -> None:
    """Say that a reserved lease is used; prints for how many seconds it lives unrenewed.

    \b
    Example:
      slipway lease confirm "$held"
    """
    for id_, token in _held(lease):
        told = context.obj.post("lease-broker", path("leases", id_, "confirm"), {"fencing_token": token})
        _tell(told, f"{told['ttl_seconds_left']:.0f}", output)


@app.command("release")
def release(
    context: typer.Context,
    lease: Held = None,
    remaining: Annotated[int | None, typer.Option(min=0, help="Keep so many units; without it none.")] = None,
    result: Annotated[str, typer.Option(help="How it went; what fails slows its tenant down.")] = "done",
    throttled: Annotated[bool, typer.Option("--throttled", help="The account has throttled it.")] = False,
    retry_after: Annotated[
        str | None, typer.Option(metavar="DURATION", help="When the account said to come back.")
    ] = None,
    quota_remaining: Annotated[int | None, typer.Option(min=0, help="What the account said is left.")] = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """Give a lease back; prints how many units that were. Again is no error, and gives back nothing.

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
        told = context.obj.post("lease-broker", path("leases", id_, "release"), body)
        _tell(told, str(told["released_units"]), output)


@app.command("cancel")
def cancel(context: typer.Context, pool: Pool, request: Annotated[str, typer.Argument(metavar="REQUEST_ID")]) -> None:
    """Stop waiting. What the request was granted already is given back.

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
        str | None, typer.Argument(metavar="[LEASE_ID]", help="Without one SLIPWAY_LEASE_ID.", show_default=False)
    ] = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """Show one lease: what it covers, and for how long.

    \b
    Example:
      slipway lease status "$SLIPWAY_LEASE_ID"
    """
    if not (id_ := lease.partition(":")[0] if lease else os.environ.get("SLIPWAY_LEASE_ID", "")):
        raise typer.BadParameter("which lease? Give its id, or set SLIPWAY_LEASE_ID")
    row = context.obj.get("lease-broker", path("leases", id_))
    if output is Output.JSON:
        as_json(row)
    else:
        pairs({name: value for name, value in row.items() if name != "id"}, now())  # lease_id says it too


def _clock(field: str) -> Field:
    """A column of times."""
    heading = field.removesuffix("_at").replace("_", " ")
    return heading, lambda row: moments.clock(moments.at(row[field]), now()) if row.get(field) else None


def _id(row: Mapping[str, Any]) -> str:
    return str(row.get("lease_id") or row["id"])


LEASES: Final[tuple[Field, ...]] = (
    ("id", lambda row: short(_id(row))),
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
    tenant: Annotated[str | None, typer.Option("--tenant", help="Only this tenant's.")] = None,
    everybody: Annotated[bool, typer.Option("--all", help="Everybody's, of all pools.")] = False,
    output: Annotated[Listing, typer.Option("-o", "--output", help="A table, JSON, or an id a line.")] = Listing.TABLE,
) -> None:
    """List leases that count against a limit: those that your own token acquired.

    With --pool, --tenant or --all everybody's, Slipway's own launches among them.

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
        show(rows, LEASES, Output(output.value), nothing="no leases")


def _tell(told: Mapping[str, Any], value: str, output: Output) -> None:
    if output is Output.JSON:
        as_json(told)
    else:
        print(value)


def _held(given: str | None) -> "Iterator[tuple[str, int]]":
    """The lease that a command is about: one, or none where leases are switched off."""
    if switched_off(os.environ):
        return
    environment = os.environ
    text = given or f"{environment.get('SLIPWAY_LEASE_ID', '')}:{environment.get('SLIPWAY_FENCING_TOKEN', '')}"
    if text == ":":
        raise typer.BadParameter("which lease? Give LEASE_ID:TOKEN, or set SLIPWAY_LEASE_ID and SLIPWAY_FENCING_TOKEN")
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
            raise typer.BadParameter("--group-size, --spread and --member belong to a --group")
        return None
    from slipway_common.events.lease import LeaseGroup

    if (seconds := _duration("--spread", spread)) is None:
        raise typer.BadParameter("--group needs --spread, over which it starts")
    if member is not None and member >= size:
        raise typer.BadParameter(f"--member counts from 0 to {size - 1} in a group of {size}")
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
    from slipway_common.ids import new_id

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
    api: Api, wanted: "Wanted", max_wait: str, fail_open: str, silent_after: str = "0", *, comes_back: bool = False
) -> "Session":
    from slipway_client.leases import log
    from slipway_client.leases.asking import Asking, FailOpen
    from slipway_client.leases.session import open_session
    from slipway_common.clock import monotonic_seconds

    patience = Asking(
        begun_at=monotonic_seconds(),
        max_wait_seconds=_seconds("--max-wait", max_wait),
        fail_open=FailOpen(fail_open),
        silent_seconds=_seconds("--silent-after", silent_after),
    )
    return open_session(api.urls["lease-broker"], api.token, wanted, patience, log.say, comes_back=comes_back)
