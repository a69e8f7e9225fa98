"""Machines as processes: each leads a session of its own in a folder of its own, and ends with the stand-in.

Commands that power a machine off, such as `poweroff`, are replaced by one that only marks the machine as off.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from slipway_common.base.process.groups import filled_pipe
from slipway_common.base.process.guard import Held, guard, signal_group
from slipway_local.ec2.boot import Boot

ENDPOINT: Final = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
STATE: Final = "SLIPWAY_STATE_DIRECTORY"
"""Machines of one host would share the agent's own folder."""
HANDED_ON: Final = ("PATH", "LANG", "TMPDIR", "PYTHONPATH")
POWER_OFF: Final = ("poweroff", "shutdown", "halt")
OFF: Final = "off"
MARK_OFF: Final = f'#!/bin/sh\n: > "$HOME/{OFF}"\n'
CONSOLE: Final = "console.log"


class Machines:
    """Processes of the machines in one folder."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url
        self._commands = folder / "commands"
        self._commands.mkdir(parents=True, exist_ok=True)
        for name in POWER_OFF:
            command = self._commands / name
            command.write_text(MARK_OFF)
            command.chmod(0o700)

    def home(self, instance_id: str) -> Path:
        return self.folder / instance_id

    def console(self, instance_id: str) -> Path:
        return self.home(instance_id) / CONSOLE

    async def start(self, instance_id: str, boot: Boot) -> "Machine":
        """Start a machine's process. Raises OSError."""
        home = self.home(instance_id)
        _prepare(home, boot)
        with (
            self.console(instance_id).open("ab") as console,
            filled_pipe(boot.standard_input) as standard_input,
            Held(boot.argv, over=2) as held,
        ):
            process = await asyncio.create_subprocess_exec(
                *held.argv,
                stdin=standard_input,
                stdout=console,
                stderr=held.descriptor,
                cwd=home,
                env=self._environment(instance_id, os.environ),
                start_new_session=True,
            )
            held.go(process.pid, signal.SIGKILL)
        return Machine(process, home, powers_off=boot.agent_is_service)

    def _environment(self, instance_id: str, own: Mapping[str, str]) -> dict[str, str]:
        environment = {name: own[name] for name in HANDED_ON if name in own}
        paths = [str(self._commands), str(Path(sys.executable).parent), environment.get("PATH", os.defpath)]
        return environment | {
            "PATH": os.pathsep.join(paths),
            "HOME": str(self.home(instance_id)),
            ENDPOINT: f"{self.url}/imds/{instance_id}",
            STATE: str(self.home(instance_id) / "state"),
        }


def _prepare(home: Path, boot: Boot) -> None:
    home.mkdir(parents=True, exist_ok=True)
    for path, content, permissions in boot.files:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)
        Path(path).chmod(permissions)


class Machine:
    """The process of one machine. `powers_off`: its end is the end of the machine."""

    def __init__(self, process: asyncio.subprocess.Process, home: Path, *, powers_off: bool) -> None:
        self.pid = process.pid
        self._process = process
        self._home = home
        self._powers_off = powers_off

    @property
    def is_off(self) -> bool:
        """True if the machine has powered itself off; asked after its process has ended."""
        return self._powers_off or (self._home / OFF).exists()

    async def ended(self) -> int:
        """Wait for the end of the process, and end what it left behind if the machine is off; returns its exit code."""
        code = await self._process.wait()
        if self.is_off:
            signal_group(self.pid, signal.SIGKILL)
        guard().forget(self.pid)
        return code

    async def shut_down(self, grace_seconds: float) -> None:
        """End all its processes: SIGTERM, and SIGKILL after the grace."""
        if self._process.returncode is None:
            signal_group(self.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    await self._process.wait()
        self.kill()
        await self._process.wait()

    def kill(self) -> None:
        signal_group(self.pid, signal.SIGKILL)
