"""The demo (`make demo`): a whole Slipway on this machine, narrated and checked.

Arguments come from the environment: DURATION, PROVIDER, QUEUE, AGENT, SPEED, SEED, FAULTS, DEMAND, PLAIN.
"""

import asyncio
import math
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

import asyncpg
import httpx2
import msgspec
import yaml

from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.process.guard import guard
from slipway_common.declaration.models import Declaration
from slipway_common.declaration.parsing import load
from slipway_local.check import evidence, path_check
from slipway_local.demo import agents, closing, ec2_machines, machine, terraform_machines
from slipway_local.demo.agents import Agents
from slipway_local.demo.deployment import PARTITIONS, Deployment
from slipway_local.demo.ec2_machines import Ec2Machines
from slipway_local.demo.narrate import narrate
from slipway_local.demo.observed import Observed
from slipway_local.demo.redis_queue import RedisQueue
from slipway_local.demo.terraform_machines import TerraformMachines
from slipway_local.ec2.faults import NOTATION as EC2_FAULTS
from slipway_local.servers.child import StartFailed
from slipway_local.servers.supervisor import Supervisor, run
from slipway_simulator import faults
from slipway_simulator.demand import TASK_SIGMA
from slipway_simulator.notation import BadFault, Fault, Notation

DECLARATIONS: Final = {
    "simulated": Path("examples/slipway.yaml"),
    "process": Path("examples/slipway-process.yaml"),
    "aws": Path("examples/slipway-aws.yaml"),
    "terraform": Path("examples/slipway-terraform.yaml"),
}
NOTATIONS: Final[dict[str, Notation[Any]]] = {
    "simulated": faults.NOTATION,
    "process": faults.NOTATION,
    "aws": EC2_FAULTS,
    "terraform": faults.NOTATION,
}
LAST_RUN: Final = Path(".slipway/last-run")
ENVIRONMENT: Final = Path(".slipway/env")
APPLIED: Final = Path(".slipway/slipway.yaml")
DEFAULT_FAULTS: Final = "zone-b:25%-50%"
# At first enough to fill the pool to its maximum and both accounts to their limits, then about half of that.
SIMULATED_DEMAND: Final = {
    "kind": "bursty",
    "rate_per_minute": 26,
    "initial_burst": 110,
    "burst_size": 25,
    "burst_every_seconds": 300,
    "task_seconds_median": 60,
}
TASK_SECONDS: Final = 20.0  # median on agents and machines, in product time
# As much as a few agents can do on two cores in real time, at about one second per task.
PROCESS_DEMAND: Final = {
    "kind": "bursty",
    "rate_per_minute": 7,
    "initial_burst": 10,
    "burst_size": 4,
    "burst_every_seconds": 120,
    "task_seconds_median": TASK_SECONDS,
}
SECONDS_PER_MACHINE: Final = 8.0  # product time between the arrivals of tasks that need a machine each
AGENTS_SPEED_MAX: Final = 40  # real processes take real time: with shorter time-outs they would count as unresponsive
# Idle agents leave after so many product seconds, so that all of them have left by themselves when the run ends.
AGENTS_SECONDS: Final = {"idle_timeout_seconds": 40.0}
AGENTS_REST: Final = 0.3  # share of a run, at its end, without new tasks
# Create calls that began before $1: how many are still open, and how long ago the last one began.
CALLS: Final = """
SELECT count(*) FILTER (WHERE state = 'calling'),
    coalesce(extract(epoch FROM clock_timestamp() - max(started_at))::float8, 'infinity')
FROM provisioner.launch_batch WHERE started_at < $1"""
SETTLE_SECONDS: Final = 120.0  # for a busy machine
UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


