"""`slipway weights` commands: weights of launch configs."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import typer

from slipway_client.cli.options import AsOutput, ConfigId, OfPool, noun, now
from slipway_client.cli.tables import Field, Output, as_json, pairs, show
from slipway_client.transport.http import Failed, path

app = noun("Show weights")

STAGES_NAMED: Final = ("launch", "boot", "claim")


def _stage_window(stage: str, row: Mapping[str, Any]) -> int | None:
    window: int | None = row["stages"].get(stage, {}).get("window")
    return window


ROWS: Final[tuple[Field, ...]] = (
    ("id", lambda row: row["launch_config_id"]),
    ("pool", lambda row: row["pool_id"]),
    "state",
    "weight",
    "health",
    *((f"{stage} window", partial(_stage_window, stage)) for stage in STAGES_NAMED),
    ("permit", lambda row: _permit(row)),
    "reason",
)
STAGES: Final[tuple[Field, ...]] = ("stage", "probability", "window", "late", "failures_folded", "succeeded", "failed")
SHARED: Final[tuple[Field, ...]] = (
    ("shared", lambda row: f"{row['kind']} {row['id']}"),
    "stage",
    "state",
    ("window", lambda row: _window(row)),
    ("available", lambda row: f"{row['probability']:.0%}" if row["kind"] == "capacity" else None),
    "unconfirmed",
    "reason",
)


@app.command("ls")
def list_weights(context: typer.Context, pool: OfPool = None, output: AsOutput = Output.TABLE) -> None:
    """List the weights of launch configs

    Weight, health and windows, the limits on launches in flight per stage, as last published, with the reason.

    \b
    Example:
      slipway weights ls --pool linux
    """
    api = context.obj
    rows = api.get("weight-calculator", "/weights", pool=pool)["items"]
    if pool is not None and not rows:
        api.get("provisioner", path("pools", pool))  # an unknown pool is an error, not an empty list
    show(rows, ROWS, output, nothing="no weights yet")


@app.command("show")
def show_weight(context: typer.Context, config: ConfigId, output: AsOutput = Output.TABLE) -> None:
    """Show the published weight of a launch config

    That of its current revision, or of the given one. A window limits the starts in flight of a stage; `late` ones take
    longer than the boots before them, and count as failures until they end. A shared window is that of all launch
    configs with this image, quota, credential or capacity; `unconfirmed` counts failed and late starts since its last
    success. `available` is the factor by which a capacity lowers the weights of its launch configs.

    \b
    Examples:
      slipway weights show linux-zone-b
      slipway weights show linux-zone-b@3f2c9a
    """
    api = context.obj
    id_ = config if "@" in config else api.get("provisioner", path("launch-configs", config))["id"]
    items = api.get("weight-calculator", "/weights", config=id_)["items"]
    row: dict[str, Any] | None = next((row for row in items if row["launch_config_id"] == id_), None)
    if row is None:
        raise Failed(f"no weight of launch config {id_}; `slipway weights ls` lists all")
    if output is Output.JSON:
        as_json(row)
        return
    nested = ("stages", "shared", "offsets")
    pairs({name: value for name, value in row.items() if name not in nested} | {"probe_permit": _permit(row)}, now())
    print()
    show([{"stage": name} | stage for name, stage in row["stages"].items()], STAGES, output, nothing="no stages")
    if row["shared"]:
        print()
        show(row["shared"], SHARED, output, nothing="")


def _permit(row: Mapping[str, Any]) -> int | None:
    """Number of the probe that may launch now; None if none may."""
    permit: int | None = row["probe_permit"] if row["probe_ready"] else None
    return permit


def _window(row: Mapping[str, Any]) -> int | None:
    """Size of a window; None if it has no bound."""
    from slipway_api.events.weight import BOUNDLESS

    window: int = row["window"]
    return window if window < BOUNDLESS else None
