"""`slipway weights` commands: weights of launch configs."""

from functools import partial
from typing import Final

import typer

from slipway_api.events.weight import SharedWindow, StageHealth, WeightChanged
from slipway_api.http.provisioner.launch_configs import LaunchConfigDetails
from slipway_api.http.provisioner.pools import PoolDetails
from slipway_client.cli.options import AsOutput, ConfigId, OfPool, api_of, noun
from slipway_client.cli.tables import Field, Output, details, show, table
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import path
from slipway_client.view import phrases

app = noun("Show weights")


def _stage_window(stage: str, row: WeightChanged) -> int | None:
    return row.stages[stage].window if stage in row.stages else None


ROWS: Final[tuple[Field[WeightChanged], ...]] = (
    ("id", lambda row: row.launch_config_id),
    ("pool", lambda row: row.pool_id),
    "state",
    "weight",
    "health",
    *((f"{stage} window", partial(_stage_window, stage)) for stage in phrases.STAGES),
    ("permit", lambda row: _permit(row)),
    "reason",
)
STAGES: Final[tuple[Field[tuple[str, StageHealth]], ...]] = (
    ("stage", lambda stage: stage[0]),
    ("probability", lambda stage: stage[1].probability),
    ("window", lambda stage: stage[1].window),
    ("late", lambda stage: stage[1].late),
    ("failures folded", lambda stage: stage[1].failures_folded),
    ("succeeded", lambda stage: stage[1].succeeded),
    ("failed", lambda stage: stage[1].failed),
)
SHARED: Final[tuple[Field[SharedWindow], ...]] = (
    ("shared", lambda row: f"{row.kind} {row.id}"),
    "stage",
    "state",
    ("window", lambda row: _window(row)),
    ("available", lambda row: f"{row.probability:.0%}" if row.kind == "capacity" else None),
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
    api = api_of(context)
    rows = api.rows(WeightChanged, "weight-calculator", "/weights", pool=pool)
    if pool is not None and not rows:
        api.get(PoolDetails, "provisioner", path("pools", pool))  # an unknown pool is an error, not an empty list
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
    api = api_of(context)
    id_ = config if "@" in config else api.get(LaunchConfigDetails, "provisioner", path("launch-configs", config)).id
    items = api.rows(WeightChanged, "weight-calculator", "/weights", config=id_)
    read = next((row for row in items if row.value.launch_config_id == id_), None)
    if read is None:
        raise Failed(f"no weight of launch config {id_}; `slipway weights ls` lists all")
    row = read.value
    nested = ("stages", "shared", "offsets")
    if not details(read, output, nested, probe_permit=_permit(row)):
        return
    print()
    table(list(row.stages.items()), STAGES, nothing="no stages")
    if row.shared:
        print()
        table(row.shared, SHARED, nothing="")


def _permit(row: WeightChanged) -> int | None:
    """Number of the probe that may launch now; None if none may."""
    return row.probe_permit if row.probe_ready else None


def _window(row: SharedWindow) -> int | None:
    """Size of a window; None if it has no bound."""
    from slipway_api.events.weight import BOUNDLESS

    return row.window if row.window < BOUNDLESS else None
