"""`make attach QUEUE=redis SEED=1`: workers that follow a real queue by `slipway-monitor` and `slipway-worker wrap`.

QUEUE is the kind of source. The tasks wait in two lists of a real Redis: one of a pool whose workers do one task, one
of a pool whose workers do several; kinds other than `redis` see the same lists through a command, a page, or an
exporter and a real Prometheus. KILL=monitor kills the leading one of two monitors instead of the queue's server. Judged
by the record that the workers keep in the queue, by the topic, and by the rows.
"""

import asyncio
import contextlib
import os
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from slipway_api.events.pool import DemandReported
from slipway_api.percent import encoded
from slipway_common.base.clock import utc_now
from slipway_common.base.process.guard import guard
from slipway_common.base.process.identities import INSTANCE_TAG
from slipway_common.declaration.models import Declaration
from slipway_common.declaration.strict_yaml import write
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.child import StartFailed
from slipway_local.servers.ports import free_ports
from slipway_local.servers.supervisor import Supervisor, run
from tests.attach.worker import RECORD
from tests.contract.sources.servers import PrometheusWorld, RedisWorld
from tests.contract.sources.worlds import NotAvailable, Page
from tests.drills.harness import Harness, NotReached, fetch, gathered
from tests.support.folders import temporary_folder

ROOT: Final = Path(__file__).parents[2]
KINDS: Final = ("redis", "exec", "http", "prometheus")
SPEED: Final = 40.0
INTERVAL_SECONDS: Final = 1.0
VALID_SECONDS: Final = 7.5  # 5 product minutes
AWAY_SECONDS: Final = 600.0  # product
ONCE, AGAIN = "once", "again"
WORKERS_MAX: Final = 4
TASKS: Final = {ONCE: 8, AGAIN: 12}
SOURCE: Final = "plain"
STEP_SECONDS: Final = 120.0


class View:
    """The two lists as the kind of source sees them."""

    def __init__(self, kind: str, queue: RedisWorld, folder: Path) -> None:
        self.kind, self.queue, self.folder = kind, queue, folder
        self.prometheus = PrometheusWorld(folder) if kind == "prometheus" else None
        self.page = self.prometheus.exporter if self.prometheus else Page()

    async def lengths(self) -> dict[str, int]:
        async with self.queue.client as client:
            return {name: await client.llen(name) for name in (ONCE, AGAIN)}

    async def show(self) -> None:
        """Show the lists on the page for ever, as an exporter does; nothing while the queue does not answer."""
        while True:
            try:
                async with asyncio.timeout(0.3):  # the client tries again for longer
                    lengths = await self.lengths()
                lines = [f'jobs{{queue="{name}"}} {number}' for name, number in lengths.items()]
                lines += [f'queue_jobs{{state="{state}"}} 0' for state in ("waiting", "running")]
                self.page.bodies = {"/queue": lengths, "/metrics": ("\n".join(lines) + "\n").encode()}
                self.page.headers = {"Content-Type": "text/plain; version=0.0.4"}
            except Exception:
                self.page.bodies = {}
            await asyncio.sleep(0.05)

    async def start(self) -> None:
        if self.prometheus is not None:
            await self.prometheus.start()

    def settings(self) -> dict[str, Any]:
        match self.kind:
            case "redis":
                return {"url": f"redis://127.0.0.1:{self.queue.port}", "list": "unused"}
            case "exec":
                call = f"redis-cli -p {self.queue.port} llen"
                number = 'test "$N" -ge 0 && printf'
                script = (
                    f"set -e; O=$({call} {ONCE}); A=$({call} {AGAIN}); "
                    + number.replace("$N", "$O")
                    + f' \'{{"{ONCE}": %s, "{AGAIN}": %s}}\' "$O" "$A"'
                )
                return {"command": ["sh", "-c", script]}
            case "http":
                return {"url": f"{self.page.url}/queue", "behind_seconds": 0.5}
            case _:
                assert self.prometheus is not None
                url = f"http://127.0.0.1:{self.prometheus.port}"
                return {"url": url, "tasks": "sum by (queue) (jobs)", "label": "queue", "behind_seconds": 1.0}

    async def close(self) -> None:
        if self.prometheus is not None:
            await self.prometheus.close()
        else:
            self.page.shut()


