"""An account that falls silent for good: it answers no call, and its machines stay where they are.

Half the machines of a pool are to start there. Its demand has to be met elsewhere within five product minutes: first in
the room that the unknown calls leave, then, once a person retires the account, in all of it.
"""

from slipway_common.base.clock import utc_now
from slipway_local.demo.deployment import Deployment
from slipway_simulator import facts
from tests.drills.declared import Account, Pool, declaration
from tests.drills.line import Line
from tests.drills.stage import Stage, Verdict, add_tasks, fetch, played

DEAD, ALIVE = "dead", "alive"
TASKS, ROOM = 8, 12
WITHIN_SECONDS = 300.0
PATIENCE_SECONDS = 600.0
TASK_SECONDS = 6000.0
UNREACHABLE = "SELECT unreachable FROM provisioner.account WHERE id = 'dead'"
CALLS = """
SELECT coalesce(sum(units), 0)::int AS n FROM provisioner.launch_batch
WHERE account_id = 'dead' AND state = 'calling'"""


async def play(stage: Stage) -> Verdict:
    """Play the drill."""
    deployment = stage.new_deployment()
    await deployment.start()
    line = Line(deployment.ports["simulator"])
    accounts = {
        DEAD: Account(url=f"http://127.0.0.1:{await line.start()}"),
        ALIVE: Account(url=deployment.url("simulator")),
    }
    pools = {"builds": Pool(accounts=[DEAD, ALIVE], max_capacity=ROOM)}
    await stage.play(deployment, declaration(stage.speed, accounts, pools), boot_seconds_median=30)
    line.silence()
    died_at = utc_now().timestamp()
    await add_tasks(deployment, "builds", TASKS, TASK_SECONDS)
    within = PATIENCE_SECONDS / stage.speed
    await stage.until(lambda: run(deployment, TASKS), f"{TASKS} tasks run", within_seconds=within)
    unknown = (await fetch(deployment, CALLS))[0]["n"]

    async def unreachable() -> bool:
        return bool((await fetch(deployment, UNREACHABLE))[0]["unreachable"])

    await stage.until(unreachable, "the account is unreachable", within_seconds=within)
    await add_tasks(deployment, "builds", ROOM - TASKS, TASK_SECONDS)
    await deployment.call("POST", "provisioner", f"/accounts/{DEAD}/retire", {"reason": "drill"})
    retired_at = utc_now().timestamp()
    await stage.until(lambda: run(deployment, ROOM), f"{ROOM} tasks run", within_seconds=within)
    first = product_seconds(stage, deployment, TASKS, died_at)
    second = product_seconds(stage, deployment, ROOM, retired_at)
    problems = [
        f"{text} after {seconds:.0f} product seconds, at most {WITHIN_SECONDS:g} allowed"
        for seconds, text in ((first, "the demand was met"), (second, "the room of the retired account was used"))
        if seconds > WITHIN_SECONDS
    ]
    if not unknown:
        problems.append("no call to the dead account was open: the drill proves nothing")
    met = f"demand met elsewhere after {first:.0f} product s, after `retire` {second:.0f}"
    return Verdict(f"{unknown} machines unknown, {met}", problems)


async def run(deployment: Deployment, number: int) -> bool:
    return len(starts(deployment)) >= number


def starts(deployment: Deployment) -> list[float]:
    """Times at which tasks started, by the ledger."""
    return [fact.at for fact in played(deployment) if isinstance(fact, facts.TaskStarted)]


def product_seconds(stage: Stage, deployment: Deployment, number: int, since: float) -> float:
    """Product seconds from `since` until so many tasks had started."""
    return max(0.0, sorted(starts(deployment))[number - 1] - since) * stage.speed
