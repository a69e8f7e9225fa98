"""`make demo`: the whole path on this machine, told a line a second, and judged at its end.

Everything it is told stands in the environment: DURATION, SPEED, SEED, FAULTS, DEMAND.
"""

import asyncio
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import asyncpg
import msgspec

from slipway_common.clock import monotonic_seconds
from slipway_local import check, evidence, recovery
from slipway_local.child import StartFailed
from slipway_local.deployment import Deployment
from slipway_local.guard import guard
from slipway_local.supervisor import Supervisor, run
from slipway_simulator import faults
from slipway_simulator.faults import BadFault, Fault

DECLARATION: Final = Path("examples/slipway.yaml")
KEPT: Final = Path(".slipway/last-run")
ENVIRONMENT: Final = Path(".slipway/env")
DEFAULT_FAULTS: Final = "zone-b:25%-50%"
# Enough to fill the pool to its maximum and both accounts to their limits, then about half of that.
DEMAND: Final = {
    "kind": "bursty", "rate_per_minute": 30, "initial_burst": 110, "burst_size": 25, "burst_every_seconds": 300,
    "task_seconds_median": 60,
}  # fmt: skip
UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the person asked for. `duration_seconds` is wall time; 0 runs until Ctrl-C."""

    duration_seconds: float
    speed: float
    seed: int
    faults: tuple[Fault, ...]
    demand: str

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
        raise ValueError(f"SPEED and SEED are numbers: {error}") from error
    if not 0 < speed <= 1000:
        raise ValueError(f"SPEED={speed:g}: above 0 and at most 1000")
    demand = environment.get("DEMAND", "")
    if demand and not Path(demand).is_file():
        raise ValueError(f"DEMAND={demand}: no such file")
    default = "none" if demand else DEFAULT_FAULTS
    # Percentages of an endless run are taken of an hour of product time.
    product = duration * speed or 3600.0
    parsed = faults.parse(environment.get("FAULTS") or default, duration_seconds=product)
    return Wish(duration_seconds=duration, speed=speed, seed=seed, faults=parsed, demand=demand)


def scenario(asked: Wish) -> dict[str, Any]:
    """The simulator's part. Arrivals end with the run, so that its last launches can settle."""
    until = asked.product_seconds or None
    source: dict[str, Any] = DEMAND | {"until_seconds": until}
    if asked.demand:
        source = {"kind": "trace", "path": str(Path(asked.demand).resolve()), "until_seconds": until}
    return {
        "seed": asked.seed,
        "speed": asked.speed,
        "pools": {"linux": source},
        "accounts": {"*": {}},
        "visibility_seconds": 5,
        "faults": msgspec.to_builtins(asked.faults),
    }


