"""`slipway lease` command group: acquire leases, manage held leases, and operate lease pools.

Values go to standard output, everything else to standard error, so that scripts can capture the values.
"""

from typing import Any

import typer
from typer.core import TyperGroup

from slipway_client.leases.errors import NOT_STARTED, exit_code
from slipway_client.transport.failed import Failed


class _Exits(TyperGroup):
    """Maps refusals to the exit codes of lease commands. Usage errors stay 2, but for those of `run`, of which every
    other code may be its command's."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Failed as error:
            if type(error) is Failed:
                error.exit_code = exit_code(error.status, error.slug)
            else:
                ctx.obj.name_existing(error)
            raise
        except typer.Exit:
            raise
        except Exception as error:
            if ctx.invoked_subcommand == "run" and getattr(error, "exit_code", 0) == 2:
                error.exit_code = NOT_STARTED  # type: ignore[attr-defined]
            raise


app = typer.Typer(
    cls=_Exits,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="""Acquire, hold and manage leases

    \b
    Exit codes:
      0   success
      2   usage error
      69  lease-broker unavailable
      75  not admitted within the wait
      76  lease lost
      77  refused: token, scope or owner
      78  refused: unknown pool or invalid request
    `run` exits like its command, and with 127, 126 or 125 if it was not started.
    """,
)
