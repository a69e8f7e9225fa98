"""Append-only file of facts, one JSON object per line.

Each append is an unbuffered write, so the file survives a killed process. Opening it removes an incomplete last line,
whose fact was never acted upon. The file is not fsynced, because a run does not outlive its host.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Generic, TypeVar

import msgspec

ENCODER = msgspec.json.Encoder()
Fact = TypeVar("Fact")


class FactFile(Generic[Fact]):
    """A file of facts that is open for appending. `facts()` also reads the facts of earlier processes."""

    def __init__(self, path: Path, decoder: msgspec.json.Decoder[Fact]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._decoder = decoder
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        _cut_incomplete_line(self._fd)
        self.size_bytes = os.fstat(self._fd).st_size

    def facts(self) -> Iterator[Fact]:
        return read(self.path, self._decoder)

    def append(self, facts: Sequence[Fact]) -> None:
        lines = b"".join(ENCODER.encode(fact) + b"\n" for fact in facts)
        view = memoryview(lines)
        while view:
            view = view[os.write(self._fd, view) :]
        self.size_bytes += len(lines)

    def close(self) -> None:
        os.close(self._fd)


def read(path: Path, decoder: msgspec.json.Decoder[Fact]) -> Iterator[Fact]:
    """Read the facts of a file. It may be in use: an incomplete last line is skipped."""
    with path.open("rb") as lines:
        yield from read_on(lines, decoder)


def read_on(lines: BinaryIO, decoder: msgspec.json.Decoder[Fact]) -> Iterator[Fact]:
    """Read the facts from the position of an open file, which ends behind the last complete line."""
    while (line := lines.readline()).endswith(b"\n"):
        yield decoder.decode(line)
    lines.seek(-len(line), os.SEEK_CUR)


def _cut_incomplete_line(fd: int) -> None:
    size = end = os.fstat(fd).st_size
    while end:
        start = max(0, end - 65536)
        newline = os.pread(fd, end - start, start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end != size:
        os.ftruncate(fd, end)
