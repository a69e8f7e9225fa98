"""A monitor that is renamed: its last report under the old name counts tasks that are done by then.

These tasks protect idle machines. An alert has to say so at once, and the idle machines have to be gone an hour later,
while the busy ones beside them stay.
"""

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved, alert_key
from slipway_local.demo.deployment import PRODUCT_SECONDS, Deployment
from slipway_simulator import facts
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, NotReached, Verdict, add_tasks, played, published_alerts
from tests.drills.monitor import Monitor

OLD, NEW = "old-monitor", "new-monitor"
IDLE, BUSY = 5, 3
VALID_SECONDS = 600.0
REPORTS = 8  # in the time for which one is valid
TASK_SECONDS = 100_000.0  # longer than the drill
HOUR_SECONDS = PRODUCT_SECONDS["provisioner"]["stale_demand_seconds"]
LEAVE_SECONDS = 1200.0  # from the end of the hour: a few real seconds
ALERT_SECONDS = 5.0  # real: there is a pass each second
# A busy machine answers late.
SECONDS = {"call_timeout_seconds": 600.0, "boot_timeout_seconds": 6000.0, "unresponsive_timeout_seconds": 6000.0}
KEY = alert_key("provisioner", "demand-source-stale", "builds", OLD)


class Renamed(Monitor):
    """Reports claimed tasks of a queue of its own under the `name` that it has at the moment."""

    def __init__(self, deployment: Deployment, name: str, claimed: int) -> None:
        super().__init__(deployment)
        self.name = name
        self.claimed = claimed
        self.valid_for_seconds = VALID_SECONDS / deployment.speed
        self.interval_seconds = self.valid_for_seconds / REPORTS
        self.last_at: dict[str, datetime] = {}  # by name

    async def report(self) -> None:
        self.last_at[self.name] = await self.send(
            "builds", source=self.name, claimed=self.claimed, valid_for_seconds=self.valid_for_seconds
        )


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    deployment = harness.new_deployment(seconds=SECONDS)
    await deployment.start()
    accounts = {"acc": Account(ttl_seconds=6000, reserve_seconds=3000, hold_seconds=12_000)}
    pools = {"builds": Pool(accounts=["acc"])}
    await harness.play(deployment, declaration(harness.speed, accounts, pools), boot_seconds_median=30)
    await add_tasks(deployment, "builds", BUSY, TASK_SECONDS)

    async def are_busy() -> bool:
        return len(busy(played(deployment))) == BUSY

    async def are_running() -> bool:
        return sum(isinstance(fact, facts.Registered) for fact in played(deployment)) == IDLE + BUSY

    async def are_gone() -> bool:
        return len(ended(played(deployment))) >= IDLE

    await harness.until(are_busy, f"{BUSY} machines are busy")
    async with Renamed(deployment, OLD, IDLE).reporting() as monitor:
        await harness.until(are_running, f"{IDLE} idle machines for the tasks of {OLD}")
        await asyncio.sleep(monitor.valid_for_seconds * harness.rng.uniform(0.1, 0.5))
        monitor.name, monitor.claimed = NEW, 0
        harness.log(f"{OLD} is renamed to {NEW}; its tasks are done")
        stale_at = monitor.last_at[OLD].timestamp() + monitor.valid_for_seconds
        patience = VALID_SECONDS + HOUR_SECONDS + 2 * LEAVE_SECONDS
        with contextlib.suppress(NotReached):
            await harness.until(are_gone, "idle machines are gone", within_seconds=patience / harness.speed)
        return judge(played(deployment), await alerts(deployment), stale_at, harness.speed)


def busy(ledger: Sequence[facts.Fact]) -> set[str]:
    """Machines that have a task, of those that last."""
    return {fact.instance_id for fact in ledger if isinstance(fact, facts.TaskStarted)}


def ended(ledger: Sequence[facts.Fact]) -> dict[str, float]:
    """Machines that have ended, and when."""
    return {fact.instance_id: fact.at for fact in ledger if isinstance(fact, facts.Terminated)}


async def alerts(deployment: Deployment) -> list[tuple[float, Alert]]:
    """Alerts on the old source, and their ends, with their times, as published."""
    return await published_alerts(deployment, lambda alert: alert.dedup_key == KEY)


def judge(
    ledger: Sequence[facts.Fact], published: Sequence[tuple[float, Alert]], stale_at: float, speed: float
) -> Verdict:
    """Compare the ends of idle and busy machines and the alert with what is allowed."""
    machines = {fact.instance_id for fact in ledger if isinstance(fact, facts.Registered)}
    worked, ends = busy(ledger), ended(ledger)
    idle = machines - worked
    after = sorted((ends[machine] - stale_at) * speed for machine in idle & ends.keys())
    delays = [at - stale_at for at, alert in published if isinstance(alert, AlertRaised) and at >= stale_at]
    reasons = [alert.summary for _, alert in published if isinstance(alert, AlertResolved)]
    problems = []
    if len(after) < len(idle):
        problems.append(f"{len(idle) - len(after)} of {len(idle)} idle machines are still there")
    if after and after[0] < HOUR_SECONDS:
        problems.append(f"an idle machine ended {after[0]:.0f} product s after its source became stale, too early")
    if after and after[-1] > HOUR_SECONDS + LEAVE_SECONDS:
        problems.append(f"an idle machine was there {after[-1]:.0f} product s after its source became stale")
    if not delays or delays[0] > ALERT_SECONDS:
        problems.append(f"the alert was raised {seconds(delays)}, at most {ALERT_SECONDS:g} s allowed")
    if not any("dropped" in reason for reason in reasons):
        problems.append("no end of the alert says that the source was dropped")
    if lost := worked & ends.keys():
        problems.append(f"{len(lost)} of {BUSY} busy machines were terminated")
    if len(worked) != BUSY or len(idle) != IDLE:
        problems.append(f"{len(worked)} busy and {len(idle)} idle machines: the drill proves nothing")
    gone = f"{after[-1] / 60:.0f} product minutes after their source became stale" if after else "never"
    stay = f"{len(worked - ends.keys())} of {len(worked)} busy ones stay"
    return Verdict(f"{len(after)} of {len(idle)} idle machines gone {gone}, alert {seconds(delays)}, {stay}", problems)


def seconds(delays: Sequence[float]) -> str:
    return f"after {delays[0]:.1f} s" if delays else "never"
