"""The `slipway-worker` command: what runs on a machine that Slipway has launched. Imports what a command needs."""

import signal
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from slipway_client.worker.user_data import UserData

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
hook = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(hook, name="hook")

WhereUserData = Annotated[
    str, typer.Option("--user-data", envvar="SLIPWAY_USER_DATA", help="A file, or - for standard input.")
]


class DrainSignal(StrEnum):
    """What an agent may be told to leave by."""

    TERM = "TERM"
    INT = "INT"
    HUP = "HUP"
    QUIT = "QUIT"
    USR1 = "USR1"
    USR2 = "USR2"


@app.callback()
def worker() -> None:
    """Work for a Slipway pool, on a machine that Slipway has launched."""


@app.command("run")
def run_tasks(user_data: WhereUserData = "-") -> None:
    """Register, run tasks from the queue one after another, and leave when told to.

    \b
    User data are the JSON that the provisioner gives to machines:
      {"register_url": "http://127.0.0.1:7301", "batch_id": "…", "secret": "…",
       "queue_url": "http://127.0.0.1:7304/queue", "settings": {"tasks_per_worker": 1}}
    \b
    settings: tasks_per_worker, heartbeat_seconds (60), poll_seconds (30), stop_seconds (60), idle_exit_seconds,
    give_up_seconds (900).

    \b
    SIGTERM or SIGINT: finish the task under way, for at most stop_seconds, then leave. A second one ends the task.

    \b
    Example:
      slipway-worker run --user-data /run/slipway/user-data.json

    Exit codes: 0 left as it should; 1 refused by the provisioner, given up, or ended by a second signal; 2 wrong usage
    or user data.
    """
    import asyncio

    from slipway_client.worker.run import run

    raise typer.Exit(asyncio.run(run(_user_data(user_data))))


@app.command("wrap")
def wrap_agent(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD…", help="The agent and its arguments.")],
    user_data: WhereUserData = "-",
    drain_signal: Annotated[
        DrainSignal, typer.Option("--drain-signal", help="Tells the agent to leave once its job is done.")
    ] = DrainSignal.TERM,
) -> None:
    """Register, run an agent that brings its own queue, and end with it.

    The agent's job hooks call `slipway-worker hook …`. Told to leave, the agent gets the drain signal as soon as no job
    runs, and SIGKILL after stop_seconds. TERM, INT, HUP, USR1 and USR2 are passed on to it. If it fails unasked, that
    is reported.

    \b
    Example:
      slipway-worker wrap --user-data /run/slipway/user-data.json --drain-signal INT -- ./run.sh --once

    Exit codes: the agent's, 128+n for signal n, 127 and 126 when it is not found and cannot be run; 1 refused by the
    provisioner or given up; 2 wrong usage or user data.
    """
    import asyncio

    from slipway_client.worker.wrap import wrap

    signum = signal.Signals[f"SIG{drain_signal}"]
    raise typer.Exit(asyncio.run(wrap(_user_data(user_data), command, signum)))


def _user_data(where: str) -> "UserData":
    from slipway_client.worker.user_data import Unusable, read

    try:
        return read(where)
    except Unusable as error:
        print(f"slipway-worker: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


@hook.callback()
def hooks() -> None:
    """What an agent's job hooks tell their wrap. Exit code 2: no wrap is there."""


@hook.command("claimed")
def hook_claimed(
    task: Annotated[str, typer.Option("--task", help="Id of the job, as its queue knows it.")],
    source: Annotated[str, typer.Option(help="Which queue the job is of, as demand reports name it.")] = "agent",
) -> None:
    """A job begins. Any other has ended.

    \b
    Example:
      slipway-worker hook claimed --task "$JOB_ID" --source my-queue

    Exit codes: 0 told, 1 not accepted, 2 no wrap is there.
    """
    _tell({"hook": "claimed", "task_id": task, "source": source})


@hook.command("idle")
def hook_idle() -> None:
    """The job has ended.

    Exit codes: 0 told, 1 not accepted, 2 no wrap is there.
    """
    _tell({"hook": "idle"})


@hook.command("draining")
def hook_draining() -> None:
    """Ask whether to leave, for agents that ask between two jobs.

    Exit codes: 0 leave, 1 go on, 2 no wrap is there.
    """
    why = _ask({"hook": "draining"}).get("leave")
    print(f"leave: {why}" if why else "go on")
    raise typer.Exit(0 if why else 1)


def _tell(request: dict[str, Any]) -> None:
    if error := _ask(request).get("error"):
        print(f"slipway-worker hook: {error}", file=sys.stderr)
        raise typer.Exit(1)


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    from slipway_client.worker.hooks import ask

    return ask(request)