def entries(deployment: Deployment, port: int) -> dict[str, Any]:
    """Commands of the operator: processes that take tasks from the list of their pool."""
    program = [sys.executable, "-m", "tests.attach.worker", str(port)]
    wrap = [sys.executable, "-m", "slipway_client.worker", "wrap", "--preset", "generic", "--", *program]
    tasks = {ONCE: ["1", "0.5"], AGAIN: ["0", "0.5"]}
    return {
        name: {
            "command": [*wrap, name, *arguments],
            "environment": {"PYTHONPATH": str(ROOT)},
            "log_folder": str(deployment.folder / f"logs-{name}"),
        }
        for name, arguments in tasks.items()
    }


def declaration() -> Declaration:
    """Two pools of processes."""
    lease_pool = {"hold_seconds": 60.0, "ttl_seconds": 30.0, "reserve_seconds": 20.0, "pacing": "off"}
    return Declaration.model_validate(
        {
            "version": 1,
            "lease_pools": [{"id": name, "limit": 8, **lease_pool} for name in TASKS],
            "accounts": [
                {
                    "id": name,
                    "provider": "process",
                    "region": "local",
                    "credential": "none",
                    "identity": socket.gethostname(),
                    "lease_pool": name,
                    "settings": {"entry": name, "processes_max": 12},
                }
                for name in TASKS
            ],
            "worker_pools": [
                {
                    "id": name,
                    "min_capacity": 0,
                    "max_capacity": WORKERS_MAX,
                    "launch_configs": [
                        {
                            "name": f"{name}-here",
                            "account": name,
                            "zone": "here",
                            "instance_type": "process",
                            "image": "worker",
                            "settings": {"heartbeat_seconds": 3, "poll_seconds": 1, "stop_seconds": 20},
                        }
                    ],
                }
                for name in TASKS
            ],
        }
    )


class Monitors:
    """Replicas of the monitor, as processes."""

    def __init__(self, deployment: Deployment, file: Path, replicas: int) -> None:
        self.deployment, self.file, self.replicas = deployment, file, replicas
        self.processes: list[asyncio.subprocess.Process] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Monitors"]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
        environment |= {"SLIPWAY_KAFKA": self.deployment.kafka, "SLIPWAY_TOPIC_PREFIX": self.deployment.prefix}
        environment |= {"SLIPWAY_DATABASE_URL": self.deployment.database_url}
        try:
            for number, port in enumerate(free_ports(self.replicas)):
                path = self.deployment.folder / f"monitor-{number}.log"
                with path.open("ab") as log:
                    process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-m", "slipway_monitor.main", "run", str(self.file)),
                        stdout=log,
                        stderr=log,
                        env=environment | {"SLIPWAY_PORT": str(port)},
                    )
                self.processes.append(process)
                awaited = "started" if number else "leads sources"  # the first one leads
                while awaited not in path.read_text():
                    await asyncio.sleep(0.05)
            yield self
        finally:
            for process in self.processes:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


async def reports(deployment: Deployment) -> list[DemandReported]:
    """All reports on the topic, those of a pool in their order."""
    published = (await gathered(deployment)).published
    return [record.event for record in published if isinstance(record.event, DemandReported)]


