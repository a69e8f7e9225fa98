"""Change of an image (`make try-image`): a roll-out, a bad image and a rollback on a simulated cloud under demand.

Each step is one `slipway` command. The run is judged by the simulator's ledger, the topics and the rows. Arguments come
from the environment: SEED, SPEED, FAULTS.
"""

import asyncio
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import asyncpg
import httpx2
import msgspec

from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.base.process.groups import output
from slipway_common.base.process.guard import guard
from slipway_common.declaration.models import Declaration
from slipway_common.declaration.parsing import parse
from slipway_local.check import evidence, image_change, path_check
from slipway_local.check.image_change import BAD_MACHINES_MAX
from slipway_local.demo.deployment import Deployment
from slipway_local.demo.program import DECLARATIONS, keep
from slipway_local.servers.child import StartFailed
from slipway_local.servers.supervisor import Supervisor, run
from slipway_simulator import faults
from slipway_simulator.notation import BadFault, Fault

POOL: Final = "linux"
OLD, NEW, BAD = "linux-1", "linux-2", "linux-3"
SPEED: Final = 40.0
SPEED_MAX: Final = 60.0  # faster, reports and heartbeats in real time would become slow by comparison
SLIPWAY: Final = (sys.executable, "-c", "from slipway_client.cli.main import app; app(prog_name='slipway')")
# A bad image is known by boots that time out, so they do that early; the rest is as in any demo.
SECONDS: Final = {"boot_timeout_seconds": 240.0, "reap_seconds": 20.0}
# In product time: steady demand, of which each machine does a few tasks.
TASKS_PER_MINUTE: Final = 18.0
TASK_SECONDS_MEDIAN: Final = 50.0
TASK_SIGMA: Final = 0.4
TASKS_PER_WORKER: Final = 3
MAX_CAPACITY: Final = 60
TICK_SECONDS: Final = 0.25
FIRST_LOAD_SECONDS: Final = 100.0
BURST_TASKS: Final = 40
STEP_SECONDS: Final = 30.0  # real; 3 to 10 on an idle machine


class ImageArguments(msgspec.Struct, frozen=True):
    """Arguments of a run. `faults` are added to that of the bad image."""

    seed: int
    speed: float
    faults: tuple[Fault, ...]


class NotReached(Exception):
    """A step did not have its effect in time."""


def parse_arguments(environment: Mapping[str, str]) -> ImageArguments:
    """Read the arguments from the environment; raises ValueError with the cause and the accepted values."""
    try:
        seed, speed = int(environment.get("SEED") or 1), float(environment.get("SPEED") or SPEED)
    except ValueError as error:
        given = f"SEED={environment.get('SEED', '')} SPEED={environment.get('SPEED', '')}"
        raise ValueError(f"{given}: SEED has to be an integer, and SPEED a number such as {SPEED:g}") from error
    if not 0 < speed <= SPEED_MAX:
        raise ValueError(f"SPEED={speed:g}: expected a number above 0 and at most {SPEED_MAX:g}")
    return ImageArguments(seed, speed, faults.parse(environment.get("FAULTS") or "none"))


def declared(deployment: Deployment) -> Declaration:
    """The demo's declaration, with machines that do several tasks."""
    body = deployment.declaration(DECLARATIONS["simulated"]).model_dump(mode="json")
    (pool,) = body["worker_pools"]
    pool["max_capacity"] = MAX_CAPACITY
    for config in pool["launch_configs"]:
        config["settings"] = {"tasks_per_worker": TASKS_PER_WORKER}
    return parse(body)


def scenario(arguments: ImageArguments) -> dict[str, Any]:
    """Scenario for the simulator, in which machines with the bad image never register."""
    return {
        "seed": arguments.seed,
        "speed": arguments.speed,
        "accounts": {"*": {}},
        "visibility_seconds": 5,
        "faults": msgspec.to_builtins((Fault("bad-image", BAD), *arguments.faults)),
    }


