"""Check 26: a killed process is replaced; a run on it has an unknown outcome, and a lease on it runs nothing."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from slipway_common.base.process.programs import is_exiting
from slipway_terraform.domain.errors import OutcomeUnknown, ProviderCrashed
from slipway_terraform.scheduler.lease import SharedLease
from tests.support.plugins import plugin, plugins_in, runs, shared, soon, until


@pytest.mark.parametrize("noticed", [True, False])
async def test_idle(sockets: Path, noticed: bool) -> None:
    """Transparent: the next lease is on another process, even before the scheduler has noticed the exit."""
    async with shared(sockets) as scheduler:
        async with await scheduler.acquire([plugin("child")], owner="one", deadline=soon()) as lease:
            pids = plugins_in(sockets)
            before = lease.env
        assert len(pids) == 2  # with its descendant
        leader = next(pid for pid in pids if os.getsid(pid) == pid)
        os.kill(leader, signal.SIGKILL)
        while runs(leader):
            pass  # without a turn of the event loop
        if noticed:
            await until(lambda: plugins_in(sockets) == [])
            (folder,) = sockets.iterdir()
            await until(lambda: list(folder.iterdir()) == [])
        async with await scheduler.acquire([plugin("child")], owner="one", deadline=soon()) as lease:
            assert lease.env != before
            async with lease.invocation():
                assert len(plugins_in(sockets)) == 2


async def test_busy(sockets: Path) -> None:
    async def crash(lease: SharedLease) -> None:
        async with lease.invocation():
            os.kill(plugins_in(sockets)[0], signal.SIGKILL)
            await until(lambda: plugins_in(sockets) == [])
            raise RuntimeError("Plugin did not respond")

    async with shared(sockets) as scheduler, await scheduler.acquire([plugin()], owner="1", deadline=soon()) as lease:
        (unknown,) = await asyncio.gather(crash(lease), return_exceptions=True)
        assert isinstance(unknown, OutcomeUnknown)
        assert "look up what it has created" in str(unknown)
        assert isinstance(unknown.__cause__, RuntimeError)
        with pytest.raises(ProviderCrashed, match="nothing was run: acquire another lease") as before:
            await crash(lease)
        assert before.value.retryable
        async with await scheduler.acquire([plugin()], owner="two", deadline=soon()) as other, other.invocation():
            assert len(plugins_in(sockets)) == 1


@pytest.mark.parametrize(
    ("state", "flags", "exiting"),
    [("S", 0x400000, False), ("R", 0x40040C, True), ("D", 0x400004, True), ("Z", 0x400000, True)],
)
def test_exiting(state: str, flags: int, exiting: bool) -> None:
    """A killed process that still releases its memory is exiting, although it is no zombie yet; proc_pid_stat(5)."""
    assert is_exiting(f"4711 (of Z) R (x) {state} 1 4711 4711 0 -1 {flags} 99 0 3 0".encode()) is exiting


async def test_a_run_that_succeeded_has_its_outcome(sockets: Path) -> None:
    """The process died after the run's work: nothing is unknown."""
    async with (
        shared(sockets) as scheduler,
        await scheduler.acquire([plugin()], owner="one", deadline=soon()) as lease,
    ):
        async with lease.invocation():
            os.kill(plugins_in(sockets)[0], signal.SIGKILL)
            await until(lambda: plugins_in(sockets) == [])
        with pytest.raises(ValueError, match="other"):
            raise ValueError("other")
