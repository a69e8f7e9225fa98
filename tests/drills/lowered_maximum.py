"""Surplus that is busy: a maximum that is lowered from ten to four, and a monitor that sees four of ten tasks.

In one pool tasks last 100 s, with gaps of 20 s, so that nobody is idle for the idle timeout: the surplus has to be gone
within one task and the idle timeout. In the other, ten tasks of 30 minutes run, of which the monitor reports four for
three minutes: nobody may leave, and nothing may be launched.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final

import httpx2

from slipway_common.base.clock import utc_now
from slipway_local.demo.deployment import PRODUCT_SECONDS, Deployment
from slipway_simulator import facts
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, NotReached, Verdict, add_tasks, fetch, played
from tests.drills.monitor import Monitor

GAPS, DIP = "gaps", "dip"
BEFORE, AFTER = 10, 4
TASK_SECONDS, GAP_SECONDS = 100.0, 20.0
WARM_SECONDS, PLAYED_SECONDS = 240.0, 1200.0
LONG_SECONDS = 1800.0
DIP_SECONDS = 180.0
WITHIN_SECONDS: Final = TASK_SECONDS + PRODUCT_SECONDS["provisioner"]["idle_timeout_seconds"]
PATIENCE_SECONDS = 600.0
REPORT_SECONDS = 0.2  # real
VALID_SECONDS = 60.0  # real
MARKED = "SELECT count(*)::int AS n FROM provisioner.worker WHERE pool_id = 'dip' AND leave_after_task"


class Queues(Monitor):
    """Reports the queues of the simulator, whose own reports go to another topic; of `seen`, so many tasks."""

    interval_seconds = REPORT_SECONDS

    def __init__(self, deployment: Deployment) -> None:
        super().__init__(deployment)
        self.seen: dict[str, int] = {}

    async def report(self) -> None:
        with contextlib.suppress(httpx2.HTTPError):
            state = await self.deployment.call("GET", "simulator", "/state")
            for pool_id, counts in state["pools"].items():
                tasks = {"pending": counts["pending"], "claimed": counts["claimed"]}
                if pool_id in self.seen:
                    tasks = {"pending": 0, "claimed": self.seen[pool_id]}
                await self.send(pool_id, source="monitor", valid_for_seconds=VALID_SECONDS, **tasks)


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    deployment = harness.new_deployment(environment={"simulator": {"SLIPWAY_TOPIC_PREFIX": "unread."}})
    await deployment.start()
    accounts = {"acc": Account(ttl_seconds=3000, reserve_seconds=1500, hold_seconds=12_000)}
    pools = {name: Pool(accounts=["acc"], max_capacity=BEFORE, tasks_per_worker=0) for name in (GAPS, DIP)}
    await harness.play(deployment, declaration(harness.speed, accounts, pools), boot_seconds_median=30)
    await add_tasks(deployment, DIP, BEFORE, LONG_SECONDS)
    await add_tasks(deployment, GAPS, BEFORE, 1.0)
    async with Queues(deployment).reporting() as monitor:
        monitor.seen[GAPS] = BEFORE  # until the maximum is lowered: the gaps would make surplus of one or two

        async def are_running() -> bool:
            running = registered(played(deployment))
            return all(len(machines) == BEFORE for machines in running.values()) and len(running) == 2

        await harness.until(are_running, f"{BEFORE} machines in each pool")
        await tasks_with_gaps(harness, deployment)
        await harness.product_seconds(WARM_SECONDS)
        monitor.seen = {DIP: AFTER}
        pools[GAPS] = Pool(accounts=["acc"], max_capacity=AFTER, tasks_per_worker=0)
        lowered_at = utc_now().timestamp()
        before = len(registered(played(deployment))[GAPS]) - len(gone(played(deployment), GAPS))
        await lower(deployment, declaration(harness.speed, accounts, pools))
        harness.log(f"maximum of {GAPS} lowered to {AFTER}; {AFTER} tasks of {DIP} seen")
        marked = await most_marked(harness, deployment)
        monitor.seen.clear()
        harness.log(f"{BEFORE} tasks of {DIP} seen again; {marked} workers were to leave")

        async def are_gone() -> bool:
            return len(gone(played(deployment), GAPS)) >= before - AFTER

        with contextlib.suppress(NotReached):
            await harness.until(are_gone, "the surplus is gone", within_seconds=PATIENCE_SECONDS / harness.speed)
        await harness.product_seconds(2 * DIP_SECONDS)
        return judge(played(deployment), lowered_at, marked, before, harness.speed)


async def tasks_with_gaps(harness: Harness, deployment: Deployment) -> None:
    """Add tasks that keep ten machines busy for all but the gaps; the seed moves their beginning."""
    period = TASK_SECONDS + GAP_SECONDS
    begin = harness.rng.uniform(0, GAP_SECONDS)
    rounds = int((WARM_SECONDS + PLAYED_SECONDS) / period)
    at = [begin + period * (turn + number / BEFORE) for turn in range(rounds) for number in range(BEFORE)]
    body = {"pool_id": GAPS, "count": len(at), "duration_seconds": TASK_SECONDS, "at": at}
    await deployment.call("POST", "simulator", "/tasks", body)


async def lower(deployment: Deployment, declared: Any) -> None:
    """Declare the lower maximum, with its danger confirmed."""
    try:
        await deployment.apply(declared)
    except httpx2.HTTPStatusError as question:
        await deployment.apply(declared, confirm=question.response.json()["digest"])


async def most_marked(harness: Harness, deployment: Deployment) -> int:
    """Most workers that were to leave at once, while the monitor sees too few tasks."""
    until, most = utc_now().timestamp() + DIP_SECONDS / harness.speed, 0
    while utc_now().timestamp() < until:
        most = max(most, (await fetch(deployment, MARKED))[0]["n"])
        await asyncio.sleep(0.1)
    return most


def registered(ledger: Sequence[facts.Fact]) -> dict[str, set[str]]:
    """Machines that have registered, by pool."""
    found: dict[str, set[str]] = {}
    for fact in ledger:
        if isinstance(fact, facts.Registered):
            found.setdefault(fact.pool_id, set()).add(fact.instance_id)
    return found


def gone(ledger: Sequence[facts.Fact], pool_id: str) -> dict[str, float]:
    """Machines of a pool that have ended, and when."""
    machines = registered(ledger).get(pool_id, set())
    return {
        fact.instance_id: fact.at
        for fact in ledger
        if isinstance(fact, facts.Terminated) and fact.instance_id in machines
    }


def judge(ledger: Sequence[facts.Fact], lowered_at: float, marked: int, before: int, speed: float) -> Verdict:
    """Compare the ends of the surplus, and of what is no surplus, with what is allowed."""
    surplus = before - AFTER
    ends = sorted(at for at in gone(ledger, GAPS).values() if at > lowered_at)
    after = (ends[surplus - 1] - lowered_at) * speed if len(ends) >= surplus else None
    interrupted = sum(isinstance(fact, facts.TaskEnded) and fact.result == "interrupted" for fact in ledger)
    created = sum(isinstance(fact, facts.InstanceCreated) and fact.config.startswith(f"{DIP}-") for fact in ledger)
    problems = []
    if after is None or after > WITHIN_SECONDS:
        problems.append(f"surplus gone {text(after)}, at most {WITHIN_SECONDS:g} product s allowed")
    if len(ends) > surplus:
        problems.append(f"{len(ends)} machines left, {surplus} were surplus")
    if interrupted:
        problems.append(f"{interrupted} tasks were interrupted")
    if created > BEFORE or gone(ledger, DIP):
        problems.append(f"{created - BEFORE} launches and {len(gone(ledger, DIP))} ends for demand that returned")
    if surplus != BEFORE - AFTER or marked != BEFORE - AFTER:
        problems.append(f"{surplus} surplus and {marked} marked workers: the drill proves nothing")
    figures = (
        f"surplus of {surplus} gone {text(after)}, interrupted {interrupted}; demand {BEFORE} → {AFTER} → {BEFORE}"
    )
    return Verdict(f"{figures}: {marked} were to leave, launches {created - BEFORE}", problems)


def text(seconds: float | None) -> str:
    return "never" if seconds is None else f"after {seconds:.0f} product s"
