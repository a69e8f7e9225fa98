"""Check 9: apply, destroy, refresh, plan and import succeed and fail; no message holds a secret."""

import json

import pytest

from slipway_local.terraform.ledger import Fault
from slipway_terraform.domain.errors import SpecInvalid
from slipway_terraform.domain.results import Changes, Command, Plugins, Run, Scope
from slipway_terraform.runs.driver import Driver, Imported
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.terraform_runs import SECRET, Place, driver, soon


async def apply(place: Place, runs: Driver, state: bytes | None = None) -> Run:
    return await runs.run(Command.APPLY, "w-1", place.job(), state=state, deadline=soon())


async def test_apply_and_destroy(place: Place, shared: SharedScheduler) -> None:
    async with driver(place, shared) as runs:
        applied = await apply(place, runs)
        (machine,) = place.ledger.machines()
        assert (applied.failure, applied.changes) == (None, Changes(1, 0, 0))
        assert applied.outputs == {"id": machine["id"], "region": "east"}
        assert machine["region"] == "east"
        assert applied.state is not None
        again = await apply(place, runs, applied.state)
        assert (again.failure, again.changes) == (None, Changes(0, 0, 0))
        for changes in (Changes(0, 0, 1), Changes(0, 0, 0)):  # the second finds nothing left, and succeeds
            destroyed = await runs.run(Command.DESTROY, "w-1", place.job(), state=again.state, deadline=soon())
            assert (destroyed.failure, destroyed.changes, destroyed.outputs) == (None, changes, {})
            again = destroyed
    assert place.ledger.machines() == []
    states = [json.loads(run.state or b"") for run in (applied, again)]
    assert states[0]["lineage"] == states[1]["lineage"]
    assert states[0]["serial"] < states[1]["serial"]


async def test_refresh_finds_what_was_removed(place: Place, shared: SharedScheduler) -> None:
    async with driver(place, shared) as runs:
        applied = await apply(place, runs)
        place.ledger.remove(place.ledger.machines()[0]["id"])
        refreshed = await runs.run(Command.REFRESH, "w-1", place.job(), state=applied.state, deadline=soon())
        assert refreshed.failure is None
        assert json.loads(refreshed.state or b"")["resources"] == []
    assert place.ledger.machines() == []


async def test_an_existing_machine_is_imported(place: Place, shared: SharedScheduler) -> None:
    async with driver(place, shared) as runs:
        await apply(place, runs)
        (machine,) = place.ledger.machines()
        imported = Imported("ledger_machine.one", machine["id"])
        run = await runs.run(Command.IMPORT, "w-2", place.job(), state=None, deadline=soon(), imported=imported)
        assert run.failure is None
        destroyed = await runs.run(Command.DESTROY, "w-2", place.job(), state=run.state, deadline=soon())
        assert destroyed.changes == Changes(0, 0, 1)
        assert place.ledger.machines() == []
        missing = await runs.run(Command.IMPORT, "w-2", place.job(), state=None, deadline=soon(), imported=imported)
        assert missing.failure is not None
        assert missing.failure.scope is Scope.UNCLASSIFIED
        assert "no such machine" in missing.failure.message
        for command, given in ((Command.APPLY, imported), (Command.IMPORT, None)):
            with pytest.raises(SpecInvalid, match="import"):
                runs.start(command, "w-3", place.job(), state=None, deadline=soon(), imported=given)


@pytest.mark.parametrize(
    ("command", "at"), [(Command.APPLY, "create"), (Command.DESTROY, "destroy"), (Command.REFRESH, "read")]
)
async def test_a_failed_run_has_its_code_and_state_and_no_secret(
    place: Place, shared: SharedScheduler, command: Command, at: str
) -> None:
    fault = Fault(kind="error", at=at, text="NoRoom: bad token {secret}", detail="for {secret} at http://me:{secret}@h")  # type: ignore[arg-type]
    async with driver(place, shared, codes={"NoRoom": Scope.CAPACITY}) as runs:
        before = None if command is Command.APPLY else (await apply(place, runs)).state
        place.ledger.inject(fault)
        run = await runs.run(command, "w-1", place.job(), state=before, deadline=soon())
        assert run.failure is not None
        assert (run.failure.scope, run.failure.code) == (Scope.CAPACITY, "NoRoom")
        assert SECRET not in repr((run.failure, run, runs.operations["w-1"]))
        assert "…" in run.failure.message
        assert run.state is not None
        place.ledger.inject()
        if before is not None:
            await runs.run(Command.DESTROY, "w-1", place.job(), state=run.state, deadline=soon())
    assert place.ledger.machines() == []


async def test_a_run_without_leases_says_so(place: Place) -> None:
    async with driver(place) as runs:
        run = await apply(place, runs)
    assert (run.plugins, run.unshared) == (Plugins.OWN, "the scheduler shares nothing")
