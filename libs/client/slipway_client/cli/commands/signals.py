"""`slipway signal` commands: external signals on the health of launch targets."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Final

import typer

from slipway_api.events.lifecycle import ENDED, WAITING
from slipway_api.events.signal_kinds import AT_ONCE, CAPS, KINDS, TTL_SECONDS, TTL_SECONDS_MAX, VALUED
from slipway_api.http.weight_calculator import AcceptedSignal, LiveSignal, RefusedSignal, Signals
from slipway_client.cli import options
from slipway_client.cli.commands.workers import found
from slipway_client.cli.options import AsOutput, Reason, api_of, clock, noun, now
from slipway_client.cli.tables import Field, Output, as_json, table
from slipway_client.transport.failed import Failed
from slipway_client.view import moments
from slipway_common.base.revisions import name_of
from slipway_common.base.text import listed

app = noun("Manage external health signals")

TARGETS: Final = ("config", "zone", "account", "pool", "image", "worker", "capacity")  # in the order of their use
CONFIGS_SHOWN: Final = 5

LIVE: Final[tuple[Field[LiveSignal], ...]] = (
    "source",
    "kind",
    ("target", lambda row: f"{row.target_kind} {row.target_id}"),
    ("value", lambda row: row.value if row.kind in VALUED else None),
    ("until", lambda row: None if row.kind in AT_ONCE else clock(row.until)),
    ("configs", lambda row: len(_names(row.configs))),
    "reason",
)
REFUSED: Final[tuple[Field[RefusedSignal], ...]] = (
    ("at", lambda row: clock(row.at)),
    "source",
    "kind",
    ("target", lambda row: f"{row.target_kind} {row.target_id}"),
    "reason",
)

TargetKind = Annotated[
    str, typer.Argument(metavar="TARGET", help=", ".join(TARGETS), autocompletion=lambda: list(TARGETS))
]


def _ids(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """IDs of targets of the kind given before, as far as a service lists them."""
    listed = {"config": options.revisions, "pool": options.pools, "worker": options.workers}
    complete = listed.get(context.params.get("target") or "")
    return complete(context, incomplete) if complete else []


TargetId = Annotated[
    str,
    typer.Argument(metavar="ID", help="ID or name of the target; a worker's last digits", autocompletion=_ids),
]
Kind = Annotated[str, typer.Argument(metavar="KIND", help="Kind, see above", autocompletion=lambda: list(KINDS))]
Holds = Annotated[
    str | None, typer.Option("--for", metavar="DURATION", help="Time in effect, at most 24h [default: 15m]")
]
Value = Annotated[float | None, typer.Option(metavar="NUMBER", help="Value of the signal, see above")]


KINDS_HELP: Final = "\n".join(f"  {kind.name:<20}{kind.effect}" for kind in KINDS.values())
RAISE_HELP: Final = f"""Raise a health signal for a target

Signals adjust weights; launch outcomes still count. The source of the signal is the name of your token. A signal for
config NAME reaches all its revisions, one for NAME@HASH a single one.

\b
Kinds:
{KINDS_HELP}

\b
Examples:
  slipway signal raise zone us-east-1b degraded --reason "status page" --for 1h
  slipway signal raise config linux-zone-b down --reason "rack is dark"
  slipway signal raise zone us-east-1b recovered --reason "status page"
"""


@app.command("raise", help=RAISE_HELP)
def raise_signal(
    context: typer.Context,
    target: TargetKind,
    id_: TargetId,
    kind: Kind,
    reason: Reason,
    for_: Holds = None,
    value: Value = None,
) -> None:
    """Raise a health signal for a target."""
    _check_words(target, kind)
    seconds = _held_seconds(kind, for_)
    _check_value(kind, target, value)
    if target == "worker":
        worker = found(api_of(context), id_).value
        id_ = worker.id
        if kind == "spot_interruption" and worker.state in WAITING | ENDED:
            raise Failed(f"worker {id_} is {worker.state}: it has no instance to interrupt")
    at = now()
    body = {
        "target_kind": target,
        "target_id": id_,
        "kind": kind,
        "reason": reason,
        "observed_at": at.isoformat(),
        "ttl_seconds": seconds,
        "value": value,
    }
    answer = api_of(context).post(AcceptedSignal, "weight-calculator", "/signals", body)
    until = moments.clock(at + timedelta(seconds=seconds), at)
    print(f"{kind} of {target} {id_} {_effect(target, kind, answer.configs, until)}")


def _check_words(target: str, kind: str) -> None:
    for what, given, known in (("TARGET", target, TARGETS), ("KIND", kind, KINDS)):
        if given not in known:
            raise typer.BadParameter(f"{what}: {given!r} is not one of {', '.join(known)}")


def _held_seconds(kind: str, for_: str | None) -> float:
    if for_ is not None and kind in AT_ONCE:
        raise typer.BadParameter(f"--for: a {kind} takes effect once and has no duration; omit --for")
    seconds = options.duration_seconds("--for", for_)
    if seconds is None:
        return TTL_SECONDS
    if seconds > TTL_SECONDS_MAX:
        raise typer.BadParameter(f"--for: {for_} is more than 24h; raise the signal again before it ends")
    return seconds


def _check_value(kind: str, target: str, value: float | None) -> None:
    if value is None:
        if kind in CAPS:
            raise typer.BadParameter(f"--value: required for a {kind}: the number of starts with room")
        return
    if kind not in VALUED or (kind, target) == ("spot_interruption", "worker"):
        raise typer.BadParameter(f"--value: not accepted for a {kind} of a {target}; omit --value")
    if expected := KINDS[kind].expected(value):
        raise typer.BadParameter(f"--value: {value:.10g} is not {expected}")


def _effect(target: str, kind: str, reached: Sequence[str], until: str) -> str:
    """Effect of an accepted signal. It reaches all revisions of a launch config."""
    configs = listed(_names(reached), CONFIGS_SHOWN)
    match target, kind:
        case _, "recovered":
            return f"accepted: earlier signals of its source are withdrawn; probed at once if tripped: {configs}"
        case _, "pause_request":
            return f"accepted: pauses launches until {until}, unless it exceeds the share of its source"
        case _, "resume_request":
            return "accepted: the pause of its source ends"
        case "worker", "spot_interruption":
            return "accepted: the worker drains and leaves after its current task"
    return f"accepted: counts for {configs} until {until}"


def _names(reached: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(map(name_of, reached)))


@app.command("ls")
def list_signals(context: typer.Context, output: AsOutput = Output.TABLE) -> None:
    """List active signals and recently refused ones

    Refused signals are those from Kafka; over HTTP the caller gets the refusal. A pause request beyond the share of
    its source raises an alert instead: `slipway alert ls`.

    \b
    Example:
      slipway signal ls
    """
    read = api_of(context).read(Signals, "weight-calculator", "/signals")
    if output is Output.JSON:
        as_json(read.sent)
        return
    answer = read.value
    table(answer.items, LIVE, nothing="no signals")
    if answer.refused:
        print("\nrefused:")
        table(answer.refused, REFUSED, nothing="")
