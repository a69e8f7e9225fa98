"""Process groups and their termination, on real processes."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from slipway_common.base.process import identities
from slipway_common.base.process.groups import Group
from tests.support.harness import until
from tests.support.linux import needs_linux

pytestmark = needs_linux


def spied(kills: list[bool]) -> Callable[[int, int], None]:
    """A killpg that notes if the leader's pid is still reserved, because its exit status was not collected."""
    kill = os.killpg

    def noting(pid: int, signum: int) -> None:
        try:
            kills.append(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None)
        except ChildProcessError:  # it was collected
            kills.append(False)
        kill(pid, signum)

    return noting


async def test_no_foreign_group_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the group is killed while the leader's pid cannot be reused; nothing is signalled after that."""
    kills: list[bool] = []
    monkeypatch.setattr(os, "killpg", spied(kills))
    group = Group.start(["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/left; exit 3"], os.environ)
    assert await group.end() == 3
    assert kills == [True]
    left = int((tmp_path / "left").read_text())
    await until(lambda: identities.identity(left) is None, "what it left has ended")
    group.send(signal.SIGTERM)
    assert kills == [True]


async def test_a_signal_for_the_leader_alone(tmp_path: Path) -> None:
    """The children of a command go on, unlike with one for its group."""
    child = f"while [ ! -e {tmp_path}/go ]; do sleep 0.02; done; touch {tmp_path}/went-on"
    leader = f"trap 'touch {tmp_path}/go; wait; exit 5' TERM; ({child}) & echo > {tmp_path}/ready; wait"
    group = Group.start(["sh", "-c", leader], os.environ)
    await until(lambda: (tmp_path / "ready").exists(), "it has its trap")
    group.send(signal.SIGTERM, leader_alone=True)
    assert await group.end() == 5
    assert (tmp_path / "went-on").exists()


async def test_an_end_is_noticed_without_pidfds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS. The rest of the group is killed there, too."""
    monkeypatch.delattr(os, "pidfd_open")
    group = Group.start(["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/left; kill -TERM $$"], os.environ)
    assert await group.end() == 128 + signal.SIGTERM
    left = int((tmp_path / "left").read_text())
    monkeypatch.undo()
    await until(lambda: identities.identity(left) is None, "what it left has ended")


async def test_a_command_ignores_no_signals(capfd: pytest.CaptureFixture[str]) -> None:
    """Signals that this process ignores, as in the background of a script, get their default action in the command."""
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    try:
        group = Group.start(["sh", "-c", "kill -QUIT $$; echo still here"], os.environ)
        assert await group.end() == 128 + signal.SIGQUIT
    finally:
        signal.signal(signal.SIGQUIT, before)
    assert "still here" not in capfd.readouterr().out