class Narrator:
    """Says what changed since the last look. Plain lines, for a terminal or a pipe."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self.circuits: dict[str, str] = {}
        self.faults: list[Any] = []
        self.launches = 0

    def tell(self, pools: list[Any], configs: list[Any], state: Any) -> None:
        minute = state["product_seconds"] / 60
        for zone, seen in state["zones"].items():
            mark = f"{zone} out={seen['out']}"
            if seen["out"] and mark not in self.faults:
                print(f"{minute:6.1f}m  ** the cloud: {zone} has no capacity", flush=True)
                self.faults = [f for f in self.faults if not str(f).startswith(zone)] + [mark]
            elif not seen["out"] and f"{zone} out=True" in self.faults:
                print(f"{minute:6.1f}m  ** the cloud: {zone} has capacity again", flush=True)
                self.faults.remove(f"{zone} out=True")
        for config in configs:
            before = self.circuits.get(config["id"], "open")
            if config["circuit"] != before:
                self.circuits[config["id"]] = config["circuit"]
                print(f"{minute:6.1f}m  ** {self._changed(config)}", flush=True)
        print(f"{minute:6.1f}m  {self._line(pools, configs, state)}", flush=True)

    def _changed(self, config: Any) -> str:
        text = f"{config['id']} {config['circuit']}: {config['reason']}"
        if config["circuit"] == "closed" and config["next_probe_at"]:
            left = (datetime.fromisoformat(config["next_probe_at"]) - datetime.now(UTC)).total_seconds()  # noqa: TID251
            text += f", next probe {max(0.0, left) * self.speed:.0f} s"
        return text

    def _line(self, pools: list[Any], configs: list[Any], state: Any) -> str:
        created = state["instances"]["launched"]
        per_minute = (created - self.launches) / self.speed * 60
        self.launches = created
        total = sum(config["weight"] or 0 for config in configs if config["circuit"] == "open") or 1.0
        shares = "  ".join(
            f"{config['id']} {(config['weight'] or 0) / total:4.0%}"
            if config["circuit"] == "open"
            else f"{config['id']} closed"
            for config in configs
        )
        pool = "  ".join(
            f"{p['id']}: {p['pending']:4d} waiting {p['claimed']:4d} running "
            f"{p['serving']:4d}/{p['wanted'] or 0} workers"
            for p in pools
        )
        return f"{pool}  {per_minute:4.0f} launches/min  {shares}"


async def narrate(deployment: Deployment, until_seconds: float) -> None:
    """A line a second until the time is up (0: for ever)."""
    narrator = Narrator(deployment.speed)
    began = monotonic_seconds()
    second = 0
    while not until_seconds or monotonic_seconds() - began < until_seconds:
        second += 1
        await asyncio.sleep(max(0.0, min(began + second, began + (until_seconds or 1e9)) - monotonic_seconds()))
        try:
            pools, configs, state = await asyncio.gather(
                deployment.call("GET", "provisioner", "/pools"),
                deployment.call("GET", "provisioner", "/launch-configs"),
                deployment.call("GET", "simulator", "/state"),
            )
        except Exception as error:
            print(f"         (cannot look: {error})", flush=True)
            continue
        narrator.tell(pools["items"], configs["items"], state)


async def settle(deployment: Deployment) -> None:
    """Wait until every call made so far has an outcome, the reaper may judge what it created, and has passed twice."""
    deadline = monotonic_seconds() + 40
    began = monotonic_seconds()
    db = await asyncpg.connect(deployment.database_url)
    try:
        ended = await db.fetchval("SELECT clock_timestamp()")
        base: dict[str, int] = {}
        while monotonic_seconds() < deadline:
            calling = await db.fetchval(
                "SELECT count(*) FROM provisioner.launch_batch WHERE state = 'calling' AND started_at < $1", ended
            )
            if not calling and monotonic_seconds() - began > deployment.call_settle_seconds:
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
    deployment = Deployment(supervisor, folder, speed=asked.speed, seconds={})
    try:
        print("starting PostgreSQL, Apache Kafka, the simulator and three services …", flush=True)
        began = monotonic_seconds()
        await deployment.start()
        await deployment.apply(deployment.declaration(DECLARATION))
        started = await deployment.call("POST", "simulator", "/scenario", scenario(asked))
        tell_where(deployment)
        print(f"started in {monotonic_seconds() - began:.1f} s; SEED={asked.seed} SPEED={asked.speed:g}", flush=True)
        died = asyncio.create_task(supervisor.died())
        told = asyncio.create_task(narrate(deployment, asked.duration_seconds))
        await asyncio.wait({died, told}, return_when=asyncio.FIRST_COMPLETED)
        if died.done():
            told.cancel()
            print(f"{died.result()} has died:{supervisor[died.result()].log_tail()}", file=sys.stderr)
            return 1
        await told
        print("settling: calls under way end, the reaper passes twice …", flush=True)
        await settle(deployment)
        died.cancel()
        found = await evidence.gather(
            ledger_path=deployment.ledger, kafka=deployment.kafka, prefix=deployment.prefix,
            database_url=deployment.database_url, settle_seconds=deployment.settle_seconds,
        )  # fmt: skip
        return summarise(asked, found, started["started_at"])
    except StartFailed as error:
        print(f"could not start: {error}", file=sys.stderr)
        return 1
    finally:
        keep(folder)
        ENVIRONMENT.unlink(missing_ok=True)
        await supervisor.stop()
        await deployment.remove()
        shutil.rmtree(folder, ignore_errors=True)


def tell_where(deployment: Deployment) -> None:
    """How other commands reach this run, for `. .slipway/env`; gone when it ends."""
    ENVIRONMENT.parent.mkdir(parents=True, exist_ok=True)
    ENVIRONMENT.touch(0o600)
    lines = {
        "SLIPWAY_KAFKA": deployment.kafka,
        "SLIPWAY_TOPIC_PREFIX": deployment.prefix,
        "SLIPWAY_PROVISIONER_URL": deployment.url("provisioner"),
        "SLIPWAY_WEIGHT_CALCULATOR_URL": deployment.url("weight-calculator"),
        "SLIPWAY_LEASE_BROKER_URL": deployment.url("lease-broker"),
        "SLIPWAY_TOKEN": deployment.token,
    }
    ENVIRONMENT.write_text("".join(f"export {name}={shlex.quote(value)}\n" for name, value in lines.items()))


def keep(folder: Path) -> None:
    """Logs and ledger of the last run, for looking into it."""
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True)
    for path in folder.glob("*.*l*"):
        shutil.copy(path, KEPT)


def summarise(asked: Wish, found: evidence.Evidence, started_at: float) -> int:
    """The summary, the verdicts, and last the path's own line."""
    report = check.judge(found)
    problems = list(report.problems)
    print()
    for name, (peak, cap) in report.peaks.items():
        print(f"  {name}: at most {peak} at once, {cap} allowed{'' if peak < cap else ' (binding)'}")
    print(f"  lost_replies={report.lost_replies} looked_up={report.looked_up}")
    minutes = asked.product_seconds / 60
    if minutes:
        print(f"  {report.launched / minutes:.1f} launches per demo minute over {minutes:.0f} minutes")
    by_topic, by_ledger = check.attempts(found)
    for fault in asked.faults:
        zone = fault.name if fault.name.startswith("zone-") else fault.arg
        if fault.until_seconds is None or not zone.startswith("zone-") or fault.name not in {"zone", zone}:
            continue
        outage = recovery.Outage(zone, fault.from_seconds or 0.0, fault.until_seconds, asked.product_seconds)
        for source, attempts in (("topics", by_topic), ("ledger", by_ledger)):
            product = [((at - started_at) * asked.speed, zone) for at, zone in attempts]
            seen = recovery.verdict(product, outage)
            back = "not seen" if seen.back_after_seconds is None else f"{seen.back_after_seconds / 60:.1f} min"
            print(
                f"  {zone} by {source}: share {seen.before:.3f} before, {seen.out:.3f} while out (2 min to notice), "
                f"back above 0.20 after {back}"
            )
            problems += seen.problems
    print(f"  logs and ledger of this run: {KEPT}")
    for problem in problems:
        print(f"  PROBLEM {problem}")
    print(msgspec.structs.replace(report, problems=problems).line())
    return 1 if problems else 0


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
