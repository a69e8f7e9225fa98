"""`slipway worker`, and `slipway decision`, which made them."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from slipway_client import moments
from slipway_client.http import Api, Failed, path
from slipway_client.options import AsOutput, OfPool, Reason, WorkerId, noun, now
from slipway_client.tables import Field, Output, as_json, pairs, short, show
from slipway_common.lifecycle import State

app = noun("Workers.")
decision = noun("Decisions: what was launched where, and why.")

NEWEST: Final = 1000
DIGITS: Final = re.compile(r"[0-9a-f]{6,12}")


def _age(row: Mapping[str, Any]) -> str:
    return moments.spelled((now() - moments.at(row["requested_at"])).total_seconds())


FIELDS: Final[tuple[Field, ...]] = (
    ("id", lambda row: short(row["id"])),
    ("pool", lambda row: row["pool_id"]),
    ("launch config", lambda row: row["launch_config_id"]),
    "state",
    ("age", _age),
    ("instance", lambda row: row["instance_id"]),
    "reason",
)


@app.command("ls")
def list_workers(
    context: typer.Context,
    pool: OfPool = None,
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=NEWEST, help="At most this many, the newest.")] = 100,
    output: AsOutput = Output.TABLE,
) -> None:
    """List workers, newest first.

    \b
    Example:
      slipway worker ls --pool linux --state running
    """
    rows = context.obj.get("provisioner", "/workers", pool=pool, state=state, limit=limit)["items"]
    show(rows, FIELDS, output, nothing="no workers")


@app.command("show")
def show_worker(context: typer.Context, worker: WorkerId, output: AsOutput = Output.TABLE) -> None:
    """Show one worker and what happened to it; `slipway why WORKER` tells it in sentences.

    \b
    Example:
      slipway worker show 3f9a12cd
    """
    row = found(context.obj, worker)
    if output is Output.JSON:
        as_json(row)
        return
    nested = ("timeline", "decision", "batch", "lease")
    pairs({name: value for name, value in row.items() if name not in nested and value not in (None, "")}, now())
    print()
    timeline: tuple[Field, ...] = (
        ("at", lambda event: moments.clock(moments.at(event["at"]), now())),
        "what",
        "detail",
    )
    show(row.get("timeline") or [], timeline, output, nothing="nothing has happened to it yet")


@app.command("terminate")
def terminate_worker(context: typer.Context, worker: WorkerId, reason: Reason) -> None:
    """End a worker: cancelled while it waits, told to leave and then ended once it has an instance. Repeatable.

    \b
    Example:
      slipway worker terminate 3f9a12cd --reason "hung, see the build log"
    """
    id_ = full_id(context.obj, worker)
    told = context.obj.post("provisioner", path("workers", id_, "terminate"), {"reason": reason})
    print(f"{told['id']} is {told['state']}")


@decision.command("show")
def show_decision(
    context: typer.Context,
    decision: Annotated[str, typer.Argument(metavar="DECISION", help="Id, as `pool show` and `worker show` have it.")],
    output: AsOutput = Output.TABLE,
) -> None:
    """Show one decision: what was needed, and every launch config with its weight, room, and why it got what it got.

    \b
    Example:
      slipway decision show 01981c6e-8f7a-7d53-9c55-2b7f3f9a12cd
    """
    row = context.obj.get("provisioner", path("decisions", decision))
    if output is Output.JSON:
        as_json(row)
        return
    why = dict(row["why"])
    configs = [{"launch config": id_, **note} for id_, note in why.pop("configs", {}).items()]
    sources = [{"source": name, **told} for name, told in why.pop("sources", {}).items()]
    pairs({name: value for name, value in row.items() if name != "why"} | why, now())
    print()
    show(sources, ("source", "pending", "claimed", "gone", "stale"), output, nothing="no demand was reported")
    print()
    show(configs, ("launch config", "weight", "room", "limited_by", "launched", "lost"), output, nothing="no configs")


def full_id(api: Api, given: str) -> str:
    """The id of which `given` are the last digits, among the newest workers; `given` itself if it is no such thing."""
    if not DIGITS.fullmatch(given):
        return given
    ids = [row["id"] for row in api.get("provisioner", "/workers", limit=NEWEST)["items"] if row["id"].endswith(given)]
    if len(ids) == 1:
        return str(ids[0])
    raise Failed(
        f"{given} is the end of {len(ids)} workers: {', '.join(ids)}\nGive one whole id."
        if ids
        else f"none of the newest {NEWEST} workers ends in {given}: give the whole id"
    )


def found(api: Api, given: str) -> dict[str, Any]:
    """A worker as the provisioner tells it, by its id or the last digits of that."""
    worker: dict[str, Any] = api.get("provisioner", path("workers", full_id(api, given)))
    return worker
