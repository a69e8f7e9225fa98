"""The `slipway-worker` command, for machines that Slipway has launched. Each command imports what it needs."""

import signal
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from slipway_client.worker.presets import Preset, prepared

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from slipway_client.worker.user_data import UserData

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
hook = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(hook, name="hook")

WhereUserData = Annotated[
    str,
    typer.Option(
        "--user-data", metavar="FILE", envvar="SLIPWAY_USER_DATA", help="User data file, or - for standard input"
    ),
]


@app.callback()
def worker() -> None:
    """Run a worker of a Slipway pool on a launched machine"""


@app.command("run")
def run_tasks(user_data: WhereUserData = "-") -> None:
    """Register and run tasks from a queue

    Tasks run one at a time, until the provisioner asks the worker to leave.

    \b
    User data is the JSON that the provisioner gives to machines:
      {"register_url": "http://127.0.0.1:7301", "batch_id": "…", "secret": "…",
       "queue_url": "http://127.0.0.1:7304/queue", "settings": {"tasks_per_worker": 1}}
    \b
    settings: tasks_per_worker, heartbeat_seconds (60), poll_seconds (30), stop_seconds (60), idle_exit_seconds,
    give_up_seconds (900).

    \b
    SIGTERM or SIGINT: finish the running task within stop_seconds, then leave. A second signal terminates the task.

    \b
    On EC2 the worker registers with its instance's signed identity document, and keeps its token for a restart in
    SLIPWAY_STATE_DIRECTORY (/var/lib/slipway-worker for root). On an interruption notice or a rebalance recommendation
    it leaves after the running task; a task that still runs 15 s before the interruption is terminated.

    \b
    Example:
      slipway-worker run --user-data /run/slipway/user-data.json

    Exit codes: 0 left normally; 1 refused by the provisioner, provisioner or metadata service unavailable, or ended
    by a second signal; 2 usage error or invalid user data.
    """
    import os

    from slipway_client.worker.run import run

    raise typer.Exit(_exit_code(run(_user_data(user_data), os.environ)))


@app.command("wrap")
def wrap_agent(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD…", help="Agent command and its arguments")],
    user_data: WhereUserData = "-",
    drain_signal: Annotated[
        Literal["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"],
        typer.Option("--drain-signal", help="Signal that makes the agent exit after its job"),
    ] = "TERM",
    preset: Annotated[
        Preset, typer.Option("--preset", help="Agent whose tasks are reported without hooks of yours")
    ] = Preset.GENERIC,
) -> None:
    """Register and run an agent that has its own queue

    The agent's job hooks call `slipway-worker hook …`. When the worker has to leave, the agent gets the drain signal
    as soon as no job runs, and SIGKILL after stop_seconds. TERM, INT, HUP, USR1 and USR2 are forwarded to it. An
    unexpected failure of the agent is reported to the provisioner.

    On EC2 the worker registers with its instance's signed identity document, and keeps its token for a restart in
    SLIPWAY_STATE_DIRECTORY (/var/lib/slipway-worker for root). On an interruption notice or a rebalance recommendation
    it leaves after the running job; one that still runs shortly before the interruption gets the drain signal
    stop_seconds before SIGKILL.

    \b
    Example:
      slipway-worker wrap --user-data /run/slipway/user-data.json --drain-signal INT -- ./run.sh --once
      slipway-worker wrap --preset celery -- celery -A builds worker --concurrency 1

    Exit codes: the agent's, 128+n for signal n, 127 if it is not found, 126 if it cannot be run; 1 refused by the
    provisioner, provisioner or metadata service unavailable; 2 usage error or invalid user data.
    """
    import os

    from slipway_client.worker.wrap import Program, wrap

    agent = prepared(preset, command, os.environ.get("PYTHONPATH", ""))
    program = Program(agent, signal.Signals[f"SIG{drain_signal}"], preset.leader_alone)
    raise typer.Exit(_exit_code(wrap(_user_data(user_data), os.environ, program)))


def _user_data(where: str) -> "UserData":
    import os

    from slipway_client.transport.trust import trust
    from slipway_client.worker.user_data import InvalidUserData, read

    try:
        user_data = read(where)
    except InvalidUserData as error:
        print(f"slipway-worker: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    trust(user_data.ca, os.environ)
    return user_data


def _exit_code(worker: "Coroutine[object, object, int]") -> int:
    import asyncio

    from slipway_client.worker.machine import NoIdentity

    try:
        return asyncio.run(worker)
    except NoIdentity as error:
        print(f"slipway-worker: {error}", file=sys.stderr)
        return 1


@hook.callback()
def hooks() -> None:
    """Report jobs of a wrapped agent

    Called by the agent's job hooks. Exit code 2: `slipway-worker wrap` is not running.
    """


@hook.command("claimed")
def hook_claimed(
    task: Annotated[
        str, typer.Argument(metavar="TASK", envvar="SLIPWAY_TASK_ID", help="Id of the job in its queue")
    ] = "",
    source: Annotated[
        str,
        typer.Option(metavar="NAME", envvar="SLIPWAY_SOURCE", help="Queue of the job [default: as wrap sets it]"),
    ] = "",
) -> None:
    """Report that a job begins

    On a worker with one task slot any earlier job has ended. `slipway-worker wrap` sets SLIPWAY_SOURCE, the only
    source of demand of the pool unless `source` in the settings of the launch config names one, and SLIPWAY_POOL_ID.

    \b
    Example:
      slipway-worker hook claimed "$JOB_ID"

    Exit codes: 0 reported, 1 not accepted, 2 no wrap is running.
    """
    _report({"hook": "claimed", "task_id": task, "source": source})


@hook.command("idle")
def hook_idle(
    task: Annotated[
        str, typer.Argument(metavar="TASK", envvar="SLIPWAY_TASK_ID", help="Id of the job, if several may run")
    ] = "",
) -> None:
    """Report that a job has ended

    Without TASK it is the only one. If several run, none of them ends, and the hook says so and exits with 0, since the
    job did not fail.

    \b
    Example:
      slipway-worker hook idle "$JOB_ID"

    Exit codes: 0 reported, 1 not accepted, 2 no wrap is running.
    """
    _report({"hook": "idle", "task_id": task})


@hook.command("draining")
def hook_draining() -> None:
    """Check if the agent has to leave

    For agents that check between two jobs. Exit codes: 0 leave, 1 continue, 2 no wrap is running.
    """
    reason = _call({"hook": "draining"}).get("leave")
    print(f"leave: {reason}" if reason else "continue")
    raise typer.Exit(0 if reason else 1)


def _report(request: dict[str, object]) -> None:
    answer = _call(request)
    if problem := answer.get("error") or answer.get("warning"):
        print(f"slipway-worker hook: {problem}", file=sys.stderr)
    if "error" in answer:
        raise typer.Exit(1)


def _call(request: dict[str, object]) -> dict[str, object]:
    from slipway_client.worker.hooks import call

    return call(request)
