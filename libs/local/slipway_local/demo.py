"""`make demo`: the whole path on this machine, told a line a second, judged at its end, and beside it a simpler rule.

Everything it is told stands in the environment: DURATION, PROVIDER, SPEED, SEED, FAULTS, DEMAND, PLAIN.
"""

import asyncio
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from math import isnan
from pathlib import Path
from typing import Any, Final

import asyncpg
import httpx2
import msgspec
import psutil
import yaml

from slipway_common.clock import monotonic_seconds, utc_now
from slipway_common.declaration import Declaration, load
from slipway_local import agents, check, evidence, recovery, rfc191
from slipway_local.agents import Agents
from slipway_local.child import StartFailed
from slipway_local.deployment import PARTITIONS, Deployment
from slipway_local.guard import guard
from slipway_local.narrate import narrate
from slipway_local.supervisor import Supervisor, run
from slipway_simulator import faults
from slipway_simulator.facts import InstanceCreated
from slipway_simulator.faults import BadFault, Fault

DECLARATIONS: Final = {"simulated": Path("examples/slipway.yaml"), "process": Path("examples/slipway-process.yaml")}
KEPT: Final = Path(".slipway/last-run")
ENVIRONMENT: Final = Path(".slipway/env")
APPLIED: Final = Path(".slipway/slipway.yaml")
DEFAULT_FAULTS: Final = "zone-b:25%-50%"
# Enough to fill the pool to its maximum and both accounts to their limits, then about half of that.
DEMAND: Final = {
    "kind": "bursty",
    "rate_per_minute": 26,
    "initial_burst": 110,
    "burst_size": 25,
    "burst_every_seconds": 300,
    "task_seconds_median": 60,
}
# What a few agents on two cores do in real time, each task about a second of it.
DEMAND_OF_AGENTS: Final = {
    "kind": "bursty",
    "rate_per_minute": 7,
    "initial_burst": 10,
    "burst_size": 4,
    "burst_every_seconds": 120,
    "task_seconds_median": 20,
}
AGENTS_SPEED_MAX: Final = 40  # agents are as fast as they are: shorter times would find fault with them
# Agents that are idle leave within these product seconds, so that the run ends with all of them gone by themselves.
AGENTS_SECONDS: Final = {"idle_timeout_seconds": 40.0}
AGENTS_REST: Final = 0.3  # of a run, without new tasks, at its end
LAUNCHES_PER_MINUTE: Final = 24
LOST_MIN: Final = 10
BUSY: Final = 0.9  # a machine that is busier than this holds up the demo, and how fast it was says nothing of Slipway
# Of those made until then: how many are under way, and how long ago the last one began.
CALLS: Final = """
SELECT count(*) FILTER (WHERE state = 'calling'),
    coalesce(extract(epoch FROM clock_timestamp() - max(started_at))::float8, 'infinity')
FROM provisioner.launch_batch WHERE started_at < $1"""
UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the person asked for. `duration_seconds` is wall time; 0 runs until Ctrl-C. A speed that was not
    `chosen_speed` may be more than the machine can follow."""

    duration_seconds: float
    provider: str
    speed: float
    seed: int
    faults: tuple[Fault, ...]
    demand: str
    chosen_speed: bool = True

    @property
    def product_seconds(self) -> float:
        return self.duration_seconds * self.speed


def wish(environment: Mapping[str, str]) -> Wish:
    """Read the arguments; raises ValueError with what was wrong and what to write."""
    text = environment.get("DURATION") or "3m"
    if not (match := re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)):
        raise ValueError(f"DURATION={text}: write seconds, minutes or hours, such as 45s, 3m, or 0 to run until Ctrl-C")
    duration = float(match[1]) * UNITS[match[2]]
    try:
        speed, seed = float(environment.get("SPEED") or 20), int(environment.get("SEED") or 1)
    except ValueError as error:
        given = f"SPEED={environment.get('SPEED', '')} SEED={environment.get('SEED', '')}"
        raise ValueError(f"{given}: SPEED is a number such as 20, SEED a whole number") from error
    provider = environment.get("PROVIDER") or "simulated"
    if provider not in DECLARATIONS:
        raise ValueError(f"PROVIDER={provider}: there is {', '.join(DECLARATIONS)}")
    fastest = AGENTS_SPEED_MAX if provider == "process" else 1000
    if not 0 < speed <= fastest:
        raise ValueError(f"SPEED={speed:g}: above 0 and at most {fastest}")
    if provider == "process" and (environment.get("FAULTS") or "none") != "none":
        raise ValueError("FAULTS are of simulated clouds, and PROVIDER=process launches real processes; drop one")
    demand = environment.get("DEMAND", "")
    if demand and not Path(demand).is_file():
        raise ValueError(f"DEMAND={demand}: no such file")
    if demand and (Path(demand).stat().st_size % 8 or not Path(demand).stat().st_size):
        raise ValueError(f"DEMAND={demand}: not a recorded queue of 8 bytes a task: arrival and length in ms")
    default = "none" if demand or provider == "process" else DEFAULT_FAULTS
    # Percentages of an endless run are taken of an hour of product time.
    product = duration * speed or 3600.0
    parsed = faults.parse(environment.get("FAULTS") or default, duration_seconds=product)
    zones = {c.zone for pool in load(DECLARATIONS[provider].read_text()).worker_pools for c in pool.launch_configs}
    for fault in parsed:
        if (zone := zone_of(fault)) and zone not in zones:
            raise ValueError(f"FAULTS={fault.name}: no zone {zone}; there is {', '.join(sorted(zones))}")
    return Wish(
        duration_seconds=duration,
        provider=provider,
        speed=speed,
        seed=seed,
        faults=parsed,
        demand=demand,
        chosen_speed=bool(environment.get("SPEED")),
    )


def zone_of(fault: Fault) -> str:
    """The zone that a fault takes out; empty for other faults."""
    return fault.name if fault.name.startswith("zone-") else fault.arg if fault.name == "zone" else ""


def scenario(asked: Wish) -> dict[str, Any]:
    """The simulator's part. Arrivals end with the run, so that its last launches can settle."""
    until = asked.product_seconds or None
    source: dict[str, Any] = DEMAND | {"until_seconds": until}
    if asked.provider == "process":
        source = DEMAND_OF_AGENTS | {"until_seconds": until and until * (1 - AGENTS_REST)}
    if asked.demand:
        source = {"kind": "trace", "path": str(Path(asked.demand).resolve()), "until_seconds": until}
    return {
        "seed": asked.seed,
        "speed": asked.speed,
        "pools": {"agents" if asked.provider == "process" else "linux": source},
        "accounts": {"*": {}},
        "visibility_seconds": 5,
        "faults": msgspec.to_builtins(asked.faults),
    }


