"""Refusal of files that a command was given."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from slipway_client.transport.failed import Failed
from slipway_common.base.sanitize import printable

if TYPE_CHECKING:
    from slipway_common.declaration.strict_yaml import Invalid


class InvalidFile(Failed):
    """Invalid files, each with its problems."""

    exit_code = 2

    def __init__(self, *refused: "tuple[Path, Invalid]") -> None:
        super().__init__("\n".join(printable(line) for file, error in refused for line in _lines(file, error)))


def _lines(file: Path, error: "Invalid") -> Iterator[str]:
    for problem in error.problems:
        place = f"{file}:{problem.line}" if problem.line else str(file)
        yield ": ".join(part for part in (place, problem.path, problem.reason) if part)
    if error.more:
        yield f"{file}: and {error.more:,} more problems"
