"""`slipway pool` commands."""

from typing import Final

import typer

from slipway_api.http.provisioner.decisions import Decision
from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_api.http.provisioner.pools import Pool, PoolDetails
from slipway_client.cli import options
from slipway_client.cli.commands.configs import PROGRESS, current_first, state
from slipway_client.cli.options import AsOutput, For, PoolId, Reason, Until, api_of, clock, noun, now, until_text
from slipway_client.cli.tables import Field, Output, as_json, pairs, show, table
from slipway_client.transport.http import path
from slipway_client.view.phrases import progress, waits
from slipway_common.base.revisions import hash_of, name_of

app = noun("Manage worker pools")

DECISIONS_SHOWN: Final = 8


def mode(row: Pool) -> str:
    """Mode of a pool; `frozen` or `paused` if it is."""
    return "frozen" if row.frozen else "paused" if row.paused else row.mode


FIELDS: Final[tuple[Field[Pool], ...]] = (
    "id",
    ("mode", mode),
    ("capacity", lambda row: f"{row.min_capacity}–{row.max_capacity}"),
    "pending",
    ("backlog for", lambda row: waits(row.backlog_seconds)),
    "claimed",
    "wanted",
    "serving",
    "needed",
)


CHANGING: Final[tuple[Field[LaunchConfig], ...]] = (
    ("launch config", lambda row: name_of(row.id)),
    ("revision", lambda row: hash_of(row.id)),
    ("image", lambda row: row.image_revision),
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
    show(api_of(context).rows(Pool, "provisioner", "/pools"), FIELDS, output, nothing="no worker pools")


@app.command("show")
def show_pool(context: typer.Context, pool: PoolId, output: AsOutput = Output.TABLE) -> None:
    """Show a worker pool, its roll-outs and latest decisions

    `slipway why POOL` explains what limits it. With -o json the declaration, too.

    \b
    Example:
      slipway pool show linux
    """
    api = api_of(context)
    read = api.read(PoolDetails, "provisioner", path("pools", pool))
    decisions = api.rows(Decision, "provisioner", path("pools", pool, "decisions"), limit=DECISIONS_SHOWN)
    revisions = current_first(api.rows(LaunchConfig, "provisioner", "/launch-configs", pool=pool))
    if output is Output.JSON:
        lists = {"decisions": [made.sent for made in decisions], "revisions": [one.sent for one in revisions]}
        as_json(read.sent | lists)
        return
    shown = {name: value for name, value in read.sent.items() if name not in ("backlog_seconds", "declared")}
    pairs(shown | {"backlog_for": waits(read.value.backlog_seconds)})
    print()
    if changing := [one.value for one in revisions if progress(one.value, now())]:
        table(changing, CHANGING, nothing="")
        print()
    fields: tuple[Field[Decision], ...] = (
        ("at", lambda made: clock(made.last_at)),
        ("decision", lambda made: made.id),
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
    api_of(context).post(object, "provisioner", path("pools", pool, "pause"), {"reason": reason, "until": ends})
    print(f"pool {pool} paused {until_text(ends)}")


@app.command("resume")
def resume_pool(context: typer.Context, pool: PoolId, reason: Reason) -> None:
    """Resume launching workers in a paused pool

    \b
    Example:
      slipway pool resume linux --reason "image is replaced"
    """
    api_of(context).post(object, "provisioner", path("pools", pool, "resume"), {"reason": reason})
    print(f"pool {pool} resumed")


@app.command("freeze")
def freeze_pool(context: typer.Context, pool: PoolId, reason: Reason) -> None:
    """Freeze a pool until it is unfrozen

    Nothing launches; running workers continue, and workers that wait for a launch are cancelled.

    \b
    Example:
      slipway pool freeze linux --reason "image is suspect"
    """
    api_of(context).post(object, "provisioner", path("pools", pool, "freeze"), {"reason": reason})
    print(f"pool {pool} frozen; `slipway pool unfreeze {pool}` resumes it")


@app.command("unfreeze")
def unfreeze_pool(context: typer.Context, pool: PoolId, reason: Reason) -> None:
    """Unfreeze a pool, also one frozen by a bad image

    \b
    Example:
      slipway pool unfreeze linux --reason "image is replaced"
    """
    api_of(context).post(object, "provisioner", path("pools", pool, "unfreeze"), {"reason": reason})
    print(f"pool {pool} unfrozen")
