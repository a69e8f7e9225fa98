"""Confirmation of dangerous changes: without it a command changes nothing, prints what it would change and the dangers,
and exits with 4."""

import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import typer

from slipway_api.http.declaration import Change
from slipway_client.cli.tables import Field, drawn
from slipway_client.transport.failed import Failed

CONFIRMATION: Final = 4
"""Exit code of a command that needs a confirmation."""
NOT_COPIED: Final = ("confirm", "output", "help")  # options of a command that it is not repeated with
CHANGE_FIELDS: Final[tuple[Field[Change], ...]] = ("kind", "id", "result", "detail")
REQUIRED: Final = "confirmation-required"  # the refusal of a service

Confirm = Annotated[str | None, typer.Option("--confirm", metavar="DIGEST", help="Digest of dangerous changes to make")]


class ConfirmationNeeded(Failed):
    """Changes that were not confirmed by their digest: all of them, since it confirms all, and the dangers among them.
    `command` is the one to repeat with it."""

    exit_code = CONFIRMATION

    def __init__(self, command: str, changes: Sequence[Change], more: int, dangers: Sequence[str], digest: str) -> None:
        lines = ["Nothing was changed. These are the changes:"]
        lines += [f"  {line}" for line in drawn(changes, CHANGE_FIELDS, sys.stderr, styled=False)]
        lines += [f"  and {more:,} more changes, which are not listed"] if more else []
        super().__init__("\n".join([*lines, *confirmation(command, dangers, digest)]), REQUIRED)


def confirmation(command: str, dangers: Sequence[str], digest: str) -> list[str]:
    """Lines that name the dangers, and the command that makes the changes."""
    listed = (f"  {danger}" for danger in dangers)
    return ["These changes need a confirmation:", *listed, f"To make them: {command} --confirm {digest}"]


def command_line(context: typer.Context, *command: str) -> str:
    """Text of the command that runs, or of another `command` with the same options, to be repeated with more."""
    words = ["slipway", *(command or context.command_path.split()[1:])]
    for parameter in context.command.params:
        value = context.params[parameter.name or ""]
        is_given = value is not None and value is not False and value != parameter.default
        if not is_given or parameter.name in NOT_COPIED:
            continue
        option = [parameter.opts[0]] if parameter.param_type_name == "option" else []
        if value is True:
            words += option
        else:
            for one in value if isinstance(value, list | tuple) else [value]:
                words += [*option, f"{one}"]
    return shlex.join(words)


@contextlib.contextmanager
def confirmable(command: str) -> Iterator[None]:
    """Raise ConfirmationNeeded where a service refuses dangerous changes."""
    try:
        yield
    except Failed as error:
        problem = error.problem
        if error.slug != REQUIRED or problem is None:
            raise
        changes, more = problem.items or [], problem.more or 0
        dangers, digest = problem.dangers or [], problem.digest or ""
        raise ConfirmationNeeded(command, changes, more, dangers, digest) from error