class Run:
    """One run: the queue, the deployment and what is found."""

    def __init__(self, harness: Harness, deployment: Deployment, queue: RedisWorld, view: View) -> None:
        self.harness, self.deployment, self.queue, self.view = harness, deployment, queue, view
        self.added: Counter[str] = Counter()
        self.problems: list[str] = []

    async def add(self, pool: str, number: int) -> None:
        async with self.queue.client as client:
            for _ in range(number):
                self.added[pool] += 1
                await client.rpush(pool, f"{pool}-{self.added[pool]}")

    async def record(self) -> dict[str, Counter[str]]:
        """How often each task began and ended."""
        async with self.queue.client as client:
            lines = [line.split() for line in await client.lrange(RECORD, 0, -1)]
        return {what: Counter(task for kind, task, _ in lines if kind == what) for what in ("begin", "end")}

    async def all_done(self) -> bool:
        return len((await self.record())["end"]) == self.added.total()

    async def launched(self, pool: str) -> int:
        rows = await fetch(self.deployment, "SELECT count(*) AS n FROM provisioner.worker WHERE pool_id = $1", pool)
        return int(rows[0]["n"])

    async def is_counted(self) -> bool:
        """True if the newest reports are those of the lists."""
        lengths = await self.view.lengths()
        rows = await fetch(self.deployment, "SELECT pool_id, pending FROM provisioner.demand WHERE ended_at IS NULL")
        return {row["pool_id"]: row["pending"] for row in rows} == lengths

    async def has_alert(self) -> bool:
        answer = await self.deployment.call("GET", "provisioner", "/alerts?open=true")
        return any(each["kind"] == "demand-source-stale" for each in answer["items"])

    async def tasks(self) -> None:
        """Add tasks in bursts, and wait until all were run."""
        rng, left = self.harness.rng, Counter(TASKS)
        while left.total():
            pool = rng.choice([name for name in sorted(left) if left[name]])
            number = min(left[pool], rng.randint(1, 4))
            left[pool] -= number
            await self.add(pool, number)
            await asyncio.sleep(rng.uniform(0.0, 2.0))
        await self.harness.until(self.all_done, f"{self.added.total()} tasks are done", within_seconds=STEP_SECONDS)

    async def outage(self) -> None:
        """Take the server away for ten product minutes, while tasks wait for machines that boot."""
        await self.harness.until(self.is_counted, "empty lists are counted", within_seconds=30)
        before = await self.launched(ONCE)
        await self.add(ONCE, WORKERS_MAX)

        async def are_launched() -> bool:
            return await self.launched(ONCE) == before + WORKERS_MAX

        await self.harness.until(are_launched, "machines are launched for tasks that wait", within_seconds=30)
        await self.queue.away()
        self.harness.log("the server is away")
        began = utc_now().timestamp()
        alive = "SELECT id FROM provisioner.worker WHERE pool_id = $1 AND state = 'running'"

        async def have_booted() -> bool:
            return len(await fetch(self.deployment, alive, ONCE)) >= WORKERS_MAX

        await self.harness.until(have_booted, "idle machines wait for the queue", within_seconds=30)
        kept = {row["id"] for row in await fetch(self.deployment, alive, ONCE)}
        await self.harness.until(self.has_alert, "the stale source has its alert", within_seconds=VALID_SECONDS + 15)
        await self.harness.product_seconds(max(0.0, AWAY_SECONDS - (utc_now().timestamp() - began) * SPEED))
        if lost := kept - {row["id"] for row in await fetch(self.deployment, alive, ONCE)}:
            self.problems.append(f"{len(lost)} idle workers were stopped while the server was away")
        ended = utc_now().timestamp()
        seen = [event.observed_at.timestamp() for event in await reports(self.deployment)]
        late = [at for at in seen if began + 2 * INTERVAL_SECONDS < at < ended]
        if late:
            self.problems.append(f"{len(late)} reports while the server was away")
        await self.queue.back()
        await self.harness.until(self.all_done, "all tasks are done", within_seconds=STEP_SECONDS)

        async def is_over() -> bool:
            return not await self.has_alert()

        await self.harness.until(is_over, "the alert is over, by itself", within_seconds=30)

    async def kill(self, monitors: Monitors) -> str:
        """Kill the leader of two monitors, and wait for the other one."""
        epoch = max(event.epoch or 0 for event in await reports(self.deployment))
        await asyncio.sleep(self.harness.rng.uniform(0, 2 * INTERVAL_SECONDS))
        monitors.processes[0].kill()
        self.harness.log("the leading monitor is killed")

        async def reports_again() -> bool:
            return any((event.epoch or 0) > epoch for event in await reports(self.deployment))

        await self.harness.until(reports_again, "the other monitor reports", within_seconds=30)
        found = [event for event in await reports(self.deployment) if event.pool_id == ONCE]
        again = next(event.observed_at for event in found if (event.epoch or 0) > epoch)
        last = max(event.observed_at for event in found if event.epoch == epoch)
        twice = sum((later.epoch or 0) < (earlier.epoch or 0) for earlier, later in pairwise(found))
        gap = (again - last).total_seconds() / INTERVAL_SECONDS
        if gap > 3:
            self.problems.append(f"no report for {gap:.1f} intervals")
        if twice:
            self.problems.append(f"{twice} reports of a deposed leader after those of its successor")
        return f", again after {gap:.1f} intervals, twice-led {twice}"

    async def verdict(self) -> str:
        """The printed line; adds problems."""
        record, total = await self.record(), self.added.total()
        begun, ended = record["begin"], record["end"]
        twice = sum(number > 1 for number in begun.values())
        lost, interrupted = total - len(ended), len(begun.keys() - ended.keys())
        once, again = await self.launched(ONCE), await self.launched(AGAIN)
        # A reusable worker that was idle for long has left, so that later bursts may have new ones.
        surplus = max(0, once - self.added[ONCE]) + max(0, again - self.added[AGAIN])
        for what, number in (("twice", twice), ("lost", lost), ("interrupted", interrupted), ("surplus", surplus)):
            if number:
                self.problems.append(f"{what} {number}")
        return (
            f"tasks {total}, run {len(ended)}, twice {twice}, lost {lost}, interrupted {interrupted}, "
            f"surplus launches {surplus}"
        )


