"""`slipway top`. What a screen needs is imported when one is wanted: other commands start without it."""

from typing import Annotated

import typer


def top(
    context: typer.Context,
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 1.0,
    plain: Annotated[bool, typer.Option("--plain", help="Lines instead of a screen, as in a pipe.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Show what is, once, and exit.")] = False,
) -> None:
    """Watch pools, launch configs and lease pools live, with what happens told below. q ends it.

    Where the output is no terminal, and with --plain, it is a line per pool and look, and a line per event. NO_COLOR
    is honoured.

    \b
    Examples:
      slipway top
      slipway top --interval 5 --plain >> slipway.log
      slipway top --once
    """
    from slipway_client.top import run

    raise typer.Exit(run(context.obj, interval, plain=plain, once=once))
