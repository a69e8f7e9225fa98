"""Help texts of the commands `slipway` and `slipway-worker`: short, and without riddles."""

import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
from typer.main import get_command

from slipway_client.cli.main import app
from slipway_client.worker.cli import app as worker

CHARACTERS_MAX: Final = 60
# Words that begin neither an imperative nor a noun phrase.
NOT_FIRST: Final = re.compile(r"(what|who\w*|whether|that|which|why|when|where|how)\b", re.IGNORECASE)


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    yield name, command
    for part, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{name} {part}")


def help_texts() -> Iterator[tuple[str, str]]:
    """First help line of every command, and the help of its arguments and options."""
    for root in ((get_command(app), "slipway"), (get_command(worker), "slipway-worker")):
        for name, command in commands(*root):
            yield name, (command.help or "").partition("\n")[0]
            for param in command.get_params(command.make_context(name, [], resilient_parsing=True)):
                label = param.opts[-1] if param.opts[-1].startswith("-") else param.metavar
                yield f"{name} {label}", param.help or ""


def is_short_line(text: str) -> bool:
    """True for an imperative or noun phrase of at most 60 characters, or a list of values, without a full stop."""
    starts_well = text[:1].isupper() or text.partition(",")[0].islower()
    return starts_well and len(text) <= CHARACTERS_MAX and not NOT_FIRST.match(text) and not text.endswith(".")


def test_help_is_one_short_line() -> None:
    texts = [(name, text) for name, text in help_texts() if not name.endswith(" --help")]
    assert len(texts) > 200
    assert [(name, text) for name, text in texts if not is_short_line(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Whose share it counts in; without one the token's name",
        "Units to acquire.",
        "Units " * 11,
        "Who may use it",
    ],
)
def test_other_help_is_found(text: str) -> None:
    assert not is_short_line(text)
