"""`slipway lc` commands: launch configs."""

from collections.abc import Mapping
from typing import Any, Final

import typer

from slipway_client.cli import options
from slipway_client.cli.options import AsOutput, ConfigId, For, OfPool, Reason, Until, noun, now, until_text
from slipway_client.cli.tables import Field, Output, as_json, pairs, short, show
from slipway_client.transport.http import path
from slipway_client.view import moments

app = noun("Manage launch configs")

FIELDS: Final[tuple[Field, ...]] = (
    "id",
    "state",
    "health_state",
    "weight",
    "starting",
    "running",
    "ok",
    "failed",
    ("account", lambda row: row["account_id"]),
)
OF_POOL: Final[Field] = ("pool", lambda row: row["pool_id"])


@app.command("ls")
def list_launch_configs(context: typer.Context, pool: OfPool = None, output: AsOutput = Output.TABLE) -> None:
    """List launch configs with their weights and health

    Only probes launch from a config that is tripped or probing.

    \b
    Example:
      slipway lc ls --pool linux
    """
    api = context.obj
    rows = api.get("provisioner", "/launch-configs", pool=pool)["items"]
    if pool is not None and not rows:
        api.get("provisioner", path("pools", pool))  # an unknown pool is an error, not an empty list
    one = len({row["pool_id"] for row in rows}) <= 1
    show(rows, FIELDS if one else (FIELDS[0], OF_POOL, *FIELDS[1:]), output, nothing="no launch configs")


SHARED: Final[tuple[Field, ...]] = (
    ("shared", lambda row: row["key"]),
    "stage",
    "window",
    "state",
    "unconfirmed",
    "reason",
)


@app.command("show")
def show_launch_config(context: typer.Context, config: ConfigId, output: AsOutput = Output.TABLE) -> None:
    """Show a launch config and its latest failures

    Settings, windows, weight, shared limits and recent failures.

    \b
    Example:
      slipway lc show linux-zone-b
    """
    row: dict[str, Any] = context.obj.get("provisioner", path("launch-configs", config))
    if output is Output.JSON:
        as_json(row)
        return
    nested = ("stages", "shared", "settings", "record", "recent_failures")
    pairs({name: value for name, value in row.items() if name not in nested} | _settings(row), now())
    print()
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


def _settings(row: Mapping[str, Any]) -> dict[str, Any]:
    return {f"settings.{name}": value for name, value in (row.get("settings") or {}).items()}


def _health(row: Mapping[str, Any]) -> Any:
    stages = (row.get("record") or {}).get("stages", {})
    return lambda stage: stages.get(stage["stage"], {}).get("probability")


@app.command("pause")
def pause_launch_config(
    context: typer.Context, config: ConfigId, reason: Reason, for_: For = None, until: Until = None
) -> None:
    """Stop launching from a launch config

    Running workers continue; workers that wait for a launch are cancelled and planned again on other configs.

    \b
    Examples:
      slipway lc pause linux-zone-b --reason maintenance --for 30m
      slipway lc pause linux-zone-b --reason "new image first" --until 2026-08-01T17:30
    """
    ends = options.until(for_, until)
    context.obj.post("provisioner", path("launch-configs", config, "pause"), {"reason": reason, "until": ends})
    print(f"launch config {config} paused {until_text(ends)}")


@app.command("resume")
def resume_launch_config(context: typer.Context, config: ConfigId, reason: Reason) -> None:
    """Resume launching from a paused launch config

    \b
    Example:
      slipway lc resume linux-zone-b --reason "maintenance is over"
    """
    context.obj.post("provisioner", path("launch-configs", config, "resume"), {"reason": reason})
    print(f"launch config {config} resumed")
