"""Two deployments in one account of one cloud, each with its own database and topics.

Each has machines there, and one that no worker owns, which its instance reaper has to terminate. The reapers pass over
the account several times: they must never terminate a machine of the other, nor list one.
"""

import asyncio
from collections import Counter
from itertools import chain

from slipway_api.events.alert import AlertRaised
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.supervisor import Supervisor
from slipway_simulator import facts
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, Verdict, fetch, gathered, played

MACHINES = 6
PASSES = 5
PASS_COUNT = "SELECT passes AS n FROM provisioner.account WHERE id = 'shared'"
BATCH = "SELECT id FROM provisioner.launch_batch WHERE account_id = 'shared' ORDER BY id LIMIT 1"
ALERTS = ("orphans-kept", "implausible-listing")
NEVER_REGISTERS = "silent"
# A reaper judges instances only once their call is settled.
SECONDS = {"reap_seconds": 20.0, "call_timeout_seconds": 60.0, "visibility_seconds": 5.0}


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    first = harness.new_deployment(seconds=SECONDS)
    await first.start()
    async with Supervisor() as beside:
        second = harness.new_deployment(seconds=SECONDS, supervisor=beside, beside=first)
        second.providers |= first.providers
        await second.start()
        accounts = {"shared": Account()}
        both = (first, second)
        for deployment in both:
            pools = {f"pool-{deployment.run_id}": Pool(accounts=["shared"], min_capacity=MACHINES)}
            images = {NEVER_REGISTERS: {"bad": "never_registers"}}
            await harness.play(
                deployment, declaration(harness.speed, accounts, pools), boot_seconds_median=20, images=images
            )

        async def are_running() -> bool:
            return len(registered(first)) == MACHINES * len(both)

        await harness.until(are_running, f"{MACHINES} machines of each deployment run")
        for deployment in both:
            await add_orphan(first, deployment)
        await harness.product_seconds(sum(SECONDS.values()))
        before = [await passes(deployment) for deployment in both]

        async def have_passed() -> bool:
            now = [await passes(deployment) for deployment in both]
            return all(after - earlier >= PASSES for after, earlier in zip(now, before, strict=True))

        await harness.until(have_passed, f"{PASSES} passes of each instance reaper")
        alerts = [*chain(*await asyncio.gather(*(raised(deployment) for deployment in both)))]
    return judge(played(first), alerts)


def registered(deployment: Deployment) -> list[str]:
    return [fact.instance_id for fact in played(deployment) if isinstance(fact, facts.Registered)]


async def add_orphan(cloud: Deployment, deployment: Deployment) -> None:
    """Create a machine in the name of a deployment, under the tag of a call that it has made, which no worker owns."""
    (row,) = await fetch(deployment, BATCH)
    tags = {"slipway-deployment": deployment.id, "slipway-batch": str(row["id"])}
    body = {"token": f"orphan-{deployment.run_id}", "tags": tags, "image": NEVER_REGISTERS}
    body |= {"zone": "zone-shared", "instance_type": "m5"}
    await cloud.call("POST", "simulator", "/accounts/shared/instances", body)


async def passes(deployment: Deployment) -> int:
    """Passes of the instance reaper over the account, by the row."""
    (row,) = await fetch(deployment, PASS_COUNT)
    number: int = row["n"]
    return number


async def raised(deployment: Deployment) -> list[str]:
    """Alerts about the account, as published."""
    found = await gathered(deployment)
    events = [record.event for record in found.published]
    return [e.summary for e in events if isinstance(e, AlertRaised) and e.kind in ALERTS]


def judge(ledger: list[facts.Fact], alerts: list[str]) -> Verdict:
    """Count what was terminated, by deployment: each has to end its orphan, and nothing else."""
    created = [f for f in ledger if isinstance(f, facts.InstanceCreated)]
    ended = {f.instance_id for f in ledger if isinstance(f, facts.Terminated) and f.by == "api"}
    orphans = [f for f in created if f.image == NEVER_REGISTERS]
    wrongly = Counter(f.deployment for f in created if f.image != NEVER_REGISTERS and f.instance_id in ended)
    problems = [f"{number} machines of {name} were terminated" for name, number in wrongly.items()]
    problems += [f"a deployment listed machines of the other: {summary}" for summary in alerts]
    problems += [
        f"the reaper of {f.deployment} did not terminate its orphan {f.instance_id}: the drill proves nothing"
        for f in orphans
        if f.instance_id not in ended
    ]
    live = len(created) - len(ended)
    own = sum(f.instance_id in ended for f in orphans)
    figures = f"terminated of the other {wrongly.total()} in {PASSES} passes each, orphans {own}, {live} machines live"
    return Verdict(figures, problems)
