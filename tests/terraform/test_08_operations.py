"""Check 8: an operation runs, ends, and stays until it is forgotten, with its failure if the caller wants that."""

import asyncio

import pytest

from slipway_local.terraform.ledger import Fault
from slipway_terraform.domain.errors import (
    ModuleMissing,
    OperationInProgress,
    RunInterrupted,
    SchedulerClosed,
    SpecInvalid,
)
from slipway_terraform.domain.results import Command
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.harness import until
from tests.support.terraform_runs import Place, driver, soon


async def test_an_operation_runs_ends_and_is_forgotten(place: Place, shared: SharedScheduler) -> None:
    place.ledger.inject(Fault(kind="hang", at="create", seconds=0.5))
    async with driver(place, shared) as runs:
        operation = runs.start(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
        assert operation.is_running
        assert operation.result is None
        assert not operation.has_failed
        runs.forget("w-1")
        assert runs.operations == {"w-1": operation}
        run = await operation.wait()
        assert operation.result == run
        assert not operation.is_running
        assert not operation.has_failed
        runs.forget("w-1", keep_failure=True)
        assert runs.operations == {}


async def test_a_failure_stays_if_the_caller_wants_that(place: Place, shared: SharedScheduler) -> None:
    place.ledger.inject(Fault(kind="error", at="create", text="no"))
    async with driver(place, shared) as runs:
        run = await runs.run(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
        assert run.failure is not None
        runs.forget("w-1", keep_failure=True)
        assert runs.operations["w-1"].has_failed
        assert runs.operations["w-1"].result == run
        runs.forget("w-1")
        assert runs.operations == {}


async def test_a_workspace_has_one_operation_at_a_time(place: Place, shared: SharedScheduler) -> None:
    """The workspace is reserved at once, before the operation begins; others go on."""
    place.ledger.inject(Fault(kind="hang", at="create", call=1, seconds=1.0))
    async with driver(place, shared) as runs:
        first = runs.start(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
        for command in (Command.APPLY, Command.REFRESH, Command.DESTROY, Command.PLAN):
            with pytest.raises(OperationInProgress, match="apply of workspace w-1 is running already"):
                runs.start(command, "w-1", place.job(), state=None, deadline=soon())
        other = await runs.run(Command.APPLY, "w-2", place.job(), state=None, deadline=soon())
        run = await first.wait()
        assert (run.failure, other.failure) == (None, None)
        again = await runs.run(Command.DESTROY, "w-1", place.job(), state=run.state, deadline=soon())
        assert again.failure is None
        assert runs.operations["w-1"].command is Command.DESTROY
    assert len(place.ledger.machines()) == 1


async def test_a_cancelled_caller_interrupts_its_run_and_the_state_stays(place: Place, shared: SharedScheduler) -> None:
    place.ledger.inject(Fault(kind="hang", at="create", seconds=3600.0))
    async with driver(place, shared, grace_seconds=0.5) as runs:
        caller = asyncio.create_task(runs.run(Command.APPLY, "w-1", place.job(), state=None, deadline=soon()))
        await until(lambda: place.ledger.calls("configure") != [])
        await until(lambda: runs.operations["w-1"].is_in_cli)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert not runs.operations["w-1"].is_running
        assert runs.operations["w-1"].has_failed


async def test_one_that_waits_is_interrupted_at_once(place: Place, shared: SharedScheduler) -> None:
    place.ledger.inject(Fault(kind="hang", at="create", call=1, seconds=2.0))
    async with driver(place, shared, max_runs=1) as runs:
        first = runs.start(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
        await until(lambda: first.is_in_cli)
        waiting = runs.start(Command.APPLY, "w-2", place.job(), state=None, deadline=soon())
        await asyncio.sleep(0)
        waiting.interrupt("not needed")
        with pytest.raises(RunInterrupted, match="apply of w-2 was interrupted before it began"):
            await waiting.wait()
        assert waiting.has_failed
        assert first.is_running
        assert (await first.wait()).failure is None
    assert len(place.ledger.machines()) == 1


async def test_no_more_processes_run_than_allowed(place: Place, shared: SharedScheduler) -> None:
    """The second run, which has a plugin of its own, begins when the first has ended."""
    place.ledger.inject(Fault(kind="hang", at="create", region="east", seconds=1.0))
    async with driver(place, shared, max_runs=1) as runs:
        first = runs.start(Command.APPLY, "w-1", place.job(region="east"), state=None, deadline=soon())
        await until(lambda: first.is_in_cli)
        second = runs.start(Command.APPLY, "w-2", place.job(region="west"), state=None, deadline=soon())
        assert [(await operation.wait()).failure for operation in (first, second)] == [None, None]
    calls = [(call.call, call.region) for call in place.ledger.calls()]
    assert calls.index(("create", "east")) < calls.index(("configure", "west"))


async def test_an_error_before_the_run_is_raised_and_kept(place: Place, shared: SharedScheduler) -> None:
    job = place.job()
    (place.module() / "main.tf").unlink()
    async with driver(place, shared) as runs:
        with pytest.raises(ModuleMissing):
            await runs.run(Command.APPLY, "w-1", job, state=None, deadline=soon())
        assert runs.operations["w-1"].has_failed
        assert runs.operations["w-1"].result is None


async def test_a_closed_driver_ends_its_runs_and_starts_none(place: Place, shared: SharedScheduler) -> None:
    place.ledger.inject(Fault(kind="hang", at="create", seconds=3600.0))
    async with driver(place, shared, grace_seconds=0.5) as runs:
        operation = runs.start(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
        await until(lambda: operation.is_in_cli)
    assert operation.result is not None
    assert operation.result.failure is not None
    with pytest.raises(SchedulerClosed):
        runs.start(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "x" * 101, "a\n"])
async def test_names_that_are_no_folder_are_refused(place: Place, shared: SharedScheduler, name: str) -> None:
    async with driver(place, shared) as runs:
        with pytest.raises(SpecInvalid, match="workspace"):
            runs.start(Command.APPLY, name, place.job(), state=None, deadline=soon())
