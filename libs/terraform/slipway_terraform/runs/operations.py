"""Operations of workspaces: one at a time, interruptible at any point; results stay until they are forgotten."""

import asyncio
import re
from collections.abc import Coroutine
from typing import Any, Final

from slipway_terraform.domain.errors import RunInterrupted, SpecInvalid
from slipway_terraform.domain.results import Command, Run
from slipway_terraform.runs.process import Interruption

_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")


def checked_name(workspace: str) -> str:
    """Name of a workspace, which is also that of its folder. Raises SpecInvalid."""
    if not _NAME.fullmatch(workspace):
        raise SpecInvalid(f"workspace {workspace!r}: use 1 to 100 letters, digits, dots, dashes and underscores")
    return workspace


class Operation:
    """One operation of a workspace, from its start on."""

    def __init__(self, command: Command, workspace: str) -> None:
        self.command = command
        self.workspace = workspace
        self.interruption = Interruption()
        self.is_in_cli = False
        """True once the CLI may have begun: from then on an interruption lets it save its state."""
        self._task: asyncio.Task[Run] | None = None

    def begin(self, work: Coroutine[Any, Any, Run]) -> None:
        self._task = asyncio.get_running_loop().create_task(work, name=f"{self.command} of {self.workspace}")
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())  # it is not lost: `wait`

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    @property
    def result(self) -> Run | None:
        """Result of an ended run; None while it runs, or if it never began."""
        task = self._task
        if task is None or not task.done() or task.cancelled() or task.exception() is not None:
            return None
        return task.result()

    @property
    def has_failed(self) -> bool:
        return not self.is_running and (self.result is None or self.result.failure is not None)

    def interrupt(self, reason: str) -> None:
        """End it: a waiting one at once, a running one by SIGINT, after a grace by SIGKILL. Its process is tainted."""
        if self.is_in_cli:
            self.interruption.request(reason)
        elif self._task is not None:
            self._task.cancel(reason)

    async def wait(self) -> Run:
        """Result of the run, also of a failed or interrupted one.

        Raises RunInterrupted if it was interrupted before it began; errors of the scheduler's `acquire`; SharingUnsafe,
        ModuleMissing, ModuleInvalid, DigestMismatch, InitFailed, DiskFull, ProviderCrashed. After any of them nothing
        was run. OutcomeUnknown: a plugin and this driver failed together while the CLI ran.
        """
        assert self._task is not None
        await asyncio.wait({self._task})
        if self._task.cancelled():
            raise RunInterrupted(f"{self.command} of {self.workspace} was interrupted before it began")
        return self._task.result()

    async def settled(self) -> None:
        """Wait for its end, however it ends."""
        if self._task is not None:
            await asyncio.wait({self._task})
