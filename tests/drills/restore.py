"""A database from before many launches and events: a restore from a backup, or a standby that took over too early.

The server's files are copied after a crash, put back later, and the server is started on them. Until a person
confirms, nothing may be launched; no machine that is registered may be terminated at any time; no event may get a
sequence number that consumers have seen. After the confirmation all tasks are done, and no machine is launched for a
task that has one.
"""

import contextlib
import math
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import httpx2
import msgspec

from slipway_common.base.clock import utc_now
from slipway_local.check.evidence import Evidence, Published
from slipway_local.demo.deployment import SERVICES, Deployment
from slipway_local.servers.postgres import give, unprivileged_account
from slipway_simulator import facts
from tests.drills.declared import Account, Pool, declaration
from tests.drills.harness import Harness, NotReached, Verdict, add_tasks, are_done, fetch, gathered, played

BEFORE, BUSY = 8, 8
TASK_SECONDS, LONG_SECONDS = 30.0, 1200.0
LISTED_SECONDS = 25.0  # real
REPORTED_SECONDS = 2.0  # real; by then the reports of the queue count a task no more that has ended
POSITIONS = " + ".join(
    f"(SELECT coalesce(sum(sequence_number), 0)::bigint FROM {service.replace('-', '_')}.relay_position)"
    for service in SERVICES
)
UNSENT = 20  # events that may have waited in the outbox at the time of the copy
SECONDS = {"call_timeout_seconds": 40.0, "visibility_seconds": 5.0}


class Course(msgspec.Struct):
    """Times of a drill, the last ones infinite while they are to come, and the instances shown at the confirmation."""

    copied_at: float
    restored_at: float = math.inf
    confirmed_at: float = math.inf
    shown: set[str] = set()


async def play_restore(harness: Harness) -> Verdict:
    """Restore a backup from before 60 launches and 200 events."""
    return await play(harness, launches=60, events=200)


async def play_failover(harness: Harness) -> Verdict:
    """Let a standby take over that has not received the last commits, 50 or more."""
    return await play(harness, launches=8, events=50)


async def play(harness: Harness, *, launches: int, events: int) -> Verdict:
    """Play the drill. The copy of the database is older than so many launches and events."""
    deployment = harness.new_deployment(seconds=SECONDS)
    await deployment.start()
    accounts = {name: Account() for name in ("acc-a", "acc-b")}
    pools = {"builds": Pool(accounts=tuple(accounts), max_capacity=60), "long": Pool(accounts=tuple(accounts))}
    await harness.play(deployment, declaration(harness.speed, accounts, pools), boot_seconds_median=30)
    await add_tasks(deployment, "builds", BEFORE, TASK_SECONDS)
    await harness.until(lambda: are_done(deployment, "builds", BEFORE), f"{BEFORE} tasks are done")
    files = Files(deployment)
    await files.keep()
    course = Course(copied_at=utc_now().timestamp())
    await deployment.supervisor.restart("postgres")
    harness.log("the files of PostgreSQL are copied")
    await forgotten(harness, deployment, launches, events)
    await harness.product_seconds(harness.rng.uniform(0.0, TASK_SECONDS))
    await files.put_back()
    course.restored_at = utc_now().timestamp()
    await deployment.supervisor.restart("postgres")
    harness.log("PostgreSQL runs on the copy")
    await add_tasks(deployment, "builds", BEFORE, TASK_SECONDS)
    problems: list[str] = []
    try:
        await harness.until(
            lambda: may_confirm(deployment), "the restore may be confirmed", within_seconds=LISTED_SECONDS
        )
        course.confirmed_at = utc_now().timestamp()
        actions = await confirm(deployment)
        course.shown = set(actions)
        harness.log(f"confirmed: {dict(Counter(actions.values()))}")
        tasks = BEFORE + launches + BEFORE
        await harness.until(lambda: are_done(deployment, "builds", tasks), f"all {tasks} tasks are done")
    except NotReached as error:
        problems.append(str(error))
    read = await gathered(deployment)
    verdict = judge(read, events, course)
    return Verdict(verdict.figures, [*problems, *verdict.problems])


async def forgotten(harness: Harness, deployment: Deployment, launches: int, events: int) -> None:
    """Launch all machines for new tasks, of which some run until the end: what the copy does not know."""
    before = len(created(played(deployment))), await published(deployment)

    async def are_enough() -> bool:
        launched = len(created(played(deployment))) - before[0]
        return launched >= launches + BUSY and await published(deployment) - before[1] >= events + UNSENT

    await add_tasks(deployment, "long", BUSY, LONG_SECONDS)
    await add_tasks(deployment, "builds", launches, TASK_SECONDS)
    await harness.until(are_enough, f"{launches + BUSY} machines were launched since, and {events} events published")


async def may_confirm(deployment: Deployment) -> bool:
    """True once the provisioner waits for a confirmation, and knows what runs in every account."""
    with contextlib.suppress(httpx2.HTTPError):
        found = await deployment.call("GET", "provisioner", "/recovery")
        return bool(found["restored"]) and not found["not_listed"]
    return False


async def confirm(deployment: Deployment) -> dict[str, str]:
    """Confirm what is proposed for each machine; returns the action by instance."""
    found = await deployment.call("GET", "provisioner", "/recovery")
    names = ("account_id", "instance_id", "action")
    body = {"instances": [{name: row[name] for name in names} for row in found["orphans"]]}
    await deployment.call("POST", "provisioner", "/recovery/confirm", body)
    return {row["instance_id"]: row["action"] for row in found["orphans"]}


