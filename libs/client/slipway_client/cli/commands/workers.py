"""`slipway worker` and `slipway decision` commands."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from slipway_api.events.lifecycle import IN_FLIGHT, State
from slipway_client.cli.options import AsOutput, OfPool, Reason, WorkerId, noun, now
from slipway_client.cli.tables import Field, Output, as_json, pairs, show
from slipway_client.transport.http import Api, Failed, path
from slipway_client.view import moments

app = noun("Manage workers")
decision = noun("Show launch decisions")

NEWEST: Final = 1000
DIGITS: Final = re.compile(r"[0-9a-f]{6,12}")


def _age(row: Mapping[str, Any]) -> str:
    return moments.spelled((now() - moments.at(row["requested_at"])).total_seconds())


FIELDS: Final[tuple[Field, ...]] = (
    "id",
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
    state: Annotated[
        State | None, typer.Option("--state", metavar="STATE", help="State of the workers [default: any]")
    ] = None,
    limit: Annotated[int, typer.Option("-n", "--limit", metavar="N", min=1, help="Maximum number of workers")] = 100,
    output: AsOutput = Output.TABLE,
) -> None:
    """List workers, newest first

    \b
    Example:
      slipway worker ls --pool linux --state running
    """
    rows = context.obj.items("provisioner", "/workers", limit=limit + 1, pool=pool, state=state)
    show(rows, FIELDS, output, nothing="no workers", drop=("instance", "pool", "age"), limit=limit)


@app.command("show")
def show_worker(context: typer.Context, worker: WorkerId, output: AsOutput = Output.TABLE) -> None:
    """Show a worker and its timeline

    `slipway why WORKER` explains its state.

    \b
    Example:
      slipway worker show 3f9a12cd
    """
    row = found(context.obj, worker)
    if output is Output.JSON:
        as_json(row)
        return
    nested = ("timeline", "decision", "batch", "lease", "workspace")
    shown = {name: value for name, value in row.items() if name not in nested and value not in (None, "")}
    pairs(shown | _accepted_call(row) | _workspace(row), now())
    print()
    timeline: tuple[Field, ...] = (
        ("at", lambda event: moments.clock(moments.at(event["at"]), now())),
        "what",
        "detail",
    )
    show(row.get("timeline") or [], timeline, output, nothing="no events yet")


def _accepted_call(row: Mapping[str, Any]) -> dict[str, Any]:
    """Call of a worker that its provider has accepted and works on: its handle, and when it is asked again."""
    batch = row.get("batch") or {}
    if not batch.get("handle") or row["state"] not in IN_FLIGHT["launch"]:
        return {}
    named = {
        "accepted_call": batch["handle"],
        "next_poll_at": batch["poll_at"],
        "call_deadline": batch["call_deadline"],
    }
    return {name: value for name, value in named.items() if value is not None}


def _workspace(row: Mapping[str, Any]) -> dict[str, Any]:
    """Terraform workspace of a worker that a module has made, without what is empty."""
    workspace = dict(row.get("workspace") or {})
    if not workspace:
        return {}
    hidden = "hidden without the scope workers:state"
    workspace["resources"] = hidden if workspace["resources"] is None else ", ".join(workspace["resources"])
    named = {"workspace": workspace.pop("id")} | {f"workspace_{name}": value for name, value in workspace.items()}
    return {name: value for name, value in named.items() if value not in (None, "", 0)}


@app.command("terminate")
def terminate_worker(context: typer.Context, worker: WorkerId, reason: Reason) -> None:
    """Terminate a worker

    A worker that waits for its launch is cancelled. A worker with an instance is drained, and its instance terminated
    then. Idempotent.

    \b
    Example:
      slipway worker terminate 3f9a12cd --reason "hung, see the build log"
    """
    id_ = full_id(context.obj, worker)
    answer = context.obj.post("provisioner", path("workers", id_, "terminate"), {"reason": reason})
    print(f"worker {answer['id']} is {answer['state']}")


@decision.command("show")
def show_decision(
    context: typer.Context,
    decision: Annotated[str, typer.Argument(metavar="DECISION", help="ID of the decision, from `slipway pool show`")],
    output: AsOutput = Output.TABLE,
) -> None:
    """Show a launch decision

    The demand per source, and the weight, room and launches of every launch config, with the reason.

    \b
    Example:
      slipway decision show 01981c6e-8f7a-7d53-9c55-2b7f3f9a12cd
    """
    row = context.obj.get("provisioner", path("decisions", decision))
    if output is Output.JSON:
        as_json(row)
        return
    details = dict(row["details"])
    configs = [{"launch config": id_, **note} for id_, note in details.pop("configs", {}).items()]
    sources = [{"source": name, **report} for name, report in details.pop("sources", {}).items()]
    pairs({name: value for name, value in row.items() if name != "details"} | details, now())
    print()
    show(sources, ("source", "pending", "claimed", "gone", "stale"), output, nothing="no demand was reported")
    print()
    show(configs, ("launch config", "weight", "room", "limited_by", "launched", "reason"), output, nothing="no configs")


def full_id(api: Api, given: str) -> str:
    """Worker ID for its last digits, among the newest workers; `given` itself if it does not look like that."""
    if not DIGITS.fullmatch(given):
        return given
    ids = [row["id"] for row in api.get("provisioner", "/workers", limit=NEWEST)["items"] if row["id"].endswith(given)]
    if len(ids) == 1:
        return str(ids[0])
    raise Failed(
        f"{given} matches {len(ids)} workers: {', '.join(ids)}\nUse the full ID."
        if ids
        else f"no worker {given} among the newest {NEWEST}; use the full ID"
    )


def found(api: Api, given: str) -> dict[str, Any]:
    """Worker by its ID or the last digits of it."""
    worker: dict[str, Any] = api.get("provisioner", path("workers", full_id(api, given)))
    return worker
