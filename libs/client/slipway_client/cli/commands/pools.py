"""`slipway pool` commands."""

from collections.abc import Mapping
from typing import Any, Final

import typer

from slipway_client.cli import options
from slipway_client.cli.commands.configs import PROGRESS, current_first, state
from slipway_client.cli.options import AsOutput, For, PoolId, Reason, Until, noun, now, until_text
from slipway_client.cli.tables import Field, Output, as_json, pairs, show
from slipway_client.transport.http import path
from slipway_client.view import moments
from slipway_client.view.phrases import progress, waits
from slipway_common.base.revisions import hash_of, name_of

app = noun("Manage worker pools")

DECISIONS_SHOWN: Final = 8


def mode(row: Mapping[str, Any]) -> Any:
    """Mode of a pool; `frozen` or `paused` if it is."""
    return "frozen" if row.get("frozen") else "paused" if row.get("paused") else row.get("mode")


FIELDS: Final[tuple[Field, ...]] = (
    "id",
    ("mode", mode),
    ("capacity", lambda row: f"{row.get('min_capacity')}–{row.get('max_capacity')}"),
    "pending",
    ("backlog for", waits),
    "claimed",
    "wanted",
    "serving",
    "needed",
)


CHANGING: Final[tuple[Field, ...]] = (
    ("launch config", lambda row: name_of(row["id"])),
    ("revision", lambda row: hash_of(row["id"])),
    ("image", lambda row: row["image_revision"]),
    ("state", state),
    PROGRESS,
)


@app.command("ls")
def list_pools(context: typer.Context, output: AsOutput = Output.TABLE) -> None:
    """List worker pools with their demand and capacity

    \b
    Example:
      slipway pool ls
    """
    show(context.obj.get("provisioner", "/pools")["items"], FIELDS, output, nothing="no worker pools")


@app.command("show")
def show_pool(context: typer.Context, pool: PoolId, output: AsOutput = Output.TABLE) -> None:
    """Show a worker pool, its roll-outs and latest decisions

    `slipway why POOL` explains what limits it. With -o json the declaration, too.

    \b
    Example:
      slipway pool show linux
    """
    api = context.obj
    row = api.get("provisioner", path("pools", pool))
    decisions = api.get("provisioner", path("pools", pool, "decisions"), limit=DECISIONS_SHOWN)["items"]
    revisions = current_first(api.get("provisioner", "/launch-configs", pool=pool)["items"])
    if output is Output.JSON:
        as_json(row | {"decisions": decisions, "revisions": revisions})
        return
    shown = {name: value for name, value in row.items() if name not in ("backlog_seconds", "declared")}
    pairs(shown | {"backlog_for": waits(row)}, now())
    print()
    if changing := [config for config in revisions if progress(config, now())]:
        show(changing, CHANGING, output, nothing="")
        print()
    fields: tuple[Field, ...] = (
        ("at", lambda made: moments.clock(moments.at(made["last_at"]), now())),
        ("decision", lambda made: made["id"]),
        "launched",
        "reason",
    )
    show(decisions, fields, output, nothing="no decisions yet")


@app.command("pause")
def pause_pool(context: typer.Context, pool: PoolId, reason: Reason, for_: For = None, until: Until = None) -> None:
    """Stop launching workers in a pool

    Running workers continue; workers that wait for a launch are cancelled.

    \b
    Example:
      slipway pool pause linux --reason "image is being replaced" --for 30m
    """
    ends = options.until(for_, until)
    context.obj.post("provisioner", path("pools", pool, "pause"), {"reason": reason, "until": ends})
    print(f"pool {pool} paused {until_text(ends)}")


@app.command("resume")
def resume_pool(context: typer.Context, pool: PoolId, reason: Reason) -> None:
    """Resume launching workers in a paused pool

    \b
    Example:
      slipway pool resume linux --reason "image is replaced"
    """
    context.obj.post("provisioner", path("pools", pool, "resume"), {"reason": reason})
    print(f"pool {pool} resumed")


@app.command("freeze")
def freeze_pool(context: typer.Context, pool: PoolId, reason: Reason) -> None:
    """Freeze a pool until it is unfrozen

    Nothing launches; running workers continue, and workers that wait for a launch are cancelled.

    \b
    Example:
      slipway pool freeze linux --reason "image is suspect"
    """
    context.obj.post("provisioner", path("pools", pool, "freeze"), {"reason": reason})
    print(f"pool {pool} frozen; `slipway pool unfreeze {pool}` resumes it")


@app.command("unfreeze")
def unfreeze_pool(context: typer.Context, pool: PoolId, reason: Reason) -> None:
    """Unfreeze a pool, also one frozen by a bad image

    \b
    Example:
      slipway pool unfreeze linux --reason "image is replaced"
    """
    context.obj.post("provisioner", path("pools", pool, "unfreeze"), {"reason": reason})
    print(f"pool {pool} unfrozen")