async def attach(supervisor: Supervisor, kind: str, seed: int, kills_monitor: bool) -> int:
    """Play a run; returns the exit code."""
    talk = partial(print, flush=True)
    async with Harness(supervisor, seed=seed, speed=SPEED, log=talk) as harness, contextlib.AsyncExitStack() as stack:
        folder = stack.enter_context(temporary_folder())
        queue = RedisWorld(folder)
        await queue.start()
        stack.push_async_callback(queue.close)
        view = View(kind, queue, folder)
        stack.push_async_callback(view.close)
        showing = asyncio.create_task(view.show())
        stack.callback(showing.cancel)
        await view.start()
        deployment = harness.new_deployment()
        deployment.providers["process"] = {"entries": entries(deployment, queue.port)}
        await deployment.start()
        guard().tagged(f"{INSTANCE_TAG}={encoded(deployment.id)}/")
        await deployment.apply(declaration())
        file = folder / "sources.yaml"
        usual: dict[str, Any] = {"name": SOURCE, "kind": kind, "counts": "waiting", "claims": "hooks"}
        usual |= {"pools": {ONCE: ONCE, AGAIN: AGAIN}, "interval_seconds": INTERVAL_SECONDS}
        usual |= {"timeout_seconds": 2.0, "valid_for_seconds": VALID_SECONDS}
        file.write_text(write({"sources": [usual | view.settings()]}))
        monitors = Monitors(deployment, file, 2 if kills_monitor else 1)
        await stack.enter_async_context(monitors.running())
        playing = Run(harness, deployment, queue, view)
        more = ""
        try:
            if kills_monitor:
                await harness.until(playing.is_counted, "the lists are counted", within_seconds=30)
                more = await playing.kill(monitors)
                await playing.tasks()
            else:
                await playing.tasks()
                await playing.outage()
        except NotReached as error:
            playing.problems.append(str(error))
        line = await playing.verdict()
        for problem in playing.problems:
            print(f"PROBLEM {problem}")
        print(line + more, flush=True)
        return 1 if playing.problems else 0


def main() -> int:
    kind, kill = os.environ.get("QUEUE", "redis"), os.environ.get("KILL", "")
    if kind not in KINDS or kill not in ("", "monitor"):
        print(f"QUEUE={kind} KILL={kill}: expected QUEUE={'|'.join(KINDS)} and KILL=monitor or none", file=sys.stderr)
        return 2
    try:
        return run(lambda supervisor: attach(supervisor, kind, int(os.environ.get("SEED", "1")), kill == "monitor"))
    except NotAvailable as error:
        print(f"not run: {error}")
        return 3
    except StartFailed as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
