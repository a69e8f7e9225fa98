"""`slipway worker` and `slipway decision` commands."""

import re
from typing import Annotated, Final

import msgspec
import typer

from slipway_api.events.lifecycle import IN_FLIGHT, State
from slipway_api.http.provisioner.decisions import ConfigNote, Decision, SourceCounts
from slipway_api.http.provisioner.workers import TimelineEntry, Worker, WorkerDetails
from slipway_client.cli.options import AsOutput, Limit, OfPool, Reason, WorkerId, api_of, clock, noun, now
from slipway_client.cli.tables import Field, Output, details, show, table
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import Api, Decoded, path
from slipway_client.view import moments

app = noun("Manage workers")
decision = noun("Show launch decisions")

NEWEST: Final = 1000
DIGITS: Final = re.compile(r"[0-9a-f]{6,12}")


def _age(row: Worker) -> str:
    return moments.spelled((now() - row.requested_at).total_seconds())


FIELDS: Final[tuple[Field[Worker], ...]] = (
    "id",
    ("pool", lambda row: row.pool_id),
    ("launch config", lambda row: row.launch_config_id),
    "state",
    ("age", _age),
    ("instance", lambda row: row.instance_id),
    "reason",
)


@app.command("ls")
def list_workers(
    context: typer.Context,
    pool: OfPool = None,
    state: Annotated[
        State | None, typer.Option("--state", metavar="STATE", help="State of the workers [default: any]")
    ] = None,
    limit: Limit = 100,
    output: AsOutput = Output.TABLE,
) -> None:
    """List workers, newest first

    \b
    Example:
      slipway worker ls --pool linux --state running
    """
    rows = api_of(context).rows(Worker, "provisioner", "/workers", limit=limit + 1, pool=pool, state=state)
    show(rows, FIELDS, output, nothing="no workers", drop=("instance", "pool", "age"), limit=limit)


@app.command("show")
def show_worker(context: typer.Context, worker: WorkerId, output: AsOutput = Output.TABLE) -> None:
    """Show a worker and its timeline

    `slipway why WORKER` explains its state.

    \b
    Example:
      slipway worker show 3f9a12cd
    """
    read = found(api_of(context), worker)
    row = read.value
    nested = ("timeline", "decision", "batch", "lease", "workspace")
    if not details(read, output, nested, (None, ""), **_accepted_call(row), **_workspace(row)):
        return
    print()
    timeline: tuple[Field[TimelineEntry], ...] = (
        ("at", lambda event: clock(event.at)),
        "what",
        "detail",
    )
    table(row.timeline, timeline, nothing="no events yet")


def _accepted_call(row: WorkerDetails) -> dict[str, object]:
    """Call of a worker that its provider has accepted and works on: its handle, and when it is asked again."""
    batch = row.batch
    if batch is None or not batch.handle or row.state not in IN_FLIGHT["launch"]:
        return {}
    return {
        "accepted_call": batch.handle,
        "next_poll_at": batch.poll_at,
        "call_deadline": batch.call_deadline,
    }


def _workspace(row: WorkerDetails) -> dict[str, object]:
    """Terraform workspace of a worker that a module has made, without what is empty."""
    if row.workspace is None:
        return {}
    workspace = msgspec.to_builtins(row.workspace)
    hidden = "hidden without the scope workers:state"
    workspace["resources"] = hidden if row.workspace.resources is None else ", ".join(row.workspace.resources)
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
    id_ = full_id(api_of(context), worker)
    answer = api_of(context).post(Worker, "provisioner", path("workers", id_, "terminate"), {"reason": reason})
    print(f"worker {answer.id} is {answer.state}")


SOURCES: Final[tuple[Field[tuple[str, SourceCounts]], ...]] = (
    ("source", lambda source: source[0]),
    ("pending", lambda source: source[1].pending),
    ("claimed", lambda source: source[1].claimed),
    ("gone", lambda source: source[1].gone),
    ("stale", lambda source: source[1].stale),
)
CONFIGS: Final[tuple[Field[tuple[str, ConfigNote]], ...]] = (
    ("launch config", lambda config: config[0]),
    ("weight", lambda config: config[1].weight),
    ("room", lambda config: config[1].room),
    ("limited by", lambda config: config[1].limited_by),
    ("launched", lambda config: config[1].launched),
    ("reason", lambda config: config[1].reason or None),
)


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
    read = api_of(context).read(Decision, "provisioner", path("decisions", decision))
    made = read.value.details
    shown = msgspec.to_builtins(made)
    more = {name: value for name, value in shown.items() if name not in ("configs", "sources")}
    if not details(read, output, ["details"], (), **more):
        return
    print()
    table(list((made.sources or {}).items()), SOURCES, nothing="no demand was reported")
    print()
    table(list((made.configs or {}).items()), CONFIGS, nothing="no configs")


def full_id(api: Api, given: str) -> str:
    """Worker ID for its last digits, among the newest workers; `given` itself if it does not look like that."""
    if not DIGITS.fullmatch(given):
        return given
    ids = [row.id for row in api.items(Worker, "provisioner", "/workers", limit=NEWEST) if row.id.endswith(given)]
    if len(ids) == 1:
        return str(ids[0])
    raise Failed(
        f"{given} matches {len(ids)} workers: {', '.join(ids)}\nUse the full ID."
        if ids
        else f"no worker {given} among the newest {NEWEST}; use the full ID"
    )


def found(api: Api, given: str) -> Decoded[WorkerDetails]:
    """Worker by its ID or the last digits of it."""
    return api.read(WorkerDetails, "provisioner", path("workers", full_id(api, given)))
