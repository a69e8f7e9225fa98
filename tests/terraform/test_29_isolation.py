"""Check 29: two regions over shared processes: no resource is created in the other region.

With isolation off (`MUTANT=configurations-shared`) resources land in the wrong region, and are reported as created.
"""

import asyncio
import os
from collections import Counter

from slipway_terraform.domain.results import Command, Run
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.terraform_aws import GROUP, REGIONS, AwsCloud
from tests.support.terraform_runs import Place, driver, soon

APPLIES = int(os.environ.get("N", "6"))
"""Applies in each of two regions on moto; `make terraform-checks` makes 16. Each takes a second and a half of CPU time,
most of it for the schema of the provider."""
LEDGER_APPLIES = 32


async def test_two_regions_on_moto(place: Place, shared: SharedScheduler, aws: AwsCloud) -> None:
    await aws.server.reset()
    module = place.module(GROUP)
    names = [f"{region}-{number}" for number in range(APPLIES) for region in REGIONS]
    async with driver(place, shared, max_runs=4) as runs:

        async def apply(name: str) -> Run:
            region = name.rpartition("-")[0]
            job = place.job(module, variables={"name": name}, providers=(aws.spec(region),))
            return await runs.run(Command.APPLY, name, job, state=None, deadline=soon(300.0))

        done = await asyncio.gather(*map(apply, names))
    assert [run.failure for run in done] == [None] * len(names)
    found = await aws.groups()
    wrong = sum(count for (region, wanted), count in found.items() if region != wanted)
    print(f"{sum(found.values())} groups in {len(REGIONS)} regions, {wrong} in the wrong one")
    assert found == Counter({(region, region): APPLIES for region in REGIONS})


async def test_two_regions_in_a_ledger(place: Place, shared: SharedScheduler) -> None:
    """The same with a provider that takes little time, so that many calls of two configurations overlap."""
    names = [f"{region}-{number}" for number in range(LEDGER_APPLIES) for region in REGIONS]
    async with driver(place, shared, max_runs=4) as runs:

        async def apply(name: str) -> Run:
            job = place.job(region=name.rpartition("-")[0], variables={"name": name})
            return await runs.run(Command.APPLY, name, job, state=None, deadline=soon(300.0))

        done = await asyncio.gather(*map(apply, names))
    assert [run.failure for run in done] == [None] * len(names)
    machines = place.ledger.machines()
    assert len(machines) == len(names)
    wrong = [machine["name"] for machine in machines if machine["region"] != machine["name"].rpartition("-")[0]]
    assert wrong == []
    assert len({call.pid for call in place.ledger.calls("create")}) == len(REGIONS)