async def settle(deployment: Deployment) -> None:
    """Wait until every call made so far has an outcome, the reaper may judge what it created, and has passed twice."""
    deadline = monotonic_seconds() + 40
    db = await asyncpg.connect(deployment.database_url)
    try:
        ended = await db.fetchval("SELECT clock_timestamp()")
        base: dict[str, int] = {}
        while monotonic_seconds() < deadline:
            calling, last_seconds = await db.fetchrow(CALLS, ended)
            if not calling and last_seconds > deployment.call_settle_seconds:
                passes = {r["id"]: r["passes"] for r in await db.fetch("SELECT id, passes FROM provisioner.account")}
                base = base or passes
                # The first one counted may have begun before.
                if all(passes[account] >= first + 3 for account, first in base.items()):
                    return
            await asyncio.sleep(0.05)
        raise TimeoutError("calls or reaper did not settle in 40 s")
    finally:
        await db.close()


async def demo(supervisor: Supervisor, asked: Wish) -> int:
    """Start, play, settle, judge. Returns the exit code."""
    folder = Path(tempfile.mkdtemp(prefix="slipway-"))
    guard().remove(folder)
    real = asked.provider == "process"
    deployment = Deployment(supervisor, folder, speed=asked.speed, seconds=AGENTS_SECONDS if real else {})
    hired = Agents(deployment) if real else None
    told: asyncio.Task[None] | None = None
    mine = ""
    try:
        print("starting PostgreSQL, Apache Kafka, the simulator and three services …", flush=True)
        began, began_at = monotonic_seconds(), utc_now().timestamp()
        await deployment.start()
        declared = deployment.declaration(DECLARATIONS[asked.provider])
        if hired is not None:
            declared = hired.declared(declared)
            hired.watch()
        await deployment.apply(declared)
        started = await deployment.call("POST", "simulator", "/scenario", scenario(asked))
        mine = tell_where(deployment, declared)
        took = f"started in {monotonic_seconds() - began:.1f} s{deployment.java_used}"
        print(f"{took}; SEED={asked.seed} SPEED={asked.speed:g}", flush=True)
        died = asyncio.create_task(supervisor.died())
        psutil.cpu_percent()  # from now on
        told = asyncio.create_task(narrate(deployment, started["started_at"], asked.seed, asked.duration_seconds))
        await asyncio.wait({died, told}, return_when=asyncio.FIRST_COMPLETED)
        if died.done():
            await ended(told)
            print(f"{died.result()} has died:{supervisor[died.result()].log_tail()}", file=sys.stderr)
            return 1
        await told
        busy = psutil.cpu_percent() / 100
        print("settling: calls under way end, the reaper passes twice …", flush=True)
        await asyncio.gather(settle(deployment), *([hired.leave()] if hired is not None else []))
        died.cancel()
        found = await evidence.gather(
            ledger_path=deployment.ledger,
            kafka=deployment.kafka,
            prefix=deployment.prefix,
            database_url=deployment.database_url,
            settle_seconds=deployment.settle_seconds,
        )
        if hired is not None:
            hired.count()
            found = hired.merged(found)
        created = [fact.at for fact in found.ledger if isinstance(fact, InstanceCreated)]
        if created:
            print(f"\n  first launch {min(created) - began_at:.1f} s after the start")
        code = summarise(asked, found, started["started_at"], hired, busy=busy)
        print(comparison(asked, found, declared, started["started_at"], busy=busy))
        return code
    except (StartFailed, httpx2.HTTPError) as error:
        print(f"could not go on: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        await ended(told)
        print("\nstopping …", flush=True)
        raise
    finally:
        await ended(told)
        if mine and ENVIRONMENT.exists() and ENVIRONMENT.read_text() == mine:
            ENVIRONMENT.unlink()
            APPLIED.unlink(missing_ok=True)
        keep(folder)
        await supervisor.stop()
        await deployment.remove()
        shutil.rmtree(folder, ignore_errors=True)
        print(f"stopped; logs and ledger are in {KEPT}", file=sys.stderr, flush=True)
        if hired is not None and hired.left is not None:
            print(f"agents left {hired.left}", flush=True)


async def ended(told: asyncio.Task[None] | None) -> None:
    """The terminal is as it was before what follows is printed on it."""
    if told is not None:
        told.cancel()
        await asyncio.wait({told}, timeout=5)


def tell_where(deployment: Deployment, declared: Declaration) -> str:
    """How other commands reach this run, for `. .slipway/env`, and what it declares; both gone when it ends. The names
    are not those that choose a server, so a shell that has read them can start another demo."""
    ENVIRONMENT.parent.mkdir(parents=True, exist_ok=True)
    ENVIRONMENT.touch(0o600)
    lines = {
        "KAFKA": deployment.kafka,
        "TOPIC_PREFIX": deployment.prefix,
        "PARTITIONS": str(PARTITIONS),
        "SLIPWAY_PROVISIONER_URL": deployment.url("provisioner"),
        "SLIPWAY_WEIGHT_CALCULATOR_URL": deployment.url("weight-calculator"),
        "SLIPWAY_LEASE_BROKER_URL": deployment.url("lease-broker"),
        "SLIPWAY_TOKEN": deployment.token,
    }
    APPLIED.write_text(yaml.safe_dump(declared.model_dump(mode="json"), sort_keys=False))
    text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in lines.items())
    ENVIRONMENT.write_text(text)
    return text


