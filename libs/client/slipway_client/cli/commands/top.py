"""`slipway top`. Modules of the screen are imported on use, so that other commands start without them."""

from typing import Annotated

import typer


def top(
    context: typer.Context,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two refreshes")] = 1.0,
    plain: Annotated[bool, typer.Option("--plain", help="Line output, as in a pipe, instead of a screen")] = False,
    once: Annotated[bool, typer.Option("--once", help="One snapshot, then exit")] = False,
) -> None:
    """Watch a deployment live; ? shows the keys

    Arrows select a row, and Enter opens its pool, launch config, lease pool, worker or lease: cause, effect, remedy,
    and what belongs to it. / filters, a lists open alerts, p pauses the screen, Esc goes back, q quits.
    With --plain, and where the output is no terminal, prints a line per pool and refresh, and a line per event.
    NO_COLOR is honoured.

    \b
    Examples:
      slipway top
      slipway top --interval 5 --plain >> slipway.log
      slipway top --once
    """
    from slipway_client.cli.options import api_of
    from slipway_client.cli.top import run

    raise typer.Exit(run(api_of(context), interval, plain=plain, once=once))
