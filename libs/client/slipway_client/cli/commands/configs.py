"""`slipway lc` commands: launch configs."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from slipway_client.cli import options
from slipway_client.cli.options import AsOutput, ConfigId, ConfigName, For, OfPool, Reason, Until, noun, now, until_text
from slipway_client.cli.tables import Field, Output, as_json, pairs, short, show
from slipway_client.transport.http import Api, path
from slipway_client.view import moments
from slipway_client.view.phrases import is_fallback, progress
from slipway_common.base.revisions import hash_of, name_of

app = noun("Manage launch configs")


def state(row: Mapping[str, Any]) -> Any:
    """State of a revision: `fallback` for one that is being replaced, also while its launch config is paused."""
    if row["state"] == "paused" and not row["current"]:
        return "fallback, paused"
    return "fallback" if is_fallback(row) else row["state"]


def current_first(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Revisions by pool and name, the current one of each name first."""
    return sorted(rows, key=lambda row: (row["pool_id"], name_of(row["id"]), not row["current"], row["id"]))


FIELDS: Final[tuple[Field, ...]] = (
    ("name", lambda row: name_of(row["id"])),
    ("revision", lambda row: hash_of(row["id"])),
    ("state", state),
    "health_state",
    "weight",
    "starting",
    "running",
    "launched",
    "booted",
    "failed",
    ("account", lambda row: row["account_id"]),
)
OF_POOL: Final[Field] = ("pool", lambda row: row["pool_id"])
PROGRESS: Final[Field] = ("detail", lambda row: progress(row, now()).removeprefix("fallback: ") or None)
Archived = Annotated[bool, typer.Option("--all", help="Archived revisions, too")]


@app.command("ls")
def list_launch_configs(
    context: typer.Context, pool: OfPool = None, all_: Archived = False, output: AsOutput = Output.TABLE
) -> None:
    """List launch configs with their weights and health

    A line for each revision, the current one of a name first. Only probes launch from a tripped or probing one, and
    nothing from a draining one. Its workers are starting, running or stopping. Over its life, `launched` counts
    accepted launches, `booted` workers that registered, which prove a revision, and `failed` failures of any stage.

    \b
    Examples:
      slipway lc ls --pool linux
      slipway lc ls --all
    """
    rows = current_first(context.obj.get("provisioner", "/launch-configs", pool=pool, all=all_ or None)["items"])
    one = len({row["pool_id"] for row in rows}) <= 1
    fields = FIELDS if one else (*FIELDS[:2], OF_POOL, *FIELDS[2:])
    if any(row["stopping"] for row in rows):
        place = fields.index("running") + 1
        fields = (*fields[:place], "stopping", *fields[place:])
    changing = any(progress(row, now()) for row in rows)
    show(
        rows,
        (*fields, PROGRESS) if changing else fields,
        output,
        nothing="no launch configs",
        drop=("account", "launched"),
    )


SHARED: Final[tuple[Field, ...]] = (
    ("shared", lambda row: f"{row['kind']} {row['id']}"),
    "stage",
    "window",
    "state",
    "unconfirmed",
    "reason",
)


@app.command("show")
def show_launch_config(context: typer.Context, config: ConfigId, output: AsOutput = Output.TABLE) -> None:
    """Show a launch config and its latest failures

    Deadlines in force, settings, windows, weight, shared limits and recent failures of the current revision, or of the
    given one. Its other revisions are listed. Starts in flight stay below the window of their stage, together with
    failures that are `unfolded`: not yet included in the weight.

    \b
    Examples:
      slipway lc show linux-zone-b
      slipway lc show linux-zone-b@3f2c9a
    """
    api = context.obj
    row: dict[str, Any] = api.get("provisioner", path("launch-configs", config))
    if output is Output.JSON:
        as_json(row)
        return
    nested = ("stages", "shared", "record", "recent_failures", "recent_errors")
    mappings = ("deadlines", "settings")
    shown = {name: value for name, value in row.items() if name not in (*nested, *mappings)}
    pairs(shown | {f"{of}.{name}": value for of in mappings for name, value in (row.get(of) or {}).items()}, now())
    print()
    _show_others(api, row)
    stages = [{"stage": name, **stage} for name, stage in (row.get("stages") or {}).items()]
    show(stages, ("stage", "in_flight", "unfolded", "window", ("health", _health(row))), output, nothing="no windows")
    print()
    show(row.get("shared") or [], SHARED, output, nothing="no shared limits")
    print()
    failures: tuple[Field, ...] = (
        ("at", lambda failure: moments.clock(moments.at(failure["at"]), now())),
        ("worker", lambda failure: short(failure["worker_id"])),
        "reason",
    )
    show(row.get("recent_failures") or [], failures, output, nothing="no recent failures")
    if errors := row.get("recent_errors"):
        print()
        show(errors, (("errors in a day", lambda error: error["number"]), "code", "sample"), output, nothing="")


def _show_others(api: Api, row: Mapping[str, Any]) -> None:
    """Print the other revisions of the name, archived ones too; nothing if there are none."""
    name = name_of(row["id"])
    rows = api.get("provisioner", "/launch-configs", pool=row["pool_id"], all=True)["items"]
    others = [other for other in rows if name_of(other["id"]) == name and other["id"] != row["id"]]
    fields: tuple[Field, ...] = (
        ("other revision", lambda other: hash_of(other["id"])),
        ("state", state),
        ("image", lambda other: other["image_revision"]),
        PROGRESS,
    )
    if others:
        show(sorted(others, key=lambda other: other["state"]), fields, Output.TABLE, nothing="")
        print()


def _health(row: Mapping[str, Any]) -> Any:
    stages = (row.get("record") or {}).get("stages", {})
    return lambda stage: stages.get(stage["stage"], {}).get("probability")


@app.command("pause")
def pause_launch_config(
    context: typer.Context, config: ConfigName, reason: Reason, for_: For = None, until: Until = None
) -> None:
    """Stop launching from a launch config

    None of its revisions launches. Running workers continue; workers that wait for a launch are cancelled and planned
    again on other configs.

    \b
    Examples:
      slipway lc pause linux-zone-b --reason maintenance --for 30m
      slipway lc pause linux-zone-b --reason "new image first" --until 2026-08-01T17:30
    """
    ends = options.until(for_, until)
    context.obj.post("provisioner", path("launch-configs", config, "pause"), {"reason": reason, "until": ends})
    print(f"launch config {config} paused {until_text(ends)}")


@app.command("resume")
def resume_launch_config(context: typer.Context, config: ConfigName, reason: Reason) -> None:
    """Resume launching from a paused launch config

    \b
    Example:
      slipway lc resume linux-zone-b --reason "maintenance is over"
    """
    context.obj.post("provisioner", path("launch-configs", config, "resume"), {"reason": reason})
    print(f"launch config {config} resumed")
