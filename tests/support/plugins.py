"""Specifications and schedulers over real plugin processes, and the traces that those may leave."""

import asyncio
import contextlib
import hashlib
import os
import sys
from collections.abc import AsyncIterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from slipway_terraform.domain.policy import Policy
from slipway_terraform.domain.specs import Mode, ProviderSpec
from slipway_terraform.plugins.runner import PluginRunner
from slipway_terraform.scheduler.shared import SharedScheduler

PROGRAM = Path(__file__).with_name("terraform_plugin.py")


@cache
def digest_of(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def plugin(*faults: str, source: str = "registry.example/tests/plugin", **fields: Any) -> ProviderSpec:
    """Specification of a test plugin with faults of `terraform_plugin`."""
    binary = os.path.realpath(sys.executable)
    # The interpreter of a virtual environment finds its packages by its own path only.
    environment: Mapping[str, str] = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    given = {
        "version": "1.0.0",
        "binary": binary,
        "digest": digest_of(binary),
        "arguments": (str(PROGRAM), *faults),
        "mode": Mode.COOKIE,
        "configuration": {},
        "environment": environment,
    }
    return ProviderSpec(source=source, **given | fields)


def soon(seconds: float = 20.0) -> float:
    """A deadline."""
    return asyncio.get_running_loop().time() + seconds


@contextlib.asynccontextmanager
async def shared(
    folder: Path,
    policy: Policy | None = None,
    *,
    kind: type[SharedScheduler] = SharedScheduler,
    start_seconds: float = 20,
    is_alone: bool = True,
) -> AsyncIterator[SharedScheduler]:
    """A scheduler over real processes, whose sockets are in `folder`; nothing of it is left afterwards."""
    scheduler = kind(PluginRunner(folder, start_seconds=start_seconds), policy or Policy())
    try:
        yield scheduler
    finally:
        await scheduler.aclose(0)
        if is_alone:
            assert_nothing_left(folder)


def assert_nothing_left(folder: Path) -> None:
    """No process, zombie, socket or file of a plugin with sockets in `folder`."""
    assert plugins_in(folder) == []
    assert list(folder.iterdir()) == []
    zombies = [each.pid for each in psutil.Process().children() if each.status() == psutil.STATUS_ZOMBIE]
    assert zombies == []


def plugins_in(folder: Path) -> list[int]:
    """Processes whose sockets are in a folder, by their environment; the truth about what runs."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("TMPDIR", "").startswith(f"{folder}/"):
                found.append(process.pid)
    return sorted(found)


def runs(pid: int) -> bool:
    """True if a process exists and is no zombie, which nobody may collect after its parent's end."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until(condition: Any, seconds: float = 20.0) -> None:
    """Wait until a condition of the world holds; fails the test if it does not in time."""
    for _ in range(int(seconds / 0.02)):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the condition did not become true in time")
