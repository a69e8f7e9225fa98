"""Source `exec`: a command that prints the counts as JSON. Another exit code than 0 is no report."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import msgspec
from pydantic import Field

from slipway_common.base.process.groups import CannotStart, Group, handed_on
from slipway_monitor.domain.counts import Counts, Unreadable
from slipway_monitor.sources.http import JsonSettings, counted

OUTPUT_BYTES_MAX: Final = 10_000_000
CHUNK_BYTES: Final = 65_536


class ExecSettings(JsonSettings):
    """Settings of a queue that a command counts. `environment` names variables of the monitor that it gets, beside
    PATH, HOME, LANG and TMPDIR."""

    command: Annotated[tuple[str, ...], Field(min_length=1)]
    environment: tuple[str, ...] = ()


class ExecSource:
    """A queue that a command counts. The command has a process group of its own, which ends with it or with the
    read."""

    Settings = ExecSettings

    def __init__(self, settings: ExecSettings) -> None:
        self._settings = settings

    async def read(self) -> Sequence[Counts]:
        program = self._settings.command[0]
        try:
            code, output = await _printed(self._settings.command, handed_on(self._settings.environment))
        except CannotStart as error:
            raise Unreadable(str(error)) from None
        if len(output) > OUTPUT_BYTES_MAX:
            raise Unreadable(f"{program} printed more than {OUTPUT_BYTES_MAX:,} bytes")
        if code:
            raise Unreadable(f"{program} exited with {code}; run it to see why")
        try:
            body = msgspec.json.decode(output)
        except msgspec.DecodeError:
            raise Unreadable(f"{program} printed no JSON") from None
        return counted(self._settings, body)

    async def close(self) -> None:
        pass


async def _printed(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, bytearray]:
    """Exit code of a command, and what it printed, or so much that it is too much. Its errors, which may be secret, are
    dropped. Raises CannotStart."""
    reading, writing = os.pipe()
    stream, output = asyncio.StreamReader(), bytearray()
    pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb")
    )
    try:
        try:
            group = Group.start(command, environment, stdout=writing, stderr=subprocess.DEVNULL)
        finally:
            os.close(writing)
        # The rest of its group ends with the command, so that a child in the background does not hold the pipe.
        ending = asyncio.create_task(group.end())
        try:
            while len(output) <= OUTPUT_BYTES_MAX and (chunk := await stream.read(CHUNK_BYTES)):
                output += chunk
            if len(output) <= OUTPUT_BYTES_MAX:
                await asyncio.shield(ending)
        finally:
            group.send(signal.SIGKILL)
            await ending
    finally:
        pipe.close()
    return ending.result(), output