class Arguments(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of a demo. `duration_seconds` is real time; 0 runs until Ctrl-C."""

    duration_seconds: float
    provider: str
    queue: str
    agent: tuple[str, ...]
    speed: float
    seed: int
    faults: tuple[Fault, ...]
    demand: str

    @property
    def product_seconds(self) -> float:
        return self.duration_seconds * self.speed


def parse_arguments(environment: Mapping[str, str]) -> Arguments:
    """Read the arguments from the environment; raises ValueError with the cause and the accepted values."""
    text = environment.get("DURATION") or "3m"
    if not (match := re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)):
        raise ValueError(f"DURATION={text}: expected a duration such as 45s, 3m or 1h, or 0 to run until Ctrl-C")
    duration = float(match[1]) * UNITS[match[2]]
    try:
        speed, seed = float(environment.get("SPEED") or 20), int(environment.get("SEED") or 1)
    except ValueError as error:
        given = f"SPEED={environment.get('SPEED', '')} SEED={environment.get('SEED', '')}"
        raise ValueError(f"{given}: SPEED has to be a number such as 20, and SEED an integer") from error
    provider = environment.get("PROVIDER") or "simulated"
    if provider not in DECLARATIONS:
        raise ValueError(f"PROVIDER={provider}: expected one of {', '.join(DECLARATIONS)}")
    if (queue := environment.get("QUEUE", "")) not in ("", "redis"):
        raise ValueError(f"QUEUE={queue}: expected redis, or none for the simulator's own reports")
    agent = tuple(shlex.split(environment.get("AGENT", "")))
    if agent and (provider != "process" or duration):
        raise ValueError(
            "AGENT is a command for processes, with tasks that the demo cannot check: add PROVIDER=process DURATION=0"
        )
    fastest = 1000 if provider == "simulated" else AGENTS_SPEED_MAX
    if not 0 < speed <= fastest:
        raise ValueError(f"SPEED={speed:g}: expected a number above 0 and at most {fastest}")
    if provider in ("process", "terraform") and (environment.get("FAULTS") or "none") != "none":
        raise ValueError(
            f"FAULTS needs a cloud that is simulated, but PROVIDER={provider} launches real processes; drop one of them"
        )
    demand = environment.get("DEMAND", "")
    if demand and not Path(demand).is_file():
        raise ValueError(f"DEMAND={demand}: no such file")
    if demand and (Path(demand).stat().st_size % 8 or not Path(demand).stat().st_size):
        raise ValueError(f"DEMAND={demand}: not a recorded queue of 8-byte records (arrival and length in ms)")
    default = DEFAULT_FAULTS if provider == "simulated" and not demand else "none"
    # In an endless run, percentages refer to one hour of product time.
    product = duration * speed or 3600.0
    parsed = NOTATIONS[provider].parse(environment.get("FAULTS") or default, duration_seconds=product)
    declared = load(DECLARATIONS[provider].read_text())
    images = {config.image for pool in declared.worker_pools or () for config in pool.launch_configs}
    zones = {config.zone for pool in declared.worker_pools or () for config in pool.launch_configs}
    for fault in parsed:
        if (zone := zone_of(fault)) and zone not in zones:
            raise ValueError(f"FAULTS={fault.name}: no zone {zone}; expected one of {', '.join(sorted(zones))}")
        if fault.name == ec2_machines.BAD_IMAGE and fault.arg not in images:
            raise ValueError(f"FAULTS={fault.name}: no image {fault.arg}; expected one of {', '.join(sorted(images))}")
    return Arguments(
        duration_seconds=duration,
        provider=provider,
        queue=queue,
        agent=agent,
        speed=speed,
        seed=seed,
        faults=parsed,
        demand=demand,
    )


def zone_of(fault: Fault) -> str:
    """Zone that a fault makes unavailable; empty for other faults."""
    return fault.name if fault.name.startswith("zone-") else fault.arg if fault.name == "zone" else ""


def scenario(arguments: Arguments) -> dict[str, Any]:
    """Scenario for the simulator. Arrivals end with the run, so that its last launches can settle."""
    until = arguments.product_seconds or None
    source: dict[str, Any] = SIMULATED_DEMAND | {"until_seconds": until}
    if arguments.provider == "aws" and until:
        source = {"kind": "arrivals", "arrivals": machine_tasks(arguments.seed, until * (1 - AGENTS_REST))}
    elif arguments.provider != "simulated":
        source = PROCESS_DEMAND | {"until_seconds": until and until * (1 - AGENTS_REST)}
    if arguments.demand:
        source = {"kind": "trace", "path": str(Path(arguments.demand).resolve()), "until_seconds": until}
    return {
        "seed": arguments.seed,
        "speed": arguments.speed,
        "pools": {} if arguments.agent else {pool_of(arguments): source},
        "accounts": {"*": {}},
        "visibility_seconds": 5,
        "reports": not arguments.queue,
        "faults": msgspec.to_builtins(arguments.faults if arguments.provider == "simulated" else ()),
    }


def machine_tasks(seed: int, seconds: float) -> list[tuple[float, float]]:
    """Tasks that arrive within so many product seconds, each for a machine of its own: as many with every seed, a third
    of them at once."""
    rng = Random(seed)  # noqa: S311 (a demo is repeatable)
    count = math.ceil(seconds / SECONDS_PER_MACHINE)
    times = [0.0 if number < count / 3 else rng.uniform(0.0, seconds) for number in range(count)]
    return [(at, rng.lognormvariate(math.log(TASK_SECONDS), TASK_SIGMA)) for at in times]


async def settle(deployment: Deployment) -> None:
    """Wait until every create call made so far has an outcome and the instance reaper has checked its instances twice.

    Raises TimeoutError if that takes more than SETTLE_SECONDS beyond the time that it needs."""
    deadline = monotonic_seconds() + 2 * deployment.settle_seconds + SETTLE_SECONDS
    db = await asyncpg.connect(deployment.database_url)
    try:
        ended = await db.fetchval("SELECT clock_timestamp()")
        base: dict[str, int] = {}
        while monotonic_seconds() < deadline:
            calling, last_seconds = await db.fetchrow(CALLS, ended)
            if not calling and last_seconds > deployment.call_settle_seconds:
                passes = {r["id"]: r["passes"] for r in await db.fetch("SELECT id, passes FROM provisioner.account")}
                base = base or passes
                # The first pass that is counted may have begun earlier.
                if all(passes[account] >= first + 3 for account, first in base.items()):
                    return
            await asyncio.sleep(0.05)
        raise TimeoutError("create calls or the instance reaper did not settle in time")
    finally:
        await db.close()


async def demo(supervisor: Supervisor, arguments: Arguments) -> int:
    """Measure the machine, start the deployment, play the scenario, let it settle and check it. Returns the exit
    code."""
    arguments = await measured(arguments, os.environ)
    folder = Path(tempfile.mkdtemp(prefix="slipway-"))
    guard().remove(folder)
    deployment = Deployment(
        supervisor,
        folder,
        speed=arguments.speed,
        seconds=product_seconds(arguments),
        environment=environments(arguments, folder),
    )
    machines: Observed | None = None
    queue = RedisQueue(deployment, pool_of(arguments)) if arguments.queue else None
    narration: asyncio.Task[None] | None = None
    environment = ""
    try:
        print("Starting PostgreSQL, Apache Kafka, the simulator and three services …", flush=True)
        began = monotonic_seconds()
        machines = observed(deployment, arguments)
        await deployment.start(*([machines.start(supervisor)] if machines is not None else []))
        declared = deployment.declaration(DECLARATIONS[arguments.provider])
        if machines is not None:
            declared = machines.declared(declared)
        await deployment.apply(declared)
        if machines is not None:
            await machines.play()
        if queue is not None:
            await queue.start(supervisor)
        started = await deployment.call("POST", "simulator", "/scenario", scenario(arguments))
        environment = write_environment(deployment, declared)
        print(f"Started in {monotonic_seconds() - began:.1f} s{deployment.java_used}.", flush=True)
        print(plan(arguments), flush=True)
        died = asyncio.create_task(supervisor.died())
        narration = asyncio.create_task(
            narrate(deployment, started["started_at"], arguments.seed, arguments.duration_seconds)
        )
        await asyncio.wait({died, narration}, return_when=asyncio.FIRST_COMPLETED)
        if died.done():
            await stop_narration(narration)
            name = died.result()
            print(f"{name} exited unexpectedly. The end of its log:{supervisor[name].log_tail()}", file=sys.stderr)
            return 1
        await narration
        print("Waiting for open create calls, and for two passes of the instance reaper …", flush=True)
        await asyncio.gather(settle(deployment), *([machines.leave()] if machines is not None else []))
        died.cancel()
        found = await evidence.gather(
            ledger_path=deployment.ledger,
            kafka=deployment.kafka,
            prefix=deployment.prefix,
            database_url=deployment.database_url,
            settle_seconds=deployment.settle_seconds,
        )
        if machines is not None:
            await machines.count()
            found = machines.merged(found)
        report = path_check.judge(found)
        if machines is not None:
            report = msgspec.structs.replace(report, problems=[*report.problems, *machines.problems(found)])
        if queue is not None:
            report = msgspec.structs.replace(report, problems=[*report.problems, *queue.problems(found)])
        print(
            *closing.screen(
                found,
                report,
                pool=pool_of(arguments),
                played=played(arguments),
                faults=[fault.name for fault in arguments.faults],
                figures=[each.summary(found) for each in (machines, queue) if each is not None],
            ),
            sep="\n",
            flush=True,
        )
        return 1 if report.problems else 0
    except (StartFailed, httpx2.HTTPError, TimeoutError) as error:
        print(f"The demo failed: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        await stop_narration(narration)
        print("\nStopping …", flush=True)
        raise
    finally:
        await stop_narration(narration)
        if queue is not None:
            queue.stop()
        if environment and ENVIRONMENT.exists() and ENVIRONMENT.read_text() == environment:
            ENVIRONMENT.unlink()
            APPLIED.unlink(missing_ok=True)
        keep(folder)
        await supervisor.stop()
        await deployment.remove()
        shutil.rmtree(folder, ignore_errors=True)
        print(f"Stopped. Logs and the cloud's ledger are in {LAST_RUN}", file=sys.stderr, flush=True)
        if machines is not None and (left := machines.left_over()):
            print(left, flush=True)


def environments(arguments: Arguments, folder: Path) -> dict[str, dict[str, str]]:
    """Variables of the services that their provider needs, by service."""
    match arguments.provider:
        case "aws":
            return {"provisioner": dict(ec2_machines.CREDENTIALS)}
        case "terraform":
            return {"provisioner": terraform_machines.environment(folder)}
        case _:
            return {}


def product_seconds(arguments: Arguments) -> dict[str, float]:
    """Product times that differ from the usual ones."""
    if arguments.provider == "simulated":
        return {}
    breaks = arguments.provider == "aws" and any(fault.name == ec2_machines.BAD_IMAGE for fault in arguments.faults)
    return AGENTS_SECONDS | (ec2_machines.BAD_IMAGE_SECONDS if breaks else {})


def observed(deployment: Deployment, arguments: Arguments) -> Observed | None:
    """Observation of a run with real processes; None for simulated machines."""
    match arguments.provider:
        case "process":
            return Agents(deployment, arguments.agent)
        case "aws":
            return Ec2Machines(deployment, seed=arguments.seed, faults=arguments.faults)
        case "terraform":
            return TerraformMachines(deployment)
        case _:
            return None


def plan(arguments: Arguments) -> str:
    """One line on the length of the run and on the clock of all times that are printed."""
    text = f"Playing {played(arguments)}" if arguments.duration_seconds else f"Running until Ctrl-C, {pace(arguments)}"
    return f"{text}. All times are real time."


def played(arguments: Arguments) -> str:
    """Length and speed of a run that ends."""
    minutes, real = arguments.product_seconds / 60, arguments.duration_seconds
    wall = f"{real / 60:g} min" if real >= 60 else f"{real:g} s"
    return f"{minutes:g} min of demand in {wall}, {pace(arguments)}"


def pace(arguments: Arguments) -> str:
    return f"SPEED={arguments.speed:g} SEED={arguments.seed}"


async def stop_narration(narration: asyncio.Task[None] | None) -> None:
    """Cancel the narration and wait until it has restored the terminal, so that it can be printed on."""
    if narration is not None:
        narration.cancel()
        await asyncio.wait({narration}, timeout=5)


def write_environment(deployment: Deployment, declared: Declaration) -> str:
    """Write .slipway/env, the addresses of this run for a shell, and .slipway/slipway.yaml, its declaration.

    Both are removed when the demo ends. The variables are not those that choose a server, so a shell that has sourced
    them can start another demo. Returns the text of .slipway/env. A reader sees the file whole or not at all."""
    ENVIRONMENT.parent.mkdir(parents=True, exist_ok=True)
    lines = {
        "KAFKA": deployment.kafka,
        "TOPIC_PREFIX": deployment.prefix,
        "PARTITIONS": str(PARTITIONS),
        "SLIPWAY_PROVISIONER_URL": deployment.url("provisioner"),
        "SLIPWAY_WEIGHT_CALCULATOR_URL": deployment.url("weight-calculator"),
        "SLIPWAY_LEASE_BROKER_URL": deployment.url("lease-broker"),
        "SLIPWAY_TOKEN": deployment.token,
        "TOKENS": str(deployment.tokens_file),
    }
    replace(APPLIED, yaml.safe_dump(declared.model_dump(mode="json"), sort_keys=False))
    text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in lines.items())
    replace(ENVIRONMENT, text)
    return text


def replace(path: Path, text: str) -> None:
    """Write a file that only its owner may read, by renaming a finished one over it."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.touch(0o600)
    unfinished.write_text(text)
    unfinished.replace(path)


def keep(folder: Path) -> None:
    """Copy the logs and the ledger of this run to .slipway/last-run."""
    shutil.rmtree(LAST_RUN, ignore_errors=True)
    LAST_RUN.mkdir(parents=True)
    for path in folder.glob("*.*l*"):
        shutil.copy(path, LAST_RUN)
    if (logs := folder / agents.LOGS).is_dir():
        shutil.copytree(logs, LAST_RUN / agents.LOGS)


def pool_of(arguments: Arguments) -> str:
    """The pool of the demo's tasks."""
    return "linux" if arguments.provider == "simulated" else "agents"


async def measured(arguments: Arguments, environment: Mapping[str, str]) -> Arguments:
    """The arguments with a speed that this machine can play now; says so where it is lower than the one asked for."""
    speed = machine.bounded_speed(arguments.speed, await machine.rounds_per_second())
    if speed == arguments.speed:
        return arguments
    print(f"SPEED lowered from {arguments.speed:g} to {speed:g}, which this machine has room for now.", flush=True)
    return parse_arguments({**environment, "SPEED": f"{speed:g}"})


def main() -> int:
    if os.environ.get("FAULTS") == "help":
        print("FAULTS=none, or a comma-separated list of these; WINDOW is for example 4m-14m, 90s- or 25%-50%:")
        for kind in dict.fromkeys(NOTATIONS[os.environ.get("PROVIDER") or "simulated"].kinds.values()):
            print(f"  {kind.usage}\n      {kind.meaning}")
        return 0
    try:
        arguments = parse_arguments(os.environ)
    except (ValueError, BadFault) as error:
        print(error, file=sys.stderr)
        return 2
    return run(lambda supervisor: demo(supervisor, arguments))
