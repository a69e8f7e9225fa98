"""Check 30: a module with a second configuration of a provider is refused, or gets plugins of its own.

With the refusal off (`MUTANT=aliases-shared`) resources of one alias land in the region of the other.
"""

from collections import Counter

import pytest

from slipway_terraform.domain.errors import SharingUnsafe
from slipway_terraform.domain.module import Needs
from slipway_terraform.domain.results import SHARED_UNSAFELY, Command, Plugins
from slipway_terraform.runs import preparing
from slipway_terraform.runs.driver import WhenUnsafe
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.terraform_runs import Place, driver, soon

PER_ALIAS = 20
REQUIRED = """
terraform {
  required_providers {
    ledger = {
      source = "registry.terraform.io/slipway/ledger"
      ALIASES
    }
  }
}
"""
MACHINES = """
resource "ledger_machine" "REGION" {
  count    = 20
  provider = ledger.REGION
  name     = "REGION-${count.index}"
}
"""
PROVIDER = """
provider "ledger" {
  alias  = "REGION"
  folder = "FOLDER"
  region = "REGION"
}
"""
REGIONS = ("west", "north")


def aliased(place: Place) -> str:
    """Module with two configurations of its own, and twenty machines of each."""
    parts = (part.replace("REGION", region) for part in (PROVIDER, MACHINES) for region in REGIONS)
    return REQUIRED.replace("ALIASES", "") + "".join(parts).replace("FOLDER", str(place.ledger.folder))


def wrong_regions(place: Place) -> list[str]:
    machines = place.ledger.machines()
    return [each["name"] for each in machines if each["region"] != each["name"].rpartition("-")[0]]


async def test_a_module_with_aliases_is_refused(place: Place, shared: SharedScheduler) -> None:
    module = place.module(aliased(place))
    async with driver(place, shared) as runs:
        with pytest.raises(SharingUnsafe, match=r"main\.tf:11: provider ledger is configured"):
            await runs.run(Command.APPLY, "w-1", place.job(module, variables={}), state=None, deadline=soon())
    assert wrong_regions(place) == []
    assert place.ledger.calls() == []


async def test_the_refusal_is_needed_and_its_failure_is_noticed(
    place: Place, shared: SharedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it resources land in the region of the other alias, and the state tells afterwards."""
    monkeypatch.setattr(preparing, "needs", lambda files: Needs({}, ()))
    job = place.job(place.module(aliased(place)), variables={})
    async with driver(place, shared) as runs:
        run = await runs.run(Command.APPLY, "w-1", job, state=None, deadline=soon())
        assert wrong_regions(place) != []
        assert run.failure is not None
        assert run.failure.code == SHARED_UNSAFELY
        again = await runs.run(Command.APPLY, "w-2", place.job(), state=None, deadline=soon())
        assert again.failure is None
        pids = {call.pid for call in place.ledger.calls("configure") if call.region in REGIONS}
        assert not pids & {call.pid for call in place.ledger.calls("create") if call.name == "w-1"}


async def test_a_module_that_asks_for_aliases_is_refused(place: Place, shared: SharedScheduler) -> None:
    text = REQUIRED.replace("ALIASES", "configuration_aliases = [ledger.west]") + MACHINES.replace("REGION", "west")
    job = place.job(place.module(text), variables={})
    async with driver(place, shared) as runs:
        with pytest.raises(SharingUnsafe, match="a second configuration of ledger is asked for"):
            await runs.run(Command.APPLY, "w-1", job, state=None, deadline=soon())
    assert place.ledger.calls() == []


async def test_a_module_with_aliases_gets_plugins_of_its_own(place: Place, shared: SharedScheduler) -> None:
    job = place.job(place.module(aliased(place)), variables={}, when_unsafe=WhenUnsafe.OWN_PLUGINS)
    async with driver(place, shared) as runs:
        run = await runs.run(Command.APPLY, "w-1", job, state=None, deadline=soon())
        assert run.failure is None
        assert run.plugins is Plugins.OWN
        assert "provider ledger is configured" in run.unshared
        assert wrong_regions(place) == []
        machines = Counter(machine["region"] for machine in place.ledger.machines())
        assert machines == Counter(dict.fromkeys(REGIONS, PER_ALIAS))
        destroyed = await runs.run(Command.DESTROY, "w-1", job, state=run.state, deadline=soon())
        assert destroyed.failure is None
    assert place.ledger.machines() == []
