"""The ledger: the file of facts that is the source of truth of a run."""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from slipway_simulator import fact_file
from slipway_simulator.facts import Fact

DECODER: Final[msgspec.json.Decoder[Fact]] = msgspec.json.Decoder(Fact)


class Ledger(fact_file.FactFile[Fact]):
    """A ledger that is open for appending."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, DECODER)


def read(path: Path) -> Iterator[Fact]:
    """Read the facts of a ledger. It may be in use: an incomplete last line is skipped."""
    return fact_file.read(path, DECODER)


def read_on(lines: BinaryIO) -> Iterator[Fact]:
    """Read the facts from the position of an open ledger, which ends behind the last complete one."""
    return fact_file.read_on(lines, DECODER)