class Play:
    """The steps of one run, each of which waits until its effect is seen in the rows."""

    def __init__(self, deployment: Deployment, db: asyncpg.Connection, arguments: ImageArguments) -> None:
        self.deployment = deployment
        self.db = db
        self.arguments = arguments
        self.began = monotonic_seconds()

    def say(self, text: str) -> None:
        print(f"{monotonic_seconds() - self.began:6.1f} s  {text}", flush=True)

    async def feed(self) -> None:
        """Add tasks at a steady rate, with lengths by the seed, until cancelled."""
        chance = Random(f"{self.arguments.seed}/tasks")  # noqa: S311 (a run should be repeatable)
        rate = TASKS_PER_MINUTE / 60 * self.arguments.speed * TICK_SECONDS
        due = 0.0
        while True:
            due += rate
            number, due = int(due), due % 1
            if number:
                length = chance.lognormvariate(math.log(TASK_SECONDS_MEDIAN), TASK_SIGMA)
                task = {"pool_id": POOL, "count": number, "duration_seconds": length}
                await self.deployment.call("POST", "simulator", "/tasks", task)
            # A tick that is late on a busy machine is not made up for, since a burst of tasks would be no steady rate.
            await asyncio.sleep(TICK_SECONDS)

    async def demo_seconds(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.arguments.speed)

    async def slipway(self, *arguments: str) -> float:
        """Execute a `slipway` command; return the time at which it had been answered. Raises NotReached."""
        self.say(f"$ slipway {' '.join(arguments)}")
        code, printed = await output((*SLIPWAY, *arguments), os.environ | environment(self.deployment))
        for line in printed.splitlines():
            print(f"            {line}", flush=True)
        if code:
            raise NotReached(f"slipway {arguments[0]} {arguments[1]} ended with {code}")
        return utc_now().timestamp()

    async def until(self, holds: Callable[[], Awaitable[bool]], what: str) -> None:
        """Wait until a condition holds, and say so. Raises NotReached after STEP_SECONDS."""
        deadline = monotonic_seconds() + STEP_SECONDS
        while not await holds():
            if monotonic_seconds() > deadline:
                raise NotReached(f"not within {STEP_SECONDS:g} s: {what}")
            await asyncio.sleep(0.1)
        self.say(what)

    def are(self, condition: str, image: str) -> Callable[[], Awaitable[bool]]:
        """True once every launch config has a revision with this image, and all of these meet the condition."""

        async def holds() -> bool:
            found: bool = await self.db.fetchval(
                f"SELECT count(*) = (SELECT count(*) FROM provisioner.launch_config_name) AND bool_and({condition}) "
                "FROM provisioner.launch_config c LEFT JOIN provisioner.weight w ON w.launch_config_id = c.id "
                "WHERE image_revision = $1",
                image,
            )
            return found

        return holds

    def launched_since(self, at: float) -> Callable[[], Awaitable[bool]]:
        """True once a worker with the new image was launched after `at`."""

        async def holds() -> bool:
            found: bool = await self.db.fetchval(
                "SELECT EXISTS (SELECT FROM provisioner.worker WHERE image_revision = $1 AND launched_at > $2)",
                NEW,
                datetime.fromtimestamp(at, UTC),
            )
            return found

        return holds

    async def has_settled(self) -> bool:
        """True once every task is done and no replaced revision has a worker."""
        state = await self.deployment.call("GET", "simulator", "/state")
        left = await self.db.fetchval("SELECT count(*) FROM provisioner.launch_config WHERE state = 'draining'")
        return not left and not any(pool["pending"] + pool["claimed"] for pool in state["pools"].values())

    async def play(self) -> image_change.Commands:
        """Roll out a new image, then a bad one, and roll it back."""
        feeding = asyncio.create_task(self.feed())
        try:
            await self.demo_seconds(FIRST_LOAD_SECONDS)
            await self.until(self.are("c.proven_at IS NOT NULL", OLD), f"all launch configs have proven {OLD}")
            replaced_at = await self.slipway("pool", "set-image", POOL, NEW)
            await self.until(self.are("c.state <> 'active'", OLD), f"{NEW} is proven, {OLD} drains")
            bad_at = await self.slipway("pool", "set-image", POOL, BAD)
            tripped = self.are("coalesce(w.record->>'state', 'healthy') <> 'healthy'", BAD)
            await self.until(tripped, f"{BAD} is tripped, {NEW} launches what it does not")
            rolled_back_at = await self.slipway("pool", "rollback", POOL, "--reason", f"{BAD} does not boot")
            await self.until(self.are("c.state <> 'active'", BAD), f"{BAD} drains")
            # At a steady demand the machines of the revision before may suffice, so that nothing would be launched.
            burst = {"pool_id": POOL, "count": BURST_TASKS, "duration_seconds": TASK_SECONDS_MEDIAN}
            await self.deployment.call("POST", "simulator", "/tasks", burst)
            await self.until(self.launched_since(rolled_back_at), f"{NEW} is launched for {BURST_TASKS} tasks at once")
        finally:
            feeding.cancel()
        await self.until(self.has_settled, "all tasks are done, and the workers of replaced revisions have left")
        return image_change.Commands(
            old=OLD, new=NEW, bad=BAD, replaced_at=replaced_at, bad_at=bad_at, rolled_back_at=rolled_back_at
        )


