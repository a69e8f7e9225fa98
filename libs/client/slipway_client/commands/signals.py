"""`slipway signal`: opinions from outside on where launches go well."""

from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from slipway_client import moments
from slipway_client.commands.workers import found
from slipway_client.http import Failed
from slipway_client.options import AsOutput, Reason, noun, now
from slipway_client.tables import Field, Output, as_json, show
from slipway_common.lifecycle import State

app = noun("Signals: opinions from outside.")

TARGETS: Final = ("config", "zone", "account", "pool", "image", "worker")
KINDS: Final = (
    "degraded",
    "down",
    "recovered",
    "capacity_hint",
    "spot_interruption",
    "pause_request",
    "resume_request",
)
AT_ONCE: Final = frozenset({"recovered", "resume_request"})  # done when they are heard: they hold for no time
VALUED: Final = frozenset({"degraded", "capacity_hint", "spot_interruption"})
SHARES: Final = VALUED - {"capacity_hint"}
COUNT_MAX: Final = 1e9 - 1
HELD_SECONDS: Final = 900.0
HELD_SECONDS_MAX: Final = 86_400.0

LIVE: Final[tuple[Field, ...]] = (
    "source",
    "kind",
    ("target", lambda row: f"{row['target_kind']} {row['target_id']}"),
    ("value", lambda row: row["value"] if row["kind"] in VALUED else None),
    ("until", lambda row: None if row["kind"] in AT_ONCE else moments.clock(moments.at(row["until"]), now())),
    ("configs", lambda row: len(row["configs"])),
    "reason",
)
REFUSED: Final[tuple[Field, ...]] = (
    ("at", lambda row: moments.clock(moments.at(row["at"]), now())),
    "source",
    "kind",
    ("target", lambda row: f"{row['target_kind']} {row['target_id']}"),
    "why",
)

TargetKind = Annotated[
    str, typer.Argument(metavar="TARGET", help=", ".join(TARGETS) + ".", autocompletion=lambda: list(TARGETS))
]
TargetId = Annotated[str, typer.Argument(metavar="ID", help="Which one; of a worker its id, or its last 8 digits.")]
Kind = Annotated[str, typer.Argument(metavar="KIND", help=", ".join(KINDS) + ".", autocompletion=lambda: list(KINDS))]
Holds = Annotated[
    str | None,
    typer.Option("--for", metavar="DURATION", help="Without effect after 90s, 30m, 2h…; at most 24h.  [default: 15m]"),
]
Value = Annotated[
    float | None,
    typer.Option(help="degraded: what is left of the health, 0 to 1; capacity_hint: starts that there is room for."),
]


@app.command("raise")
def raise_signal(
    context: typer.Context,
    target: TargetKind,
    id_: TargetId,
    kind: Kind,
    reason: Reason,
    for_: Holds = None,
    value: Value = None,
) -> None:
    """Say how a target does; outcomes still decide. The source is the name of your token.

    \b
    Examples:
      slipway signal raise zone us-east-1b degraded --reason "status page" --for 1h
      slipway signal raise config linux-zone-b down --reason "rack is dark"
      slipway signal raise zone us-east-1b recovered --reason "status page"
    """
    _check_words(target, kind)
    seconds = _held_seconds(kind, for_)
    _check_value(kind, target, value)
    if target == "worker":
        worker = found(context.obj, id_)
        id_ = str(worker["id"])
        if kind == "spot_interruption" and worker["state"] in (State.REQUESTED, State.STOPPED):
            raise Failed(f"worker {id_} is {worker['state']}: it has no machine that could be taken away")
    at = now()
    body: dict[str, Any] = {
        "target_kind": target,
        "target_id": id_,
        "kind": kind,
        "reason": reason,
        "observed_at": at.isoformat(),
        "ttl_seconds": seconds,
    }
    if value is not None:
        body["value"] = value
    told = context.obj.post("weight-calculator", "/signals", body)
    until = moments.clock(at + timedelta(seconds=seconds), at)
    print(f"{kind} of {target} {id_} {_effect(target, kind, told['configs'], until)}")


def _check_words(target: str, kind: str) -> None:
    for what, given, known in (("TARGET", target, TARGETS), ("KIND", kind, KINDS)):
        if given not in known:
            raise typer.BadParameter(f"{what}: there is no {given!r}; there is {', '.join(known)}")


def _held_seconds(kind: str, for_: str | None) -> float:
    if for_ is None:
        return HELD_SECONDS
    if kind in AT_ONCE:
        raise typer.BadParameter(f"--for: a {kind} is done once it is heard, and holds for no time; leave it out")
    try:
        seconds = moments.seconds(for_)
    except ValueError as error:
        raise typer.BadParameter(f"--for: {error}") from error
    if seconds > HELD_SECONDS_MAX:
        raise typer.BadParameter(f"--for: {for_} is more than 24h; a signal is repeated for as long as it is so")
    return seconds


def _check_value(kind: str, target: str, value: float | None) -> None:
    if value is None:
        if kind == "capacity_hint":
            raise typer.BadParameter("--value: a capacity_hint needs one, the starts that there is room for")
        return
    if kind not in VALUED or (kind, target) == ("spot_interruption", "worker"):
        raise typer.BadParameter(f"--value: a {kind} of a {target} takes none; leave it out")
    if not (0 <= value <= (1 if kind in SHARES else COUNT_MAX)):
        between = "between 0 and 1" if kind in SHARES else "a number of starts"
        raise typer.BadParameter(f"--value: {value:.10g} is not {between}")


def _effect(target: str, kind: str, reached: list[str], until: str) -> str:
    """What happens by a signal that was taken."""
    configs = f"{', '.join(reached[:5])}{' …' if len(reached) > 5 else ''}"
    match target, kind:
        case _, "recovered":
            return f"takes back what its source has said before, and {configs} is probed at once where closed"
        case _, "pause_request":
            return f"is passed on: nothing launches there, until {until}"
        case _, "resume_request":
            return "is passed on: what its source has paused goes on"
        case "worker", "spot_interruption":
            return "is passed on: the worker leaves after the task that it has"
    return f"counts for {configs}, until {until}"


@app.command("ls")
def list_signals(context: typer.Context, output: AsOutput = Output.TABLE) -> None:
    """List the signals that count now, and the newest that were refused on Kafka.

    A refusal over HTTP is told to whoever raises the signal, and listed nowhere.

    \b
    Example:
      slipway signal ls
    """
    told = context.obj.get("weight-calculator", "/signals")
    if output is Output.JSON:
        as_json(told)
        return
    show(told["items"], LIVE, output, nothing="no signals")
    if told["refused"]:
        print("\nrefused")
        show(told["refused"], REFUSED, output, nothing="")
