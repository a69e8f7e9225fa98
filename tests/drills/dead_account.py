"""An account that falls silent for good: it answers no call, and its machines stay where they are.

Half the machines of a pool are to start there. Its demand has to be met elsewhere within five product minutes: first in
the room that the unknown calls leave, then, once a person retires the account, in all of it.
"""

import contextlib
from collections.abc import Sequence

from slipway_common.base.clock import utc_now
from slipway_local.demo.deployment import Deployment
from slipway_simulator import facts
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, NotReached, Verdict, add_tasks, fetch, played
from tests.drills.proxy import Proxy

DEAD, ALIVE = "dead", "alive"
TASKS, ROOM = 8, 12
WITHIN_SECONDS = 300.0
PATIENCE_SECONDS = 360.0
TASK_SECONDS = 6000.0
UNREACHABLE = "SELECT unreachable FROM provisioner.account WHERE id = 'dead'"
CALLS = """
SELECT coalesce(sum(units), 0)::int AS n FROM provisioner.launch_batch
WHERE account_id = 'dead' AND state = 'calling'"""


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    deployment = harness.new_deployment()
    proxy = Proxy(deployment.ports["simulator"])
    entries = deployment.providers["simulated"]["entries"]
    entries[DEAD] = {"url": f"http://127.0.0.1:{await proxy.start()}"}
    await deployment.start()
    accounts = {
        DEAD: Account(entry=DEAD),
        ALIVE: Account(),
    }
    pools = {"builds": Pool(accounts=[DEAD, ALIVE], max_capacity=ROOM)}
    await harness.play(deployment, declaration(harness.speed, accounts, pools), boot_seconds_median=30)
    proxy.silence()
    died_at = utc_now().timestamp()
    await add_tasks(deployment, "builds", TASKS, TASK_SECONDS)
    first = await met(harness, deployment, TASKS, since=died_at)
    unknown = (await fetch(deployment, CALLS))[0]["n"]

    async def unreachable() -> bool:
        return bool((await fetch(deployment, UNREACHABLE))[0]["unreachable"])

    await harness.until(unreachable, "the account is unreachable", within_seconds=PATIENCE_SECONDS / harness.speed)
    await add_tasks(deployment, "builds", ROOM - TASKS, TASK_SECONDS)
    await deployment.call("POST", "provisioner", f"/accounts/{DEAD}/retire", {"reason": "drill"})
    second = await met(harness, deployment, ROOM, since=utc_now().timestamp())
    return judge(unknown, first, second)


async def met(harness: Harness, deployment: Deployment, number: int, *, since: float) -> float | None:
    """Product seconds from `since` until so many tasks ran; None if they did not in time."""

    async def run() -> bool:
        return len(starts(deployment)) >= number

    with contextlib.suppress(NotReached):
        await harness.until(run, f"{number} tasks run", within_seconds=PATIENCE_SECONDS / harness.speed)
        return max(0.0, sorted(starts(deployment))[number - 1] - since) * harness.speed
    return None


def starts(deployment: Deployment) -> Sequence[float]:
    """Times at which tasks started, by the ledger."""
    return [fact.at for fact in played(deployment) if isinstance(fact, facts.TaskStarted)]


def judge(unknown: int, first: float | None, second: float | None) -> Verdict:
    """Compare the product seconds until all tasks ran, before and after the account was retired, with those allowed."""
    problems = [
        f"{what} {delay(seconds)}, at most {WITHIN_SECONDS:g} product seconds allowed"
        for what, seconds in (("demand met elsewhere", first), ("room of the retired account used", second))
        if seconds is None or seconds > WITHIN_SECONDS
    ]
    if not unknown:
        problems.append("no call to the dead account was open: the drill proves nothing")
    times = f"demand met elsewhere {delay(first)}, in the retired account's room {delay(second)}"
    return Verdict(f"{times}, {unknown} machines unknown", problems)


def delay(seconds: float | None) -> str:
    return "never" if seconds is None else f"after {seconds:.0f} product s"
