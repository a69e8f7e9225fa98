"""`slipway pool set-image`, `set`, `history` and `rollback`: changes of one declared worker pool, and its history."""

import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal

import typer

from slipway_api.http.provisioner.declaration import DeclarationResult, PoolRevision, RevisionInForce
from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_api.http.provisioner.pools import PoolDetails
from slipway_api.http.provisioner.workers import Worker
from slipway_client.cli import options
from slipway_client.cli.confirming import CHANGE_FIELDS, Confirm, command_line, confirmable
from slipway_client.cli.tables import Field, Output, as_json, show, table
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import Api, Parameter, path
from slipway_client.view import replaced
from slipway_client.view.phrases import count
from slipway_common.base.sanitize import printable

app = typer.Typer(rich_markup_mode=None)

ATTEMPTS: Final = 3  # to change a pool that others change at the same time
NAMED_MAX: Final = 3  # revisions of one image that are listed by name
PROMOTED: Final = {"observe": "canary", "canary": "enforce"}
WORKERS_READ: Final = 100
CHANGED: Final = 412  # status of a write to a version of an object that is no longer the newest
Spec = dict[str, Any]
"""Declaration of a pool, which is sent back with its changes alone."""

ConfigNames = Annotated[
    list[str] | None,
    typer.Option(
        "--config",
        metavar="CONFIG",
        help="Launch config; repeatable [default: all of the pool]",
        autocompletion=options.configs,
        show_default=False,
    ),
]


@app.command("set-image")
def set_image(
    context: typer.Context,
    pool: options.PoolId,
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="Image revision to launch")],
    config: ConfigNames = None,
    replace: options.Replace = None,
    drain_for: options.DrainFor = None,
    terminate: options.Terminate = False,
    reason: options.OptionalReason = None,
    confirm: Confirm = None,
    output: options.AsOutput = Output.TABLE,
) -> None:
    """Set the image of a pool's launch configs

    Each gets a revision with the image, or the one that already had it. The old revision drains once the new one is
    proven by successful starts: until then it launches what the new one does not (natural), or a shrinking share
    (rolling). With --replace now it drains at once: its idle workers stop, the others at the deadline.

    \b
    Examples:
      slipway pool set-image linux linux-2
      slipway pool set-image linux linux-2 --config linux-zone-a --replace rolling
      slipway pool set-image linux linux-3 --replace now --drain-for 30m --reason "leaked token"
    """
    how = options.roll_out(replace, drain_for, terminate)
    parameters = {"action": "set-image", "reason": reason, "confirm": confirm, **how}

    def with_image(spec: Spec) -> Spec:
        names = _names(spec)
        if unknown := set(config or ()) - set(names):
            known = ", ".join(names) or "none"
            raise typer.BadParameter(f"--config: pool {pool} has no launch config {min(unknown)}; there is {known}")
        wanted = set(config or names)
        configs = [
            one | {"image": image} if name in wanted else one
            for name, one in zip(names, spec["launch_configs"], strict=True)
        ]
        return spec | {"launch_configs": configs}

    _carry_out(context, pool, output, lambda api: _changed(api, pool, with_image, parameters), replaces=True)


@app.command("set")
def set_pool(
    context: typer.Context,
    pool: options.PoolId,
    max_: Annotated[int | None, typer.Option("--max", metavar="N", min=0, help="Maximum number of workers")] = None,
    min_: Annotated[int | None, typer.Option("--min", metavar="N", min=0, help="Minimum number of workers")] = None,
    mode: Annotated[
        Literal["observe", "canary", "enforce"] | None, typer.Option("--mode", help="Mode: how much may launch")
    ] = None,
    ratio: Annotated[str | None, typer.Option("--ratio", metavar="RATIO", help="Workers per task, as 1 or 1/3")] = None,
    drain_for: Annotated[
        str | None, typer.Option("--drain-for", metavar="DURATION", help="Default time limit of drains, such as 2h")
    ] = None,
    reason: options.OptionalReason = None,
    confirm: Confirm = None,
    output: options.AsOutput = Output.TABLE,
) -> None:
    """Change settings of a worker pool

    What is not given stays as declared.

    \b
    Examples:
      slipway pool set linux --max 80
      slipway pool set linux --mode canary --drain-for 2h
    """
    given = {
        "max_capacity": max_,
        "min_capacity": min_,
        "mode": mode,
        "scaling_ratio": ratio,
    }
    wanted = {name: value for name, value in given.items() if value is not None}
    drain_seconds = options.duration_seconds("--drain-for", drain_for)
    deadlines = {} if drain_seconds is None else {"drain_seconds": drain_seconds}
    if not wanted and not deadlines:
        raise typer.BadParameter("nothing to set: give --max, --min, --mode, --ratio or --drain-for")

    def with_settings(spec: Spec) -> Spec:
        more = {"deadlines": spec.get("deadlines", {}) | deadlines} if deadlines else {}
        return spec | wanted | more

    parameters = {"action": "set", "reason": reason, "confirm": confirm}
    _carry_out(context, pool, output, lambda api: _changed(api, pool, with_settings, parameters), replaces=False)