def keep(folder: Path) -> None:
    """Logs and ledger of the last run, for looking into it."""
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True)
    for path in folder.glob("*.*l*"):
        shutil.copy(path, KEPT)
    if (logs := folder / agents.LOGS).is_dir():
        shutil.copytree(logs, KEPT / agents.LOGS)


def shortcomings(asked: Wish, report: check.Report) -> list[str]:
    """What a run of this kind must have shown for its verdict to mean something."""
    problems = []
    minutes = asked.product_seconds / 60
    hampered = asked.provider != "simulated" or any(not zone_of(fault) for fault in asked.faults)
    if not asked.demand and not hampered and minutes >= 10:
        if report.launched < LAUNCHES_PER_MINUTE * minutes:
            problems.append(f"{report.launched / minutes:.1f} launches per demo minute; at least {LAUNCHES_PER_MINUTE}")
        for kind in ("account", "serving"):
            if not any(peak == cap for name, (peak, cap) in report.peaks.items() if name.startswith(kind)):
                problems.append(f"no limit of kind {kind} was reached: that none was exceeded shows nothing")
    lossy = any(f.name == "lost-reply" and f.until_seconds is None and float(f.arg or 0.3) >= 0.2 for f in asked.faults)
    if lossy and minutes >= 5 and (report.lost_replies < LOST_MIN or report.looked_up < LOST_MIN):
        problems.append(f"{report.lost_replies} lost replies, {report.looked_up} looked up; at least {LOST_MIN} each")
    return problems


