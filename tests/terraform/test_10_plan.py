"""Check 10: a plan says if resources are missing or differ, or that it does not know."""

from slipway_terraform.domain.output import Output
from slipway_terraform.domain.results import Changes, Command, Scope
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.terraform_runs import MACHINE, Place, driver, soon


async def test_add_update_and_nothing(place: Place, shared: SharedScheduler) -> None:
    async with driver(place, shared) as runs:
        planned = await runs.run(Command.PLAN, "w-1", place.job(), state=None, deadline=soon())
        assert planned.changes == Changes(1, 0, 0)
        assert not planned.changes.exists
        assert place.ledger.machines() == []
        applied = await runs.run(Command.APPLY, "w-1", place.job(), state=None, deadline=soon())
        cases = (("w-1", Changes(0, 0, 0), True), ("other", Changes(0, 1, 0), False))
        for name, changes, is_up_to_date in cases:
            job = place.job(variables={"name": name})
            planned = await runs.run(Command.PLAN, "w-1", job, state=applied.state, deadline=soon())
            assert planned.changes == changes
            assert planned.changes.exists
            assert planned.changes.is_up_to_date == is_up_to_date
    assert place.ledger.machines()[0]["name"] == "w-1"


async def test_a_plan_that_fails_knows_nothing(place: Place, shared: SharedScheduler) -> None:
    broken = place.module(MACHINE + '\noutput "x" { value = ledger_machine.none.id }\n', name="broken")
    async with driver(place, shared) as runs:
        planned = await runs.run(Command.PLAN, "w-1", place.job(broken), state=None, deadline=soon())
        assert planned.changes is None
        assert planned.failure is not None
        assert planned.failure.scope is Scope.CONFIG
        assert "ledger_machine" in planned.failure.message


def test_output_without_a_summary_knows_nothing() -> None:
    output = Output()
    output.feed(b'{"type":"version","terraform":"1.0.3"}')
    assert output.changes is None
