"""Source `exec`: a command that prints the counts as JSON. Another exit code than 0 is no report."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from typing import Annotated

import msgspec
from pydantic import Field

from slipway_monitor.domain.counts import Counts, Unreadable
from slipway_monitor.sources.http import JsonSettings, counted


class ExecSettings(JsonSettings):
    """Settings of a queue that a command counts."""

    command: Annotated[tuple[str, ...], Field(min_length=1)]


class ExecSource:
    """A queue that a command counts. The command has a process group of its own, which ends with the read."""

    Settings = ExecSettings

    def __init__(self, settings: ExecSettings) -> None:
        self._settings = settings

    async def read(self) -> Sequence[Counts]:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._settings.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                process_group=0,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "cannot be run"
            raise Unreadable(f"{self._settings.command[0]}: {reason}") from None
        try:
            output, _ = await process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if process.returncode:
            raise Unreadable(f"{self._settings.command[0]} exited with {process.returncode}")
        try:
            body = msgspec.json.decode(output)
        except msgspec.DecodeError:
            raise Unreadable(f"{self._settings.command[0]} printed no JSON") from None
        return counted(self._settings, body)

    async def close(self) -> None:
        pass