def environment(deployment: Deployment) -> dict[str, str]:
    """Variables by which the `slipway` command finds a deployment."""
    urls = {
        f"SLIPWAY_{service.replace('-', '_').upper()}_URL": deployment.url(service)
        for service in ("provisioner", "weight-calculator", "lease-broker")
    }
    return urls | {"SLIPWAY_TOKEN": deployment.token}


async def try_image(supervisor: Supervisor, arguments: ImageArguments) -> int:
    """Run on a new deployment; return the exit code."""
    folder = Path(tempfile.mkdtemp(prefix="slipway-"))
    guard().remove(folder)
    deployment = Deployment(supervisor, folder, speed=arguments.speed, seconds=SECONDS)
    try:
        print("Starting PostgreSQL, Apache Kafka, the simulator and three services …", flush=True)
        began = monotonic_seconds()
        await deployment.start()
        await deployment.apply(declared(deployment))
        await deployment.call("POST", "simulator", "/scenario", scenario(arguments))
        print(
            f"Started in {monotonic_seconds() - began:.1f} s{deployment.java_used}. "
            f"SEED={arguments.seed} SPEED={arguments.speed:g}",
            flush=True,
        )
        db = await asyncpg.connect(deployment.database_url)
        try:
            played = await Play(deployment, db, arguments).play()
        finally:
            await db.close()
        await asyncio.sleep(deployment.settle_seconds)
        found = await evidence.gather(
            ledger_path=deployment.ledger,
            kafka=deployment.kafka,
            prefix=deployment.prefix,
            database_url=deployment.database_url,
            settle_seconds=deployment.settle_seconds,
        )
        return summarise(image_change.judge(found, played), path_check.judge(found))
    except (StartFailed, NotReached, httpx2.HTTPError) as error:
        print(f"The run failed: {error}", file=sys.stderr)
        return 1
    finally:
        keep(folder)
        await supervisor.stop()
        await deployment.remove()
        shutil.rmtree(folder, ignore_errors=True)


def summarise(report: image_change.ImageReport, path: path_check.Report) -> int:
    """Print the figures, the problems and the closing line; return the exit code."""
    for name, ids in report.names.items():
        print(f"  {name}: {', '.join(sorted(ids))}")
    print("  machines created: " + ", ".join(f"{number} with {image}" for image, number in report.machines.items()))
    print(
        f"  under the bad image {report.meanwhile.done} of {report.meanwhile.arrived} tasks were done, "
        f"{report.done_by_fallback} of them by the revision before; at most {report.meanwhile.waiting_max} waited, "
        f"{report.before.waiting_max} before"
    )
    print(f"  {path.line()}")
    problems: Sequence[str] = [*report.problems, *path.problems]
    for problem in problems:
        print(f"  PROBLEM {problem}")
    print(
        f"{'image ok' if not problems else 'image BROKEN'}: {report.machines[BAD]} machines with the bad image, "
        f"at most {BAD_MACHINES_MAX} allowed; tasks interrupted {report.interrupted}, tasks lost {report.lost}"
    )
    return 1 if problems else 0


def main() -> int:
    try:
        arguments = parse_arguments(os.environ)
    except (ValueError, BadFault) as error:
        print(error, file=sys.stderr)
        return 2
    return run(lambda supervisor: try_image(supervisor, arguments))


if __name__ == "__main__":
    sys.exit(main())
