"""Rehearsal of alerts on the whole system (`make rehearse`): ONLY=name,name, SEED, SPEED; one line each, its figures
last.

Each case brings a condition about, and expects its one alert within 30 s after the condition holds. Then it runs the
command of the alert as printed, and the remedy that this prints; where only somebody else can end the condition, they
do. The alert has to end. A slow start has no alert. Conditions are read from the simulator's ledger and from rows.
"""

import asyncio
import logging
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import asyncpg
import msgspec

from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.base.process.groups import output
from slipway_local.demo.deployment import SERVICES, Deployment
from slipway_local.servers.supervisor import run
from slipway_simulator import facts
from tests.drills.__main__ import ERRORS, Arguments, judge, parse_arguments
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, NotReached, Verdict, add_tasks, done, fetch, played

ALERT_SECONDS: Final = 30.0
POOL: Final = "linux"
ACCOUNTS: Final = ("sim-a", "sim-b")
GOOD, BAD = "good", "bad"
FIRST, MORE = 6, 60
"""Tasks before the condition, of which some have to be done, and with it."""
TASK_SECONDS: Final = 60.0
SECONDS: Final = {"boot_timeout_seconds": 300.0}
THROTTLED_SECONDS, STARVED_SECONDS = 60.0, 600.0
FINDINGS: Final = 3
"""Exit code of a check that has found problems."""
REMEDY: Final = re.compile(r"^Remedy: .*?`(slipway [^`]+)`", re.MULTILINE)
CLAIMS_SECONDS: Final = 15.0
"""Real time for which the partitions of a service that starts cannot be claimed; after 10 s they are late."""
LIVE: Final = "SELECT FROM provisioner.worker WHERE pool_id = $1 AND state <> 'stopped'"
MISSING: Final = "SELECT missing_since FROM provisioner.pool_balance WHERE pool_id = $1"
PROGRAMS: Final = Path(sys.executable).parent


