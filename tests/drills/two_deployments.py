"""Two deployments in one account of one cloud, each with its own database and topics.

Each has machines there, and its instance reaper passes over the account several times. It must never terminate a
machine of the other, nor list one.
"""

from collections import Counter

from slipway_common.events.alert import AlertRaised
from slipway_local.check import evidence
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.supervisor import Supervisor
from slipway_simulator import facts
from tests.drills.declared import Account, Pool, declaration
from tests.drills.stage import Stage, Verdict, fetch, played

MACHINES = 6
PASSES = 5
PASS_COUNT = "SELECT passes AS n FROM provisioner.account WHERE id = 'shared'"
ALERTS = ("orphans-kept", "implausible-listing")
# A reaper judges instances only once their call is settled. On a busy machine no call takes as long.
SECONDS = {"reap_seconds": 20.0, "call_timeout_seconds": 200.0, "visibility_seconds": 5.0}


async def play(stage: Stage) -> Verdict:
    """Play the drill."""
    first = stage.new_deployment(seconds=SECONDS)
    await first.start()
    async with Supervisor() as beside:
        second = stage.new_deployment(seconds=SECONDS, supervisor=beside, beside=first)
        await second.start()
        accounts = {"shared": Account(url=first.url("simulator"))}
        both = (first, second)
        for deployment in both:
            pools = {f"pool-{deployment.run_id}": Pool(accounts=["shared"], min_capacity=MACHINES)}
            await stage.play(deployment, declaration(stage.speed, accounts, pools), boot_seconds_median=20)

        async def are_running() -> bool:
            return len(registered(first)) == MACHINES * len(both)

        await stage.until(are_running, f"{MACHINES} machines of each deployment run")
        await stage.product_seconds(sum(SECONDS.values()))
        before = [await passes(deployment) for deployment in both]

        async def have_passed() -> bool:
            now = [await passes(deployment) for deployment in both]
            return all(after - earlier >= PASSES for after, earlier in zip(now, before, strict=True))

        await stage.until(have_passed, f"{PASSES} passes of each instance reaper")
        alerts = [alert for deployment in both for alert in await raised(deployment)]
    return judge(played(first), alerts)


def registered(deployment: Deployment) -> list[str]:
    return [fact.instance_id for fact in played(deployment) if isinstance(fact, facts.Registered)]


async def passes(deployment: Deployment) -> int:
    """Passes of the instance reaper over the account, by the row."""
    (row,) = await fetch(deployment, PASS_COUNT)
    number: int = row["n"]
    return number


async def raised(deployment: Deployment) -> list[str]:
    """Alerts about the account, as published."""
    found = await evidence.gather(
        ledger_path=deployment.ledger,
        kafka=deployment.kafka,
        prefix=deployment.prefix,
        database_url=deployment.database_url,
        settle_seconds=0.0,
    )
    events = [record.event for record in found.published]
    return [e.summary for e in events if isinstance(e, AlertRaised) and e.kind in ALERTS]


def judge(ledger: list[facts.Fact], alerts: list[str]) -> Verdict:
    """Count what was terminated, by deployment: neither has a reason to terminate anything."""
    owner = {f.instance_id: f.deployment for f in ledger if isinstance(f, facts.InstanceCreated)}
    ended = Counter(owner[f.instance_id] for f in ledger if isinstance(f, facts.Terminated) and f.by == "api")
    problems = [f"{number} machines of {name} were terminated" for name, number in ended.items()]
    problems += [f"alert: {summary}" for summary in alerts]
    live = len(owner) - ended.total()
    figures = f"terminated of the other {ended.total()}, {live} machines live, alerts about the account {len(alerts)}"
    return Verdict(figures, problems)