@app.command("promote")
def promote_pool(
    context: typer.Context,
    pool: options.PoolId,
    force: Annotated[bool, typer.Option("--force", help="Promotion of a canary that has not registered")] = False,
    reason: options.OptionalReason = None,
    confirm: Confirm = None,
    output: options.AsOutput = Output.TABLE,
) -> None:
    """Promote a pool from observe to canary, or to enforce

    New pools whose machines cost money begin in mode observe, which records decisions and launches nothing. In mode
    canary one worker at a time launches; the pool is promoted to enforce once one has registered. A file that declares
    no mode keeps the one that the pool has.

    \b
    Example:
      slipway pool promote linux --reason "the canary has done its first task"
    """
    api = options.api_of(context)
    mode = api.get(PoolDetails, "provisioner", path("pools", pool)).mode
    wanted = PROMOTED.get(mode)
    if wanted is None:
        print(f"pool {pool} is in mode {mode} already")
        return
    if mode == "canary" and not force:
        rows = api.items(Worker, "provisioner", "/workers", pool=pool, limit=WORKERS_READ)
        if not any(row.registered_at for row in rows):
            raise Failed(
                f"no worker of pool {pool} has registered in mode canary; `slipway why {pool}` says what it waits for. "
                "Nothing was changed; --force promotes it nevertheless"
            )
    parameters = {"action": "set", "reason": reason, "confirm": confirm}

    def with_mode(spec: Spec) -> Spec:
        return spec | {"mode": wanted}

    answer = _carry_out(context, pool, output, lambda api: _changed(api, pool, with_mode, parameters), replaces=False)
    if output is Output.TABLE:
        texts = [row.text for row in answer.costs] + [row.text for row in answer.unpriced]
        print(*map(printable, texts), sep="\n")


@app.command("history")
def show_history(
    context: typer.Context,
    pool: options.PoolId,
    limit: options.Limit = 20,
    output: options.AsOutput = Output.TABLE,
) -> None:
    """List the changes of a declared worker pool, newest first

    With the images and revisions that were current after each. `slipway pool rollback` takes its number.

    \b
    Example:
      slipway pool history linux
    """
    rows = options.api_of(context).rows(PoolRevision, "provisioner", path("pools", pool, "history"), limit=limit + 1)
    show(rows, HISTORY, output, nothing="no changes are recorded", drop=("owner",), limit=limit)


@app.command("rollback")
def roll_back(
    context: typer.Context,
    pool: options.PoolId,
    reason: options.Reason,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="NUMBER", help="Number in `slipway pool history` [default: see above]"),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Rollback of minimum, maximum and all else of the pool, too")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Rollback also to a tripped revision")] = False,
    replace: Annotated[
        options.Strategy | None, typer.Option("--replace", help="Replacement as by set-image [default: see above]")
    ] = None,
    drain_for: options.DrainFor = None,
    terminate: options.Terminate = False,
    confirm: Confirm = None,
    output: options.AsOutput = Output.TABLE,
) -> None:
    """Roll a pool's launch configs back to earlier revisions

    By default to those before the last change of revisions. The next rollback goes further back: revisions that one has
    left are passed over until they are declared again. Minimum, maximum, mode and weights stay as they are, unless the
    whole pool is rolled back. With --to, launch configs return as of that entry: those declared since are left out.

    What is rolled away from launches nothing more: its busy workers finish their tasks, idle ones leave as replacements
    register. Until the target is proven, a fallback that is proven launches what it does not. With --replace now, for
    leaked secrets, all others end: their idle workers stop, the others at the deadline. Refused while a revision that
    would return is tripped.

    \b
    Examples:
      slipway pool rollback linux --reason "linux-2 does not boot"
      slipway pool rollback linux --to 12 --reason "back to the images of last week"
    """
    given = {
        "to_revision": _number(pool, to),
        "whole": whole or None,
        "reason": reason,
        "force": force or None,
        "confirm": confirm,
        **options.roll_out(replace, drain_for, terminate),
    }
    body = {name: value for name, value in given.items() if value is not None}

    def request(api: Api) -> DeclarationResult:
        return api.post(DeclarationResult, "provisioner", path("pools", pool, "rollback"), body)

    answer = _carry_out(context, pool, output, request, replaces=True)
    if output is Output.TABLE:
        print(f"As of entry {answer.to_revision} of the history; current: {_images(answer.revisions or {})}")


