"""Check 26, of runs: a plugin that crashes before its run is replaced, and nothing is run twice."""

import json
import os
import shlex
import shutil
import signal
from collections.abc import Sequence

import pytest

from slipway_terraform.domain.errors import OutcomeUnknown, ProviderCrashed
from slipway_terraform.domain.results import Command
from slipway_terraform.domain.specs import ProviderSpec
from slipway_terraform.scheduler.lease import SharedLease
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.harness import until
from tests.support.plugins import runs as is_running
from tests.support.terraform_runs import Place, driver, soon


def pid_of(lease: SharedLease) -> int:
    (entry,) = json.loads(lease.env["TF_REATTACH_PROVIDERS"]).values()
    return int(entry["Pid"])


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    while is_running(pid):
        pass


class Counted:
    """A scheduler that lists its leases, and kills the plugins of the first `crashes` as soon as they are leased."""

    def __init__(self, scheduler: SharedScheduler, crashes: int = 0) -> None:
        self._scheduler, self._crashes = scheduler, crashes
        self.leases: list[SharedLease] = []

    async def acquire(self, specs: Sequence[ProviderSpec], *, owner: str, deadline: float) -> SharedLease:
        lease = await self._scheduler.acquire(specs, owner=owner, deadline=deadline)
        self.leases.append(lease)
        if len(self.leases) <= self._crashes:
            kill(pid_of(lease))
        return lease

    async def aclose(self, drain_seconds: float) -> None:
        await self._scheduler.aclose(drain_seconds)


async def test_two_crashes_before_a_run_are_not_seen(place: Place, shared: SharedScheduler) -> None:
    scheduler = Counted(shared, 2)
    async with driver(place, scheduler) as runs:
        run = await runs.run(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
    assert (run.failure, len(scheduler.leases), len(place.ledger.machines())) == (None, 3, 1)


async def test_the_third_says_what_to_do(place: Place, shared: SharedScheduler) -> None:
    scheduler = Counted(shared, 99)
    async with driver(place, scheduler) as runs:
        with pytest.raises(ProviderCrashed, match=r"w-1: 3 plugins in a row exited .*; nothing was run.*; fix or"):
            await runs.run(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
    assert (len(scheduler.leases), place.ledger.calls()) == (3, [])


async def test_a_run_that_could_not_begin_is_not_repeated(place: Place, shared: SharedScheduler) -> None:
    """Its own error is raised, although its plugin has crashed as well."""
    scheduler = Counted(shared)
    async with driver(place, scheduler, max_runs=1) as runs:
        await runs.run(Command.PLAN, "w-0", place.job(), state=None, deadline=soon())
        async with runs._slots:
            operation = runs.start(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
            await until(lambda: len(scheduler.leases) == 2 and not scheduler.leases[1].unused)
            kill(pid_of(scheduler.leases[1]))
            workspaces = runs.settings.folder / "files" / "workspaces"
            shutil.rmtree(workspaces)
            workspaces.touch()
        with pytest.raises(NotADirectoryError):
            await operation.wait()
        assert len(scheduler.leases) == 2
        workspaces.unlink()
    assert place.ledger.machines() == []


async def test_a_run_that_has_begun_is_not_repeated(place: Place, shared: SharedScheduler) -> None:
    """Its plugin has crashed, and the driver cannot make sense of what the CLI has left: it may have created."""
    tool, count = place.folder / "broken", place.folder / "count"
    real = shlex.quote(str(place.settings().tool))
    pid = "pid=$(echo $TF_REATTACH_PROVIDERS | sed 's/.*\"Pid\":\\([0-9]*\\).*/\\1/')"
    crash = f"{pid}; kill -9 $pid; while kill -0 $pid; do sleep 0.02; done"
    broken = f"echo run >>{count}; {crash}; echo '{{\"outputs\": []}}' >terraform.tfstate; exit 1"
    tool.write_text(f'#!/bin/sh\ncase "$1" in apply) {broken} ;; esac\nexec {real} "$@"\n')
    tool.chmod(0o755)
    async with driver(place, shared, tool=tool) as runs:
        with pytest.raises(OutcomeUnknown, match="look up what it has created"):
            await runs.run(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
    assert count.read_text().split() == ["run"]