def summarise(asked: Wish, found: evidence.Evidence, started_at: float, hired: Agents | None, *, busy: float) -> int:
    """The summary, the verdicts, then the path's own line. `busy`: the share of the machine's time in use."""
    report = check.judge(found)
    problems = list(report.problems)
    if hired is not None:
        print(f"  {hired.summary(found)}")
        problems += hired.shortcomings(found, seconds=0.0 if asked.demand else asked.duration_seconds)
    for name, (peak, cap) in report.peaks.items():
        print(f"  {name}: at most {peak} at once, {cap} allowed{'' if peak < cap else ' (binding)'}")
    print(f"  lost_replies={report.lost_replies} looked_up={report.looked_up}")
    minutes = asked.product_seconds / 60
    if minutes:
        print(f"  {report.launched / minutes:.1f} launches per demo minute over {minutes:.0f} minutes")
    short = shortcomings(asked, report)
    if busy > BUSY and not asked.chosen_speed:
        for text in short:
            print(f"  NOTE {text}: the machine was {busy:.0%} busy; SPEED={asked.speed / 2:g} asks half as much of it")
    else:
        problems += short
    by_topic, by_ledger = check.attempts(found)
    for fault in asked.faults:
        zone = zone_of(fault)
        if fault.until_seconds is None or not zone:
            continue
        outage = recovery.Outage(zone, fault.from_seconds or 0.0, fault.until_seconds, asked.product_seconds)
        for source, attempts in (("topics", by_topic), ("ledger", by_ledger)):
            product = [((at - started_at) * asked.speed, zone) for at, zone in attempts]
            seen = recovery.verdict(product, outage)
            back = "not seen" if seen.back_after_seconds is None else f"after {seen.back_after_seconds / 60:.1f} min"
            before, out = share(seen.before), share(seen.out)
            print(f"  {zone} by {source}: share {before} before, {out} while out, 0.20 again {back}")
            problems += seen.problems
    for problem in problems:
        print(f"  PROBLEM {problem}")
    print(msgspec.structs.replace(report, problems=problems).line())
    return 1 if problems else 0


def comparison(asked: Wish, found: evidence.Evidence, declared: Declaration, started_at: float, *, busy: float) -> str:
    """What the launches of this run came to, beside those of a simpler rule. Judges nothing. `busy`: the share of the
    machine's time in use."""
    if asked.provider != "simulated":
        return "waste: not compared with RFC 191's rule, which could not be played on real processes"
    told = rfc191.compared(found.ledger, declared, until=started_at + asked.duration_seconds)
    if busy > BUSY:
        told += f"\n  NOTE the machine was {busy:.0%} busy: it held up Slipway, and not the rule, which is computed"
    return told


def share(value: float) -> str:
    """A run may be too short for any launch to fall into a period."""
    return "unknown" if isnan(value) else f"{value:.3f}"


def main() -> int:
    if os.environ.get("FAULTS") == "help":
        print("FAULTS=none, or some of these, separated by commas; WINDOW is 4m-14m, 90s- or 25%-50%:")
        for kind in dict.fromkeys(faults.FAULTS.values()):
            print(f"  {kind.usage}\n      {kind.meaning}")
        return 0
    try:
        asked = wish(os.environ)
    except (ValueError, BadFault) as error:
        print(error, file=sys.stderr)
        return 2
    return run(lambda supervisor: demo(supervisor, asked))


if __name__ == "__main__":
    sys.exit(main())
