"""A group of processes, and its end: on real ones."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway_client.worker.process import Group
from slipway_common import processes
from tests.harness import until
from tests.linux import needs_linux

pytestmark = needs_linux


def spied(kills: list[bool]) -> Callable[[int, int], None]:
    """A killpg that notes whether the leader's number is still its own: its exit status waits to be collected."""
    kill = os.killpg

    def noting(pid: int, signum: int) -> None:
        try:
            kills.append(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None)
        except ChildProcessError:  # it was collected
            kills.append(False)
        kill(pid, signum)

    return noting


async def test_nobody_elses_group_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the leader has left is ended while the leader's number cannot be given to anybody else; nothing after."""
    kills: list[bool] = []
    monkeypatch.setattr(os, "killpg", spied(kills))
    group = Group.start(["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/left; exit 3"], {})
    assert await group.wait() == 3
    assert kills == [True]
    left = int((tmp_path / "left").read_text())
    await until(lambda: processes.identity(left) is None, "what it left has ended")
    group.send(signal.SIGTERM)
    assert kills == [True]
