"""Refusal of a file that a command was given."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from slipway_common.declaration.strict_yaml import DocumentProblem


class InvalidFile(Exception):
    """Invalid file, with its problems; `more` counts those that are not listed."""

    def __init__(self, file: Path, problems: "Sequence[DocumentProblem]", more: int = 0) -> None:
        super().__init__(str(file))
        self.lines = [
            ": ".join(part for part in (f"{file}:{p.line}" if p.line else str(file), p.path, p.reason) if part)
            for p in problems
        ] + ([f"{file}: and {more:,} more problems"] if more else [])

    @classmethod
    def of(cls, refused: Sequence[Self]) -> Self:
        """One refusal of several files."""
        joined = cls(Path(), ())
        joined.lines = [line for one in refused for line in one.lines]
        return joined