class Stage(msgspec.Struct, frozen=True):
    """A deployment whose pool has worked, and its speed."""

    harness: Harness
    deployment: Deployment

    async def alerts(self) -> list[dict[str, Any]]:
        """Alerts of all services, open and closed."""
        answers = [await self.deployment.call("GET", service, "/alerts?limit=1000") for service in SERVICES]
        return [row for answer in answers for row in answer["items"]]

    async def type(self, command: str) -> str:
        """Run a command as a person would; returns what it prints. Raises NotReached unless it succeeds."""
        urls = {f"SLIPWAY_{name.upper().replace('-', '_')}_URL": self.deployment.url(name) for name in SERVICES}
        path = f"{PROGRAMS}:{os.environ['PATH']}"
        environment = {**os.environ, **urls, "SLIPWAY_TOKEN": self.deployment.token, "PATH": path}
        code, printed = await output(("bash", "-c", command), environment)
        self.harness.log(f"$ {command}")
        if code not in (0, FINDINGS):
            raise NotReached(f"`{command}` exits with {code}: {printed}")
        return printed


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A condition: the fault or the command that begins it, since when it holds (None: it does not), and its alert.
    `printed`: the command of the alert prints the remedy; else the fault is lifted."""

    kind: str
    severity: str
    since: Callable[[Stage], Awaitable[float | None]]
    speed: float = 60.0
    fault: Mapping[str, str] = {}
    command: str = ""
    accounts: Sequence[str] = ACCOUNTS
    printed: bool = False


async def throttled_since(stage: Stage) -> float | None:
    """A minute after the first of the newest calls that were throttled without a minute between two of them."""
    minute = THROTTLED_SECONDS / stage.harness.speed
    ledger = played(stage.deployment)
    times = [f.at for f in ledger if isinstance(f, facts.Reply) and f.code == "RequestLimitExceeded"]
    begins = [at for before, at in zip([0.0, *times], times, strict=False) if at - before > minute]
    return begins[-1] + minute if begins and times[-1] >= begins[-1] + minute else None


def tripped_since(kind: str) -> Callable[[Stage], Awaitable[float | None]]:
    """The first trip of a launch config by its capacity, quota, credential or image."""

    async def since(stage: Stage) -> float | None:
        rows = (await stage.deployment.call("GET", "provisioner", "/launch-configs"))["items"]
        times = [row["tripped_since"] for row in rows if row["tripped_by"] == kind and row["tripped_since"]]
        return min((datetime.fromisoformat(at).timestamp() for at in times), default=None)

    return since


async def starved_since(stage: Stage) -> float | None:
    """Ten minutes after workers began to be missing."""
    (row,) = await fetch(stage.deployment, MISSING, POOL)
    if row["missing_since"] is None:
        return None
    at: float = row["missing_since"].timestamp() + STARVED_SECONDS / stage.harness.speed
    return at if at <= utc_now().timestamp() else None


CASES: Final = {
    "throttle": Case(
        kind="account-throttled",
        severity="notice",
        since=throttled_since,
        speed=20.0,
        fault={"name": "throttle"},
        accounts=ACCOUNTS[:1],
    ),
    "bad-image": Case(
        kind="image-tripped",
        severity="page",
        since=tripped_since("image"),
        fault={"name": "bad-image", "arg": BAD},
        command=f"slipway pool set-image {POOL} {BAD} --reason rehearsal",
        printed=True,
    ),
    "credential": Case(
        kind="credential-failing",
        severity="page",
        since=tripped_since("credential"),
        fault={"name": "credential", "arg": ACCOUNTS[0]},
    ),
    "quota": Case(
        kind="quota-exhausted",
        severity="page",
        since=tripped_since("quota"),
        fault={"name": "quota", "arg": ACCOUNTS[0]},
    ),
    "zone": Case(
        kind="capacity-unavailable",
        severity="notice",
        since=tripped_since("capacity"),
        fault={"name": "zone", "arg": f"zone-{ACCOUNTS[0]}"},
    ),
    "starved": Case(
        kind="pool-starved",
        severity="page",
        since=starved_since,
        command=f"slipway lease drain {ACCOUNTS[0]} --reason rehearsal",
        accounts=ACCOUNTS[:1],
        printed=True,
    ),
}
SLOW_START: Final = "slow-start"
SLOW_SPEED: Final = 20.0
NAMES: Final = (*list(CASES)[:1], SLOW_START, *list(CASES)[1:])


async def begin(harness: Harness, accounts: Sequence[str]) -> Stage:
    """Start a deployment whose pool has done its first tasks."""
    deployment = harness.new_deployment(seconds=SECONDS)
    await deployment.start()
    declared = declaration(
        harness.speed,
        {name: Account() for name in accounts},
        {POOL: Pool(accounts=accounts, image=GOOD, max_capacity=20)},
    )
    await harness.play(deployment, declared)
    await add_tasks(deployment, POOL, FIRST, TASK_SECONDS)

    async def works() -> bool:
        return done(deployment, POOL) == FIRST

    await harness.until(works, "the pool works")
    return Stage(harness, deployment)


async def play(harness: Harness, case: Case) -> Verdict:
    """Bring about a condition, and follow its alert to its end."""
    stage = await begin(harness, case.accounts)
    if case.fault:
        await stage.deployment.call("POST", "simulator", "/faults", dict(case.fault))
    if case.command:
        await stage.type(case.command)
    await add_tasks(stage.deployment, POOL, MORE, TASK_SECONDS)
    since: list[float] = []
    rows: list[dict[str, Any]] = []

    async def holds() -> bool:
        since[:] = [at] if (at := await case.since(stage)) is not None else []
        return bool(since)

    async def is_alerted() -> bool:
        rows[:] = [row for row in await stage.alerts() if row["kind"] == case.kind]
        return bool(rows)

    await harness.until(holds, "the condition holds")
    await harness.until(is_alerted, f"{case.kind} is open", within_seconds=ALERT_SECONDS)
    after_seconds = _time(rows[0]["raised_at"]) - since[0]
    problems = [f"the alert came after {after_seconds:.1f} s"] if after_seconds > ALERT_SECONDS else []
    if (alerts := [(row["kind"], row["severity"]) for row in rows]) != [(case.kind, case.severity)]:
        problems.append(f"alerts {alerts}; one {case.severity} expected")
    pages = [row["kind"] for row in await stage.alerts() if row["severity"] == "page" and row["kind"] != case.kind]
    problems += [f"pages beside it: {', '.join(pages)}"] if pages else []
    printed = await stage.type(rows[0]["command"])
    acted = monotonic_seconds()
    if case.printed:
        remedy = REMEDY.search(printed)
        if remedy is None:
            raise NotReached(f"no remedy in: {printed}")
        await stage.type(remedy[1])
    else:
        await stage.deployment.call("DELETE", "simulator", f"/faults/{case.fault['name']}")

    number = FIRST + MORE

    async def has_ended() -> bool:
        # A config recovers by a start, which only tasks ask for: on a busy machine all are done before the remedy.
        nonlocal number
        if done(stage.deployment, POOL) == number and not await fetch(stage.deployment, LIVE, POOL):
            await add_tasks(stage.deployment, POOL, MORE, TASK_SECONDS)
            number += MORE
        await is_alerted()
        return all(row["closed_at"] for row in rows)

    await harness.until(has_ended, f"{case.kind} has ended")
    how = "its remedy" if case.printed else "the end of its cause"
    return Verdict(
        f"{case.kind} {after_seconds:.1f} s after its condition, ended {monotonic_seconds() - acted:.1f} s after {how}",
        problems,
    )


async def play_slow_start(harness: Harness) -> Verdict:
    """Start the lease-broker while its partitions cannot be claimed, and nothing waits for it."""
    stage = await begin(harness, ACCOUNTS)
    before = {row["dedup_key"] for row in await stage.alerts()}
    db = await asyncpg.connect(stage.deployment.database_url)
    try:
        async with db.transaction():
            await db.execute("LOCK TABLE lease_broker.consumed IN ACCESS EXCLUSIVE MODE")
            starting = asyncio.create_task(stage.deployment.replace("lease-broker", {}))
            late_seconds = 0.0

            async def is_late() -> bool:
                nonlocal late_seconds
                status = await _ready(stage.deployment)
                late_seconds = monotonic_seconds() - began if "assigned but not owned" in status else 0.0
                return late_seconds > CLAIMS_SECONDS

            began = monotonic_seconds()
            await harness.until(is_late, f"its partitions were not claimed for {CLAIMS_SECONDS:g} s")
        await starting
    finally:
        await db.close()
    raised = [row["kind"] for row in await stage.alerts() if row["dedup_key"] not in before]
    await add_tasks(stage.deployment, POOL, FIRST, TASK_SECONDS)

    async def works() -> bool:
        return done(stage.deployment, POOL) == 2 * FIRST

    await harness.until(works, "the pool works again")
    problems = [f"alerts of a slow start: {', '.join(raised)}"] if raised else []
    return Verdict(f"{len(raised)} alerts while its partitions were not claimed for {CLAIMS_SECONDS:g} s", problems)


async def _ready(deployment: Deployment) -> str:
    """Reasons why the lease-broker is not ready; empty while it does not answer."""
    try:
        return (await deployment.http.get(f"{deployment.url('lease-broker')}/readyz")).text
    except ERRORS:
        return ""


def _time(at: str) -> float:
    return datetime.fromisoformat(at).astimezone(UTC).timestamp()


async def rehearse(name: str, arguments: Arguments) -> bool:
    """Play one case and print its line; True if all of it was as claimed."""
    case = CASES.get(name)
    speed = arguments.speed or (case.speed if case is not None else SLOW_SPEED)
    return await judge(
        name, play_slow_start if case is None else partial(play, case=case), seed=arguments.seed, speed=speed
    )


async def rehearsal(arguments: Arguments) -> int:
    """Play the cases one after another; return the exit code."""
    held = [await rehearse(name, arguments) for name in arguments.names]
    print(f"{sum(held)} of {len(held)} alerts as claimed", flush=True)
    return 0 if all(held) else 1


def main() -> int:
    try:
        arguments = parse_arguments(os.environ, NAMES)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # it logs every attempt until the broker has started
    return run(lambda _: rehearsal(arguments))


if __name__ == "__main__":
    sys.exit(main())
