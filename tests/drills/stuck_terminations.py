"""Machines that cannot be terminated: a few of a pool, both of a pool of two, and all of an account for an hour.

The machines that are stuck hold their places, but for a tenth of the maximum, which others take. Where all of an
account fail, nothing is freed and nothing launched there, and one page says so, until its terminations succeed again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved
from slipway_common.base.clock import utc_now
from slipway_local.demo.deployment import PRODUCT_SECONDS, Deployment
from slipway_simulator import facts
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, Verdict, add_tasks, done, played, published_alerts

FAULT: Final = "no-termination"
PAIR, SOME, ALL = "pair", "some", "all"
MAXIMA: Final = {PAIR: 2, SOME: 10, ALL: 10}
FIRST: Final = {PAIR: 2, SOME: 10, ALL: 6}
"""Machines that finish their tasks and are asked to leave."""
STUCK: Final = {PAIR: 2, SOME: 3}
FIRST_SECONDS, TASK_SECONDS = 400.0, 300.0
HOUR_SECONDS: Final = 3600.0
STUCK_SECONDS: Final = PRODUCT_SECONDS["provisioner"]["stuck_after_seconds"]
REFUSALS: Final = 5
SERVED_SHARE_MIN: Final = 0.9
ALERT_SECONDS: Final = 4.0  # real: there is a pass each second
BACKLOG: Final = 100
LONG_TASK_SECONDS: Final = 1500.0
"""Length of the tasks whose time is compared with the oracle's, which has none between two of them. At speed 120 a
machine that is a quarter of a second late for its next task, as on a busy computer, loses a tenth of a short one."""
SECONDS: Final = {"call_timeout_seconds": 200.0, "unresponsive_timeout_seconds": 9000.0}


async def play(harness: Harness) -> Verdict:
    """Play the drill."""
    deployment = harness.new_deployment(seconds=SECONDS)
    await deployment.start()
    accounts = {name: Account(ttl_seconds=6000, reserve_seconds=3000, hold_seconds=24_000) for name in MAXIMA}
    pools = {name: Pool(accounts=[name], max_capacity=maximum, tasks_per_worker=0) for name, maximum in MAXIMA.items()}
    await harness.play(deployment, declaration(harness.speed, accounts, pools), boot_seconds_median=30)
    for name, number in FIRST.items():
        await add_tasks(deployment, name, number, FIRST_SECONDS)

    async def are_created() -> bool:
        return all(len(machines(played(deployment), name)) == number for name, number in FIRST.items())

    await harness.until(are_created, "the machines that will be asked to leave are created")
    began_at = utc_now().timestamp()
    stuck = await keep(harness, deployment)

    async def are_refused() -> bool:
        refused = {fact.instance_id for fact in refusals(played(deployment))}
        return refused >= set(stuck[PAIR]) | set(stuck[SOME]) and len(refused & machines(played(deployment), ALL)) > 3

    await harness.until(are_refused, "their terminations are refused")
    loaded_at = utc_now().timestamp()
    for name in STUCK:
        await add_tasks(deployment, name, BACKLOG, LONG_TASK_SECONDS)

    async def is_stopped() -> bool:
        return any("launches nothing" in alert.doing for _, alert in await alerts(deployment))

    await harness.until(is_stopped, f"account {ALL} launches nothing")
    stopped_at = utc_now().timestamp()
    await add_tasks(deployment, ALL, MAXIMA[ALL], TASK_SECONDS)
    await asyncio.sleep(max(0.0, began_at + HOUR_SECONDS / harness.speed - utc_now().timestamp()))
    ended_at = utc_now().timestamp()
    harness.log("the hour is over")

    async def is_served() -> bool:
        ended = any(
            isinstance(alert, AlertResolved) for _, alert in await alerts(deployment) if alert.subject_id == ALL
        )
        return ended and done(deployment, ALL) > FIRST[ALL]

    await harness.until(is_served, f"account {ALL} launches again")
    ledger = played(deployment)
    return judge(
        ledger,
        await alerts(deployment),
        stuck=stuck,
        loaded_at=loaded_at,
        stopped=(stopped_at, ended_at),
        speed=harness.speed,
    )


async def keep(harness: Harness, deployment: Deployment) -> dict[str, list[str]]:
    """Have terminations refused: those of some machines, which the seed draws, and all of one account for an hour."""
    found = played(deployment)
    stuck = {name: harness.rng.sample(sorted(machines(found, name)), number) for name, number in STUCK.items()}
    for instance_id in (*stuck[PAIR], *stuck[SOME]):
        await deployment.call("POST", "simulator", "/faults", {"name": FAULT, "arg": instance_id})
    state = await deployment.call("GET", "simulator", "/state")
    until = state["product_seconds"] + HOUR_SECONDS
    await deployment.call("POST", "simulator", "/faults", {"name": FAULT, "arg": ALL, "until_seconds": until})
    return stuck


def pool_of(fact: facts.InstanceCreated) -> str:
    return fact.config.partition("-")[0]


def machines(ledger: Sequence[facts.Fact], pool_id: str) -> set[str]:
    """Machines that were created for a pool."""
    return {f.instance_id for f in ledger if isinstance(f, facts.InstanceCreated) and pool_of(f) == pool_id}


def refusals(ledger: Sequence[facts.Fact]) -> list[facts.TerminationRefused]:
    return [fact for fact in ledger if isinstance(fact, facts.TerminationRefused)]


async def alerts(deployment: Deployment) -> list[tuple[float, Alert]]:
    """Alerts of the provisioner as published, with their times."""
    return await published_alerts(deployment, lambda alert: alert.dedup_key.startswith("provisioner/"))


def most_machines(ledger: Sequence[facts.Fact], pool_id: str) -> int:
    """Most machines of a pool that existed at an instant."""
    live: set[str] = set()
    most, own = 0, machines(ledger, pool_id)
    for fact in ledger:
        if isinstance(fact, facts.InstanceCreated) and fact.instance_id in own:
            live.add(fact.instance_id)
        elif isinstance(fact, facts.Terminated):
            live.discard(fact.instance_id)
        most = max(most, len(live))
    return most


def stuck_at(ledger: Sequence[facts.Fact], instance_id: str, speed: float) -> float | None:
    """Time of the refusal by which a machine counts as stuck; None before it."""
    times = [fact.at for fact in refusals(ledger) if fact.instance_id == instance_id]
    late = [at for at in times[REFUSALS - 1 :] if (at - times[0]) * speed >= STUCK_SECONDS]
    return late[0] if late else None


def oracle_seconds(
    ledger: Sequence[facts.Fact], pool_id: str, stuck: Sequence[str], *, since: float, until: float, speed: float
) -> float:
    """Product seconds in which a pool without delays works in the free places: all but those of stuck machines,
    of which a tenth of the maximum is freed as soon as they count as stuck."""
    maximum = MAXIMA[pool_id]
    counted = sorted(at for each in stuck if (at := stuck_at(ledger, each, speed)) is not None)
    begins = [since] * (maximum - len(stuck)) + counted[: max(1, maximum // 10)]
    return sum(max(0.0, until - begin) * speed for begin in begins)


def served_seconds(
    ledger: Sequence[facts.Fact], pool_id: str, *, since: float, until: float, speed: float
) -> tuple[float, int]:
    """Product seconds in which tasks of a pool ran, and the number of tasks that were done."""
    ends = {fact.task_id: fact.at for fact in ledger if isinstance(fact, facts.TaskEnded) and fact.result == "done"}
    spans = [
        (max(since, fact.at), min(until, ends.get(fact.task_id, until)))
        for fact in ledger
        if isinstance(fact, facts.TaskStarted) and fact.pool_id == pool_id
    ]
    number = sum(since < end <= until and begin >= since for begin, end in spans)
    return sum(max(0.0, end - begin) * speed for begin, end in spans), number


def judge(
    ledger: Sequence[facts.Fact],
    published: Sequence[tuple[float, Alert]],
    *,
    stuck: Mapping[str, Sequence[str]],
    loaded_at: float,
    stopped: tuple[float, float],
    speed: float,
) -> Verdict:
    """Compare machines, tasks and alerts with what is allowed."""
    problems: list[str] = []
    figures: list[str] = []
    for name, maximum in MAXIMA.items():
        most, allowed = most_machines(ledger, name), maximum + max(1, maximum // 10)
        figures.append(f"{name} at most {most} machines of {allowed}")
        if most > allowed:
            problems.append(f"{most} machines of pool {name} at an instant, at most {allowed} allowed")
    for name, ids in stuck.items():
        problems += served(ledger, name, ids, since=loaded_at, until=stopped[1], speed=speed, figures=figures)
        problems += told(ledger, published, name, ids, speed=speed, figures=figures)
    problems += account(ledger, published, stopped, figures)
    return Verdict(", ".join(figures), problems)


def served(
    ledger: Sequence[facts.Fact],
    name: str,
    stuck: Sequence[str],
    *,
    since: float,
    until: float,
    speed: float,
    figures: list[str],
) -> list[str]:
    """Compare the tasks that a pool has done with the oracle."""
    seconds, number = served_seconds(ledger, name, since=since, until=until, speed=speed)
    most = oracle_seconds(ledger, name, stuck, since=since, until=until, speed=speed)
    if not most:
        return [f"no place of pool {name} was free: the drill proves nothing"]
    figures.append(f"{number} tasks, {seconds / most:.0%} of the oracle's task time")
    if seconds < SERVED_SHARE_MIN * most:
        return [f"pool {name} worked {seconds:.0f} product s, {most:.0f} had a place"]
    return []


def told(
    ledger: Sequence[facts.Fact],
    published: Sequence[tuple[float, Alert]],
    name: str,
    stuck: Sequence[str],
    *,
    speed: float,
    figures: list[str],
) -> list[str]:
    """Compare the time of the alert on stuck workers with that of the refusal which made the last of them stuck."""
    known = [at for each in stuck if (at := stuck_at(ledger, each, speed)) is not None]
    words = "1 worker is stuck" if len(stuck) == 1 else f"{len(stuck)} workers are stuck"
    raised = [
        (at, alert)
        for at, alert in published
        if isinstance(alert, AlertRaised) and alert.subject_id == name and words in alert.effect
    ]
    if len(known) < len(stuck) or not raised:
        return [f"no alert says that {len(stuck)} workers of {name} are stuck"]
    delay = raised[0][0] - max(known)
    figures.append(f"alert {max(0.0, delay):.1f} s later")
    problems = (
        [f"alert on {name} after {delay:.1f} s, at most {ALERT_SECONDS:g} allowed"] if delay > ALERT_SECONDS else []
    )
    if not raised[0][1].cause or not raised[0][1].command:
        problems.append(f"the alert on {name} has no cause or no command")
    return problems


def account(
    ledger: Sequence[facts.Fact],
    published: Sequence[tuple[float, Alert]],
    stopped: tuple[float, float],
    figures: list[str],
) -> list[str]:
    """Check that nothing is launched in the account of which all terminations fail, and that it has one page."""
    created = [f for f in ledger if isinstance(f, facts.InstanceCreated) and f.account == ALL]
    late = [fact for fact in created if stopped[0] < fact.at < stopped[1]]
    pages = {
        alert.dedup_key
        for _, alert in published
        if isinstance(alert, AlertRaised) and alert.severity == "page" and alert.subject_id == ALL
    }
    notices: dict[str, Any] = {
        alert.kind: alert.severity
        for _, alert in published
        if isinstance(alert, AlertRaised) and alert.subject_id == ALL and alert.severity != "page"
    }
    figures.append(f"account {ALL}: {len(late)} launched in the hour, {len(pages)} page, notices {sorted(notices)}")
    problems = [f"{len(late)} machines were launched in account {ALL}, where terminations fail"] if late else []
    if len(pages) != 1:
        problems.append(f"{len(pages)} pages on account {ALL}: {', '.join(sorted(pages))}")
    if not refusals(ledger):
        problems.append("no termination was refused: the drill proves nothing")
    return problems
