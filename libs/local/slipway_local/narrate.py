"""What happens, told in plain lines of at most 79 columns: a line a second, and one for each change of state.

Listens as any outsider does: weights from their topic, the rest from the services' own answers.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from slipway_common.clock import monotonic_seconds, utc_now
from slipway_common.consume import Received
from slipway_common.events.weight import WeightChanged
from slipway_common.postgres import Pool
from slipway_common.topics import LAUNCH_CONFIG_WEIGHT, Topic
from slipway_common.views import Reader
from slipway_local.deployment import Deployment


class Clock:
    """Product minutes since the scenario began."""

    def __init__(self, started_at: float, speed: float) -> None:
        self.started_at = started_at
        self.speed = speed

    def tell(self, text: str) -> None:
        minute = (utc_now().timestamp() - self.started_at) * self.speed / 60
        print(f"{minute:6.1f}m  {text}", flush=True)


class Circuits:
    """A view of the weights that tells when a circuit closes, when a probe failed, and when it opens again."""

    topic: Topic = LAUNCH_CONFIG_WEIGHT

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.known: dict[str, WeightChanged] = {}

    async def apply(self, pool: Pool, records: Sequence[Received]) -> None:
        for record in records:
            event: WeightChanged | None = record.event
            if event is None:
                continue
            before = self.known.get(event.launch_config_id)
            if text := changed(before, event, at_seconds=record.time.timestamp(), speed=self.clock.speed):
                self.clock.tell(f"** {text}")
            self.known[event.launch_config_id] = event


def changed(before: WeightChanged | None, now: WeightChanged, *, at_seconds: float, speed: float) -> str:
    """One sentence about a circuit, empty when nothing that matters changed."""
    name, _, reason = now.reason.partition(": ")
    was_closed = before is not None and before.state == "closed"
    if now.state != "closed":
        return f"{name} open again: a probe succeeded" if was_closed else ""
    if before is not None and was_closed and before.next_probe_at == now.next_probe_at:
        return ""
    if now.next_probe_at is None:
        return "" if was_closed else f"{name} {reason}"  # a probe is ready: its result is told
    wait = f"next probe {max(0.0, now.next_probe_at.timestamp() - at_seconds) * speed:.0f} s"
    if was_closed:
        return f"{name} still closed: a probe failed, {wait}"
    return f"{name} closed: {reason.removeprefix('closed, ')}, {wait}"


class Status:
    """The line a second, and what the cloud and operators did since the last one."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.out: set[str] = set()
        self.paused: set[str] = set()
        self.launches = 0

    def tell(self, pools: Sequence[Any], configs: Sequence[Any], state: Any) -> None:
        self._changes({zone for zone, seen in state["zones"].items() if seen["out"]}, configs)
        created = state["instances"]["launched"]
        per_minute, self.launches = (created - self.launches) / self.clock.speed * 60, created
        for pool in pools:
            mine = [config for config in configs if config["pool_id"] == pool["id"]]
            self.clock.tell(line(pool, mine, per_minute if len(pools) == 1 else None))

    def _changes(self, out: set[str], configs: Sequence[Any]) -> None:
        for zone in sorted(out - self.out):
            self.clock.tell(f"** the cloud: {zone} has no capacity")
        for zone in sorted(self.out - out):
            self.clock.tell(f"** the cloud: {zone} has capacity again")
        paused = {config["id"]: config for config in configs if config["state"] != "active"}
        for name in sorted(paused.keys() - self.paused):
            self.clock.tell(f"** {name} {paused[name]['state']}: {paused[name]['state_reason']}")
        for name in sorted(self.paused - paused.keys()):
            self.clock.tell(f"** {name} active again")
        self.out, self.paused = out, set(paused)


def line(pool: Any, configs: Sequence[Any], per_minute: float | None) -> str:
    """A pool in one line: tasks, workers, launches a minute, and each config's share of the launches."""
    open_ = [c for c in configs if c["circuit"] == "open" and c["state"] == "active"]
    total = sum(config["weight"] or 0.0 for config in open_) or 1.0
    common = _common([config["id"] for config in configs]) if len(configs) > 1 else ""
    shares = [
        f"{config['id'].removeprefix(common)} {(config['weight'] or 0.0) / total:.0%}"
        if config in open_
        else f"{config['id'].removeprefix(common)} {'closed' if config['state'] == 'active' else config['state']}"
        for config in configs
    ]
    rate = "" if per_minute is None else f" {per_minute:4.0f}/min"
    return (
        f"{pool['id']} {pool['pending']:3d} waiting {pool['claimed']:3d} running "
        f"{pool['serving']:3d}/{pool['wanted'] or 0} up{rate}  {' '.join(shares)}"
    )


def _common(names: Sequence[str]) -> str:
    """What all names begin with, up to a hyphen."""
    first, last = min(names), max(names)
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    return first[: first.rfind("-", 0, same) + 1]


async def narrate(deployment: Deployment, started_at: float, until_seconds: float) -> None:
    """Tell until the time is up (0: for ever)."""
    clock = Clock(started_at, deployment.speed)
    circuits = Reader(
        Circuits(clock), bootstrap_servers=deployment.kafka, prefix=deployment.prefix, ring=lambda: None
    )
    listening = asyncio.create_task(circuits.run(None))
    try:
        await _each_second(deployment, Status(clock), until_seconds)
    finally:
        listening.cancel()


async def _each_second(deployment: Deployment, status: Status, until_seconds: float) -> None:
    began = monotonic_seconds()
    end = began + (until_seconds or float("inf"))
    second = 0
    while monotonic_seconds() < end:
        second += 1
        await asyncio.sleep(max(0.0, min(began + second, end) - monotonic_seconds()))
        try:
            pools, configs, state = await asyncio.gather(
                deployment.call("GET", "provisioner", "/pools"),
                deployment.call("GET", "provisioner", "/launch-configs"),
                deployment.call("GET", "simulator", "/state"),
            )
        except Exception as error:
            status.clock.tell(f"(cannot look: {error})")
            continue
        status.tell(pools["items"], configs["items"], state)