def _number(pool: str, given: str | None) -> int | None:
    """Number of an entry of the history; people may give the hash of a revision in its place."""
    if given is None or given.isdecimal():
        return None if given is None else int(given)
    raise typer.BadParameter(f"--to takes a number from `slipway pool history {pool}`, not {given!r}")


def _images(revisions: Mapping[str, RevisionInForce]) -> str:
    """Images with the revisions that have them, which are counted if they are many."""
    found: dict[str, list[str]] = {}
    for name, row in revisions.items():
        found.setdefault(row.image, []).append(f"{name}@{row.revision}")
    return "; ".join(
        f"{image} ({', '.join(ids) if len(ids) <= NAMED_MAX else count(len(ids), 'launch config')})"
        for image, ids in found.items()
    )


def _summary(row: PoolRevision) -> str:
    """Changes of one revision of a pool, in one sentence; those of many launch configs are counted."""
    pools = [change.detail or change.result for change in row.changes if change.kind == "worker pool"]
    configs = [change for change in row.changes if change.kind == "launch config"]
    if len(configs) == 1:
        pools.append(f"{configs[0].id} {configs[0].result}: {configs[0].detail}".rstrip(": "))
    elif configs:
        results = sorted({change.result for change in configs})
        details = {change.detail.partition(", ")[2] for change in configs}  # without the revisions, which differ
        same = f": {details.pop()}" if len(details) == 1 and "" not in details else ""
        pools.append(f"{count(len(configs), 'launch config')} {' and '.join(results)}{same}")
    return "; ".join(pools)


HISTORY: Final[tuple[Field[PoolRevision], ...]] = (
    ("number", lambda row: row.revision),
    ("at", lambda row: options.clock(row.at)),
    "by",
    "action",
    "owner",
    ("detail", _summary),
    ("current", lambda row: _images(row.revisions)),
    "reason",
)


def _names(spec: Spec) -> list[str]:
    """Names of the declared launch configs, in order; some are made of their places."""
    from slipway_common.declaration import models
    from slipway_common.declaration.identity import config_name

    # Not validated: the declaration of a newer provisioner has fields that this version does not know.
    pool = models.WorkerPool.model_construct(**spec)
    return [config_name(pool, models.LaunchConfig.model_construct(**config)) for config in spec["launch_configs"]]


def _changed(
    api: Api, pool: str, change: Callable[[Spec], Spec], parameters: Mapping[str, Parameter]
) -> DeclarationResult:
    """Answer to a change of the declared pool. Others may change it meanwhile: then it is read again. A pool
    that has an owner is in a file, which is out of date by now: this is noted on stderr."""
    place = path("pools", pool)
    for attempt in range(ATTEMPTS):
        read = api.read(PoolDetails, "provisioner", place)
        row = read.value
        if row.declared is None:
            raise Failed(f"the declaration of pool {pool} cannot be read: use a token with the scope read:settings")
        wanted = change(row.declared)
        try:
            answer = api.put_tagged(DeclarationResult, "provisioner", place, wanted, read.tag, **parameters)
        except Failed as error:
            if error.status != CHANGED or attempt == ATTEMPTS - 1:
                raise
        else:
            if row.owner and answer.items and _differs(row.declared, wanted):
                note = f"declared by {row.owner}: change it there too, or the next apply reverts this"
                print(printable(note), file=sys.stderr)
            return answer
    raise AssertionError("the last attempt returns or raises")


def _differs(declared: Spec, wanted: Spec) -> bool:
    """True if a file that declares the former would change the latter back; one without a mode keeps it."""
    kept = () if declared.get("mode") else ("mode",)
    return any(declared.get(name) != wanted[name] for name in wanted if name not in kept)


def _carry_out(
    context: typer.Context, pool: str, output: Output, request: Callable[[Api], DeclarationResult], *, replaces: bool
) -> DeclarationResult:
    """Carry out a change of a pool, and show a line for each launch config whose current revision it has replaced, if
    it `replaces` any, and other changes below."""
    api = options.api_of(context)
    before = api.items(LaunchConfig, "provisioner", "/launch-configs", pool=pool) if replaces else []
    with confirmable(command_line(context)):
        answer = request(api)
    after = api.items(LaunchConfig, "provisioner", "/launch-configs", pool=pool) if replaces else []
    made = replaced.replacements(before, after, answer.items)
    if output is Output.JSON:
        as_json(replaced.with_replacements(answer.items, made))
        return answer
    for line in replaced.lines(made, options.now()):
        print(line)
    rest = [change for change in answer.items if change.kind != replaced.LAUNCH_CONFIG or change.id not in made]
    if rest or not made:
        table(rest, CHANGE_FIELDS, nothing=f"pool {pool} is unchanged")
    return answer
