"""A deployment at one moment, as its services tell it. Pure: their answers become structs, and a few things follow."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

STAGES: Final = ("launch", "boot", "claim")


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A worker pool, in the words of GET /pools. `serving` workers are those requested, starting or running."""

    id: str
    mode: str = ""
    paused: bool = False
    frozen: bool = False
    min_capacity: int = 0
    max_capacity: int = 0
    pending: int = 0
    claimed: int = 0
    serving: int = 0
    running: int = 0
    leaving: int = 0
    wanted: int | None = None
    needed: int | None = None
    oldest_wait_seconds: float | None = None

    @property
    def state(self) -> str:
        return "frozen" if self.frozen else "paused" if self.paused else self.mode

    @property
    def trouble(self) -> int:
        """How much a person should look at it; 0 not at all."""
        return 2 if self.frozen or self.paused else 1 if self.needed else 0


class Brake(msgspec.Struct, frozen=True, kw_only=True):
    """What stops launches, in the words of GET /brakes."""

    scope: str
    scope_id: str = ""
    reason: str = ""
    by: str = ""

    @property
    def where(self) -> str:
        return "everywhere" if self.scope == "all" else f"in {self.scope} {self.scope_id}"


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Starts of a config in one stage, failures that its weight has not folded yet, and how many there may be."""

    in_flight: int = 0
    unfolded: int = 0
    window: int = 0


class Level(msgspec.Struct, frozen=True):
    """A stage's level against its window; what is in flight in the stages before will arrive here, so it counts."""

    stage: str
    level: int
    window: int


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A launch config, in the words of GET /launch-configs."""

    id: str
    pool_id: str
    account_id: str = ""
    zone: str = ""
    state: str = "active"
    state_reason: str | None = None
    circuit: str = "open"
    weight: float | None = None
    stages: dict[str, Stage] = {}
    ok: int | None = None
    failed: int | None = None
    starting: int = 0
    running: int = 0
    probe_ready: bool = False
    next_probe_at: datetime | None = None
    reason: str | None = None
    closed_by: str | None = None

    @property
    def launches(self) -> bool:
        """Whether launches follow its weight; else only probes, or none."""
        return self.state == "active" and self.circuit == "open"

    @property
    def words(self) -> str:
        """Its state: the operator's where there is one, else the circuit's."""
        if self.state != "active":
            return self.state
        return "probing" if self.circuit == "closed" and self.probe_ready else self.circuit

    @property
    def binding(self) -> Level | None:
        """The stage with the least room, as the provisioner counts it."""
        levels, before = [], 0
        for name in STAGES:
            if stage := self.stages.get(name):
                levels.append(Level(name, stage.in_flight + stage.unfolded + before, stage.window))
                before += stage.in_flight
        return min(levels, key=lambda level: level.window - level.level, default=None)

    @property
    def in_flight(self) -> int:
        return sum(stage.in_flight for stage in self.stages.values()) if self.stages else self.starting

    @property
    def trouble(self) -> int:
        return 3 if self.state == "active" and self.circuit != "open" else 2 if self.state != "active" else 0


class LeasePool(msgspec.Struct, frozen=True, kw_only=True):
    """Admission to an account, in the words of GET /lease-pools. `eta_seconds`: what one unit asked for now waits."""

    id: str
    limit: int
    held: int = 0
    waiting: int = 0
    requests: int = 0
    granted_per_minute: float = 0.0
    oldest_wait_seconds: float | None = None
    eta_seconds: float | None = None

    @property
    def state(self) -> str:
        return "queueing" if self.waiting else "full" if self.held >= self.limit else "free"

    @property
    def trouble(self) -> int:
        return 1 if self.waiting else 0


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service, or Kafka, as it answered last. `silent_seconds` is None while it answers; else the age of what is
    shown of it, in wall seconds. `answered`: at least once. `problem` is why it does not; empty before it was asked.
    """

    name: str
    silent_seconds: float | None = None
    answered: bool = True
    problem: str = ""


class Line(msgspec.Struct, frozen=True):
    """One narrated sentence. `mood` is "good", "bad" or neither."""

    at: datetime
    text: str
    mood: str = ""


class Demo(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario runs `speed` times faster than the wall clock. `minutes` of product time; None without an end."""

    started_at: datetime
    speed: float
    seed: int
    minutes: float | None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What a screen shows. `now` is in the reader's zone. Durations inside are wall time; `speed` makes them product
    time."""

    now: datetime
    title: str
    services: Sequence[Service] = ()
    brakes: Sequence[Brake] = ()
    pools: Sequence[Pool] = ()
    configs: Sequence[Config] = ()
    lease_pools: Sequence[LeasePool] = ()
    lines: Sequence[Line] = ()
    demo: Demo | None = None

    @property
    def speed(self) -> float:
        return self.demo.speed if self.demo else 1.0

    def minute(self, at: datetime) -> float:
        """Product minutes since the scenario began; of a demo only."""
        assert self.demo is not None
        return (at - self.demo.started_at).total_seconds() * self.demo.speed / 60

    def stamp(self, at: datetime) -> str:
        """When something happened: minutes of a demo, else the reader's time of day."""
        return f"{self.minute(at):6.1f}m" if self.demo else f"{at.astimezone(self.now.tzinfo):%H:%M:%S}"

    def starts_per_minute(self, pool: LeasePool) -> float:
        """Units granted per product minute, over the last minute on the wall or since a demo began."""
        seconds = 60.0
        if self.demo:
            seconds = min(seconds, max(1.0, (self.now - self.demo.started_at).total_seconds())) * self.speed
        return pool.granted_per_minute * 60.0 / seconds

    def next_probe_seconds(self, config: Config) -> float | None:
        """Product seconds until the next probe may start; 0 when it is due, None when none is planned."""
        if config.next_probe_at is None:
            return None
        return max(0.0, (config.next_probe_at - self.now).total_seconds()) * self.speed

    def silent(self, name: str) -> Service | None:
        return next((s for s in self.services if s.name == name and s.silent_seconds is not None), None)


def shares(configs: Sequence[Config]) -> dict[str, float]:
    """The share of its pool's launches that each config gets by its weight; 0 while it gets none."""
    totals: dict[str, float] = {}
    for config in configs:
        if config.launches:
            totals[config.pool_id] = totals.get(config.pool_id, 0.0) + (config.weight or 0.0)
    return {
        config.id: (config.weight or 0.0) / (totals[config.pool_id] or 1.0) if config.launches else 0.0
        for config in configs
    }
