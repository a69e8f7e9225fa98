"""`slipway signal`: opinions from outside on where launches go well."""

from datetime import timedelta
from typing import Annotated, Any, Final

import typer

from slipway_client import moments
from slipway_client.commands.workers import found
from slipway_client.options import AsOutput, Reason, noun, now
from slipway_client.tables import Field, Output, as_json, show

app = noun("Signals: opinions from outside.")

TARGETS: Final = ("config", "zone", "account", "pool", "image", "worker")
KINDS: Final = (
    "degraded", "down", "recovered", "capacity_hint", "spot_interruption", "pause_request", "resume_request",
)  # fmt: skip

LIVE: Final[tuple[Field, ...]] = (
    "source",
    "kind",
    ("target", lambda row: f"{row['target_kind']} {row['target_id']}"),
    "value",
    ("until", lambda row: moments.clock(moments.at(row["until"]), now())),
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
Holds = Annotated[str, typer.Option("--for", metavar="DURATION", help="Without effect after 90s, 30m, 2h….")]
Value = Annotated[
    float | None,
    typer.Option(help="degraded: what is left of the health, 0 to 1; capacity_hint: starts that there is room for."),
]


@app.command("raise")
def raise_signal(
    context: typer.Context, target: TargetKind, id_: TargetId, kind: Kind, reason: Reason, for_: Holds = "15m",
    value: Value = None,
) -> None:  # fmt: skip
    """Say how a target does; outcomes still decide. The source is the name of your token.

    \b
    Examples:
      slipway signal raise zone us-east-1b degraded --reason "status page" --for 1h
      slipway signal raise config linux-zone-b down --reason "rack is dark"
      slipway signal raise zone us-east-1b recovered --reason "status page"
    """
    try:
        seconds = moments.seconds(for_)
    except ValueError as error:
        raise typer.BadParameter(f"--for: {error}") from error
    if target == "worker":
        id_ = str(found(context.obj, id_)["id"])
    at = now()
    body: dict[str, Any] = {
        "target_kind": target, "target_id": id_, "kind": kind, "reason": reason, "observed_at": at.isoformat(),
        "ttl_seconds": seconds,
    }  # fmt: skip
    if value is not None:
        body["value"] = value
    told = context.obj.post("weight-calculator", "/signals", body)
    until = moments.clock(at + timedelta(seconds=seconds), at)
    print(f"{kind} of {target} {id_} {_effect(target, kind, told['configs'], until)}")


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
