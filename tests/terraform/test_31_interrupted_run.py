"""Check 31, for the CLI: an interrupted run gets SIGINT, then SIGKILL, and its process serves no other run."""

import asyncio
import contextlib
import json
import os
import signal

import psutil
import pytest

from slipway_common.base.process.guard import Guard
from slipway_local.terraform.ledger import Fault
from slipway_terraform.domain.results import Changes, Command, Scope
from slipway_terraform.runs.process import Ended, Interruption, run_process
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.harness import until
from tests.support.terraform_runs import Place, driver, soon

TWO = """
terraform {
  required_providers {
    ledger = { source = "registry.terraform.io/slipway/ledger" }
  }
}
resource "ledger_machine" "one" { name = "one" }
resource "ledger_machine" "two" { name = ledger_machine.one.id }
"""


async def test_an_interrupted_run_taints_its_process(place: Place, shared: SharedScheduler) -> None:
    place.ledger.inject(Fault(kind="hang", at="create", call=1, seconds=1.0))
    async with driver(place, shared) as runs:
        first = runs.start(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
        await until(lambda: place.ledger.calls("configure"))
        await until(lambda: first.is_in_cli)
        first.interrupt("not needed")
        await first.settled()
        (tainted,) = {call.pid for call in place.ledger.calls("configure")}
        again = await runs.run(Command.APPLY, "w-2", place.job(), state=None, deadline=soon())
        assert again.failure is None
        assert tainted not in {call.pid for call in place.ledger.calls("create") if call.tags == {"worker": "w-2"}}
        await until(lambda: not psutil.pid_exists(tainted))


async def test_sigint_lets_the_cli_save_its_state(place: Place, shared: SharedScheduler) -> None:
    """The first resource is finished and in the state, the second is not begun."""
    place.ledger.inject(Fault(kind="hang", at="create", call=1, seconds=1.0, done=True))
    async with driver(place, shared) as runs:
        job = place.job(place.module(TWO), variables={})
        operation = runs.start(Command.APPLY, "w-1", job, state=None, deadline=soon())
        await until(lambda: place.ledger.calls("create"))
        operation.interrupt("not needed")
        run = await operation.wait()
        place.ledger.inject()
        assert run.failure is not None
        assert run.failure.message == "not needed"
        state = json.loads(run.state or b'{"resources": []}')
        known = [each["attributes"]["id"] for part in state["resources"] for each in part["instances"]]
        assert known == [machine["id"] for machine in place.ledger.machines()]
        again = await runs.run(Command.DESTROY, "w-1", job, state=run.state, deadline=soon())
        assert again.changes == Changes(0, 0, 1)


@pytest.mark.parametrize("by", ["deadline", "request"])
async def test_a_hanging_run_is_killed_and_its_outcome_is_unknown(
    place: Place, shared: SharedScheduler, by: str
) -> None:
    place.ledger.inject(Fault(kind="hang", at="create", seconds=3600.0, done=True))
    async with driver(place, shared, grace_seconds=0.5) as runs:
        await shared.acquire((place.spec(),), owner="warm", deadline=soon())  # so that the deadline is that of the run
        operation = runs.start(
            Command.APPLY, "w-1", place.job(), state=None, deadline=soon(2.0 if by == "deadline" else 60.0)
        )
        await until(lambda: place.ledger.calls("create"))
        if by == "request":
            operation.interrupt("the operator cancelled")
        run = await operation.wait()
        assert run.failure is not None
        assert run.failure.scope is Scope.OUTCOME_UNKNOWN
        assert run.failure.message == {"deadline": "the deadline passed", "request": "the operator cancelled"}[by]
        assert not run.failure.retryable
        assert len(place.ledger.machines()) == 1
    assert place.secrets_on_disk() == []


async def test_a_run_that_the_kernel_does_not_end(
    place: Place, shared: SharedScheduler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one in uninterruptible sleep: its outcome is unknown, and neither it nor its slot is waited for."""
    tool, kill_group = place.folder / "stuck", os.killpg
    stuck = f"trap '' INT; echo $$ >{place.folder}/pid; while :; do sleep 0.1; done"
    tool.write_text(f'#!/bin/sh\ncase "$1" in apply) {stuck} ;; esac\nexec {place.settings().tool} "$@"\n')
    tool.chmod(0o755)
    monkeypatch.setattr("slipway_common.base.process.programs.KILL_SECONDS", 0.2)

    def killpg(group: int, signum: int) -> None:
        if signum != signal.SIGKILL:
            kill_group(group, signum)

    async with driver(place, shared, tool=tool, grace_seconds=0.2, max_runs=1) as runs:
        job = place.job()
        await runs.run(Command.PLAN, "w-0", job, state=None, deadline=soon())
        operation = runs.start(Command.APPLY, "w-1", job, state=None, deadline=soon())
        await until(lambda: (place.folder / "pid").is_file() and (place.folder / "pid").read_text())
        pid = int((place.folder / "pid").read_text())
        monkeypatch.setattr("os.killpg", killpg)
        try:
            operation.interrupt("not needed")
            await until(lambda: not operation.is_running)
            run = await operation.wait()
            assert run.failure is not None
            assert run.failure.message == "not needed"
            assert f"process {pid} of {tool} did not end after SIGKILL; check its state" in caplog.text
            assert (await runs.run(Command.PLAN, "w-2", job, state=None, deadline=soon())).failure is None
            assert psutil.pid_exists(pid)
        finally:
            kill_group(pid, signal.SIGKILL)


async def test_a_program_whose_start_the_kernel_does_not_end(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a binary on a file server that is gone: only its own run is given up."""
    stuck, noted, kill_group = place.folder / "stuck.py", place.folder / "pid", os.killpg
    stuck.write_text(f"import os, time\nopen({str(noted)!r}, 'w').write(str(os.getpid()))\ntime.sleep(15)\n")
    monkeypatch.setattr("slipway_common.base.process.launch.__file__", str(stuck))
    monkeypatch.setattr("slipway_common.base.process.programs.KILL_SECONDS", 0.2)
    monkeypatch.setattr("os.killpg", lambda group, signum: None)
    interruption, guard = Interruption(), Guard()
    run = asyncio.ensure_future(
        run_process(
            ["/bin/true"],
            folder=place.folder,
            environment={},
            feed=lambda line: None,
            interruption=interruption,
            grace_seconds=0.2,
            guard=guard,
        )
    )
    await until(lambda: noted.is_file() and noted.read_text())
    interruption.request("not needed")
    ended, pid = await run, int(noted.read_text())
    try:
        assert ended == Ended(-signal.SIGKILL, "not needed")
        assert [each.status() for each in psutil.process_iter() if each.pid == pid] == [psutil.STATUS_SLEEPING]
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended, which failed the assertion
            kill_group(pid, signal.SIGKILL)
        await asyncio.to_thread(guard.close)


async def test_a_daemon_that_a_module_starts(
    place: Place, shared: SharedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has left the process group and holds the output open; the run ends without it."""
    tool, noted = place.folder / "daemon", place.folder / "pid"
    start = f"setsid sh -c 'echo $$ >{noted}; exec sleep 15' & until [ -s {noted} ]; do sleep 0.05; done"
    tool.write_text(f'#!/bin/sh\ncase "$1" in apply) {start} ;; esac\nexec {place.settings().tool} "$@"\n')
    tool.chmod(0o755)
    monkeypatch.setattr("slipway_common.base.process.programs.DRAIN_SECONDS", 0.2)
    async with driver(place, shared, tool=tool) as runs:
        run = await runs.run(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
        assert run.failure is None
        assert run.outputs["id"] == place.ledger.machines()[0]["id"]
    daemon = int(noted.read_text())
    assert [each.status() for each in psutil.process_iter() if each.pid == daemon] == [psutil.STATUS_SLEEPING]
    os.kill(daemon, signal.SIGKILL)
