"""The `slipway-terraform` command: composes the scheduler and its daemon, and is the only reader of the settings."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final

import structlog
import typer

from slipway_terraform.daemon import logs
from slipway_terraform.daemon.endpoint import EndpointUnavailable
from slipway_terraform.daemon.scrapes import serve_metrics
from slipway_terraform.daemon.server import Daemon
from slipway_terraform.daemon.settings import Executable, InvalidSettings, SchedulerKind, Settings, load
from slipway_terraform.domain.errors import ProviderStartError
from slipway_terraform.domain.port import ProviderScheduler
from slipway_terraform.plugins.runner import PluginRunner
from slipway_terraform.scheduler.noop import NoOpScheduler
from slipway_terraform.scheduler.process import ProcessStatus
from slipway_terraform.scheduler.shared import SharedScheduler, WorkspaceScheduler

LOG: Final = structlog.get_logger("slipway_terraform.main")  # also as a program
INVALID: Final = 2

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def main() -> None:
    """Share Terraform provider plugins between processes."""


@app.command()
def serve(
    settings: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Settings as TOML [default: $SLIPWAY_TERRAFORM_SETTINGS]"),
    ] = None,
) -> None:
    """Run the scheduler for clients of a Unix socket

    SIGTERM and SIGINT drain: no new leases, and those that are held may end. A second signal ends them.
    """
    logs.configure()
    try:
        asyncio.run(_serve(load(settings)))
    except (InvalidSettings, EndpointUnavailable) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(INVALID) from None


async def _serve(settings: Settings) -> None:
    stop, stop_now = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (stop_now if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    if settings.metrics_port is not None:
        port = serve_metrics(settings.metrics_port, settings.metrics_tokens_file)
        LOG.info("terraform_metrics_served", port=port)
    runner = PluginRunner()
    checking = asyncio.create_task(_check(settings.provider, runner))
    scheduler, processes = composed(settings, runner)
    try:
        await Daemon(scheduler, processes, settings).run(stop, stop_now)
    finally:
        checking.cancel()


async def _check(executables: Sequence[Executable], runner: PluginRunner) -> None:
    """Log which plugins cannot be started now. The daemon serves nevertheless: a plugin may be installed later."""
    for executable in executables:
        try:
            await runner.check(executable.spec({}, {}, ""))
        except ProviderStartError as error:
            LOG.warning("terraform_plugin_unusable", error=str(error))


def composed(
    settings: Settings, runner: PluginRunner
) -> tuple[ProviderScheduler, Callable[[], Sequence[ProcessStatus]]]:
    """The scheduler that the settings choose, and its list of processes."""
    if settings.scheduler is SchedulerKind.NOOP:
        return NoOpScheduler(), list
    kind = SharedScheduler if settings.scheduler is SchedulerKind.SHARED else WorkspaceScheduler
    scheduler = kind(runner, settings.policy)
    return scheduler, scheduler.processes


if __name__ == "__main__":
    app()
