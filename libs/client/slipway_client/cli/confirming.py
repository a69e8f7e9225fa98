"""Confirmation of dangerous changes: without it a command changes nothing, prints the dangers and exits with 4."""

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import typer

from slipway_client.transport.http import Failed

CONFIRMATION: Final = 4
"""Exit code of a command that needs a confirmation."""
NOT_COPIED: Final = ("confirm", "output", "help")  # options of a command that it is not repeated with
REQUIRED: Final = "confirmation-required"  # the refusal of a service

Confirm = Annotated[str | None, typer.Option("--confirm", metavar="DIGEST", help="Digest of dangerous changes to make")]


class ConfirmationNeeded(Failed):
    """Dangerous changes that were not confirmed by their digest. `command` is the one to repeat with it."""

    exit_code = CONFIRMATION

    def __init__(self, command: str, dangers: Sequence[str], digest: str) -> None:
        listed = "".join(f"\n  {danger}" for danger in dangers)
        super().__init__(
            f"Nothing was changed. These changes need a confirmation:{listed}\n"
            f"To make them: {command} --confirm {digest}",
            REQUIRED,
        )


def command_line(context: typer.Context, *command: str) -> str:
    """Text of the command that runs, or of another `command` with the same options, to be repeated with more."""
    words = ["slipway", *(command or _names(context))]
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


def _names(context: typer.Context) -> list[str]:
    """Words that name the command that runs, without that of the program."""
    if context.parent is None:
        return []
    return [*_names(context.parent), context.info_name or ""]  # type: ignore[arg-type]


@contextlib.contextmanager
def confirmable(command: str) -> Iterator[None]:
    """Raise ConfirmationNeeded where a service refuses dangerous changes."""
    try:
        yield
    except Failed as error:
        if error.slug != REQUIRED:
            raise
        problem = error.problem
        raise ConfirmationNeeded(command, problem.get("dangers", ()), str(problem.get("digest", ""))) from error
