"""Confirmation of dangerous changes: without it a command changes nothing, prints the dangers and exits with 4."""

import contextlib
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from slipway_client.transport.http import Failed

CONFIRMATION: Final = 4
"""Exit code of a command that needs a confirmation."""
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


def command_line(*words: str, options: Mapping[str, Any]) -> str:
    """Text of a command with the options that are given, to be repeated with a confirmation."""
    given = [*words]
    for option, value in options.items():
        values = value if isinstance(value, list) else [value]
        for one in values:
            given += [option] if one is True else [] if one is None or one is False else [option, str(one)]
    return shlex.join(given)


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
