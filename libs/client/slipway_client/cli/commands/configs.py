"""`slipway lc` commands: launch configs."""

from collections.abc import Iterable
from typing import Annotated, Final

import typer

from slipway_api.http.provisioner import launch_configs as answers
from slipway_client.cli import options
from slipway_client.cli.tables import Field, Output, details, short, show, table
from slipway_client.transport.http import Api, Decoded, path
from slipway_client.view.phrases import is_fallback, progress
from slipway_common.base.revisions import hash_of, name_of

app = options.noun("Manage launch configs")


def state(row: answers.LaunchConfig) -> str:
    """State of a revision: `fallback` for one that is being replaced, also while its launch config is paused."""
    if row.state == "paused" and not row.current:
        return "fallback, paused"
    return "fallback" if is_fallback(row) else row.state


def current_first(rows: Iterable[Decoded[answers.LaunchConfig]]) -> list[Decoded[answers.LaunchConfig]]:
    """Revisions by pool and name, the current one of each name first."""
    return sorted(rows, key=lambda row: _order(row.value))


def _order(row: answers.LaunchConfig) -> tuple[str, str, bool, str]:
    return row.pool_id, name_of(row.id), not row.current, row.id


FIELDS: Final[tuple[Field[answers.LaunchConfig], ...]] = (
    ("name", lambda row: name_of(row.id)),
    ("revision", lambda row: hash_of(row.id)),
    ("state", state),
    "health_state",
    "weight",
    "starting",
    "running",
    "launched",
    "booted",
    "failed",
    ("account", lambda row: row.account_id),
)
OF_POOL: Final[Field[answers.LaunchConfig]] = ("pool", lambda row: row.pool_id)
PROGRESS: Final[Field[answers.LaunchConfig]] = (
    "detail",
    lambda row: progress(row, options.now()).removeprefix("fallback: ") or None,
)
Archived = Annotated[bool, typer.Option("--all", help="Archived revisions, too")]


@app.command("ls")
def list_launch_configs(
    context: typer.Context, pool: options.OfPool = None, all_: Archived = False, output: options.AsOutput = Output.TABLE
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
    rows = current_first(
        options.api_of(context).rows(
            answers.LaunchConfig, "provisioner", "/launch-configs", pool=pool, all=all_ or None
        )
    )
    one = len({row.value.pool_id for row in rows}) <= 1
    fields = FIELDS if one else (*FIELDS[:2], OF_POOL, *FIELDS[2:])
    if any(row.value.stopping for row in rows):
        place = fields.index("running") + 1
        fields = (*fields[:place], "stopping", *fields[place:])
    if any(progress(row.value, options.now()) for row in rows):
        fields = (*fields, PROGRESS)
    show(rows, fields, output, nothing="no launch configs", drop=("account", "launched"))


SHARED: Final[tuple[Field[answers.SharedKey], ...]] = (
    ("shared", lambda row: f"{row.kind} {row.id}"),
    "stage",
    "window",
    "state",
    "unconfirmed",
    "reason",
)


@app.command("show")
def show_launch_config(
    context: typer.Context, config: options.ConfigId, output: options.AsOutput = Output.TABLE
) -> None:
    """Show a launch config and its latest failures

    Deadlines in force, settings, windows, weight, shared limits and recent failures of the current revision, or of the
    given one. Its other revisions are listed. Starts in flight stay below the window of their stage, together with
    failures that are `unfolded`: not yet included in the weight.

    \b
    Examples:
      slipway lc show linux-zone-b
      slipway lc show linux-zone-b@3f2c9a
    """
    api = options.api_of(context)
    read = api.read(answers.LaunchConfigDetails, "provisioner", path("launch-configs", config))
    row = read.value
    nested = ("stages", "shared", "record", "recent_failures", "recent_errors", "deadlines", "settings")
    inner = {"deadlines": row.deadlines, "settings": row.settings or {}}
    more = {f"{of}.{name}": value for of, values in inner.items() for name, value in values.items()}
    if not details(read, output, nested, (), **more):
        return
    print()
    _show_others(api, row)
    table(list(row.stages.items()), _stages(row), nothing="no windows")
    print()
    table(row.shared, SHARED, nothing="no shared limits")
    print()
    failures: tuple[Field[answers.LaunchFailure], ...] = (
        ("at", lambda failure: options.clock(failure.at)),
        ("worker", lambda failure: short(failure.worker_id)),
        "reason",
    )
    table(row.recent_failures, failures, nothing="no recent failures")
    if row.recent_errors:
        print()
        table(row.recent_errors, (("errors in a day", lambda error: error.number), "code", "sample"), nothing="")


def _show_others(api: Api, row: answers.LaunchConfig) -> None:
    """Print the other revisions of the name, archived ones too; nothing if there are none."""
    name = name_of(row.id)
    rows = api.items(answers.LaunchConfig, "provisioner", "/launch-configs", pool=row.pool_id, all=True)
    others = [other for other in rows if name_of(other.id) == name and other.id != row.id]
    fields: tuple[Field[answers.LaunchConfig], ...] = (
        ("other revision", lambda other: hash_of(other.id)),
        ("state", state),
        ("image", lambda other: other.image_revision),
        PROGRESS,
    )
    if others:
        table(sorted(others, key=lambda other: other.state), fields, nothing="")
        print()


def _stages(row: answers.LaunchConfigDetails) -> tuple[Field[tuple[str, answers.StageLevel]], ...]:
    """Columns of the stages of a launch config."""
    health = row.record.stages if row.record else {}
    return (
        ("stage", lambda stage: stage[0]),
        ("in flight", lambda stage: stage[1].in_flight),
        ("unfolded", lambda stage: stage[1].unfolded),
        ("window", lambda stage: stage[1].window),
        ("health", lambda stage: health[stage[0]].probability if stage[0] in health else None),
    )


@app.command("pause")
def pause_launch_config(
    context: typer.Context,
    config: options.ConfigName,
    reason: options.Reason,
    for_: options.For = None,
    until: options.Until = None,
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
    options.api_of(context).post(
        object, "provisioner", path("launch-configs", config, "pause"), {"reason": reason, "until": ends}
    )
    print(f"launch config {config} paused {options.until_text(ends)}")


@app.command("resume")
def resume_launch_config(context: typer.Context, config: options.ConfigName, reason: options.Reason) -> None:
    """Resume launching from a paused launch config

    \b
    Example:
      slipway lc resume linux-zone-b --reason "maintenance is over"
    """
    options.api_of(context).post(object, "provisioner", path("launch-configs", config, "resume"), {"reason": reason})
    print(f"launch config {config} resumed")