class Files:
    """The files of the deployment's embedded PostgreSQL, which is not started again here."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.folder = deployment.folder / "postgres" / "cluster"
        self.copy = self.folder.with_name("copy")

    async def keep(self) -> None:
        """Crash the server, and copy its files."""
        await self.deployment.supervisor.kill("postgres")
        copy(self.folder, self.copy)

    async def put_back(self) -> None:
        """Crash the server, and put the copy in place of its files."""
        await self.deployment.supervisor.kill("postgres")
        shutil.rmtree(self.folder)
        copy(self.copy, self.folder)


def copy(source: Path, target: Path) -> None:
    """Copy the files of a server that does not run, with their owner."""
    shutil.copytree(source, target)
    target.joinpath("postmaster.pid").unlink(missing_ok=True)
    give(target, unprivileged_account())


async def published(deployment: Deployment) -> int:
    """Number of events with a sequence number so far, by the rows."""
    (row,) = await fetch(deployment, f"SELECT {POSITIONS} AS n")
    number: int = row["n"]
    return number


def created(ledger: list[facts.Fact], since: float = 0.0) -> list[facts.InstanceCreated]:
    return [fact for fact in ledger if isinstance(fact, facts.InstanceCreated) and fact.at > since]


def judge(found: Evidence, events: int, course: Course) -> Verdict:
    """Judge by the ledger what was ended and launched, and by the topics what consumers dropped."""
    ledger = list(found.ledger)
    registered = {fact.instance_id for fact in ledger if isinstance(fact, facts.Registered)}
    terminated = sum(
        isinstance(fact, facts.Terminated) and fact.by == "api" and fact.instance_id in registered for fact in ledger
    )
    interrupted = sum(isinstance(fact, facts.TaskEnded) and fact.result == "interrupted" for fact in ledger)
    early = sum(isinstance(fact, facts.Call) and course.restored_at < fact.at < course.confirmed_at for fact in ledger)
    forgotten = [fact.instance_id for fact in created(ledger, course.copied_at) if fact.at < course.restored_at]
    ended = {
        fact.instance_id for fact in ledger if isinstance(fact, facts.Terminated) and fact.at < course.confirmed_at
    }
    known = {row["instance_id"] for row in found.rows.workers}
    hidden = set(forgotten) - ended - course.shown - known
    second = launched_twice(ledger, course.confirmed_at)
    envelopes = [record.envelope for record in found.published if record.envelope is not None]
    times = [envelope.time.timestamp() for envelope in envelopes if envelope.sequence_number is not None]
    lost = sum(course.copied_at < time < course.restored_at for time in times)
    dropped = numbers_used_twice(found.published) + revisions_used_twice(found.published)
    problems = [
        text
        for is_so, text in (
            (terminated, f"{terminated} registered machines were terminated"),
            (interrupted, f"{interrupted} tasks were interrupted"),
            (early, f"{early} launches before the confirmation"),
            (hidden, f"{len(hidden)} machines ran that the person who confirmed was not shown"),
            (second, f"{second} machines were launched after the confirmation for tasks that had one"),
            (dropped, f"{dropped} events have a number or revision that consumers have seen: they drop them"),
            (lost < events, f"{lost} events since the copy, {events} required: the drill proves nothing"),
            (not set(forgotten) - ended, "no forgotten machine ran at the confirmation: the drill proves nothing"),
        )
        if is_so
    ]
    figures = (
        f"{len(forgotten)} launches and {lost} events forgotten, "
        f"healthy terminated {terminated}, events dropped silently {dropped}, launches before confirmation {early}, "
        f"after it {len(created(ledger, course.confirmed_at))}, of which {second} for tasks that had a machine"
    )
    return Verdict(figures, problems)


def launched_twice(ledger: Sequence[facts.Fact], confirmed_at: float) -> int:
    """Machines created after the confirmation without a task for them, since each does one task. Those for tasks that
    ended just before it are not counted: the newest report of the queue may have had these tasks still."""
    served = {fact.instance_id for fact in ledger if isinstance(fact, facts.TaskStarted | facts.TaskClaimed)}
    idle = sum(fact.instance_id not in served for fact in created(list(ledger), confirmed_at))
    ended = sum(
        isinstance(fact, facts.TaskEnded) and confirmed_at - REPORTED_SECONDS < fact.at <= confirmed_at
        for fact in ledger
    )
    return max(0, idle - ended)


def numbers_used_twice(published: Sequence[Published]) -> int:
    """Events whose sequence number an earlier event of the same source and partition has."""
    first: dict[tuple[str, str, int, int], str] = {}
    twice = 0
    for record in sorted(published, key=lambda record: record.offset):
        envelope = record.envelope
        if envelope is not None and envelope.sequence_number is not None:
            place = envelope.sequence_source, record.topic, record.partition, envelope.sequence_number
            twice += first.setdefault(place, envelope.id) != envelope.id
    return twice


def revisions_used_twice(published: Sequence[Published]) -> int:
    """Events that are new and whose revision is not above that of an earlier event of the same subject."""
    newest: dict[tuple[str, str, str], int] = {}
    ids: set[str] = set()
    twice = 0
    for record in sorted(published, key=lambda record: record.offset):
        envelope = record.envelope
        if envelope is not None and envelope.revision is not None and envelope.id not in ids:
            ids.add(envelope.id)
            subject = envelope.source, record.topic, envelope.subject
            twice += envelope.revision <= newest.get(subject, -1)
            newest[subject] = max(newest.get(subject, -1), envelope.revision)
    return twice
