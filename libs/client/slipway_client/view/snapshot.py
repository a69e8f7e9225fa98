"""State of a deployment at one moment, as its services report it. Pure: their answers become structs."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from slipway_client.view.phrases import HEALTHY, PROBING, STAGES, TRIPPED, brief, count, trip_cause


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A worker pool, with the fields of GET /pools. `serving` workers count towards the target.

    `backlog_seconds` is for how long tasks have been pending without a break, not the age of the oldest task.
    """

    id: str
    mode: str = ""
    paused: bool = False
    paused_reason: str | None = None
    frozen: bool = False
    frozen_reason: str | None = None
    min_capacity: int = 0
    max_capacity: int = 0
    pending: int = 0
    claimed: int = 0
    serving: int = 0
    running: int = 0
    leaving: int = 0
    wanted: int | None = None
    needed: int | None = None
    backlog_seconds: float | None = None

    @property
    def state(self) -> str:
        """The operator's state where there is one, else the mode."""
        return "frozen" if self.frozen else "paused" if self.paused else self.mode

    @property
    def trouble(self) -> int:
        """Rank of the pool's own trouble; 0 is none."""
        return 3 if self.frozen or self.paused else 1 if self.needed else 0


class LaunchStop(msgspec.Struct, frozen=True, kw_only=True):
    """A launch stop, with the fields of GET /launch-stops."""

    scope: str
    scope_id: str = ""
    reason: str = ""
    by: str = ""

    @property
    def where(self) -> str:
        return "everywhere" if self.scope == "all" else f"in {self.scope} {self.scope_id}"


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Starts of a config in one stage, its failures that no weight record counts yet, and the window of both."""

    in_flight: int = 0
    unfolded: int = 0
    window: int = 0


class Level(msgspec.Struct, frozen=True):
    """A stage's level against its window. Starts in earlier stages count: they will arrive here."""

    stage: str
    level: int
    window: int


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A launch config, with the fields of GET /launch-configs."""

    id: str
    pool_id: str
    account_id: str = ""
    zone: str = ""
    state: str = "active"
    state_reason: str | None = None
    health_state: str = HEALTHY
    weight: float | None = None
    stages: dict[str, Stage] = {}
    ok: int | None = None
    failed: int | None = None
    starting: int = 0
    running: int = 0
    next_probe_at: datetime | None = None
    reason: str | None = None
    tripped_by: str | None = None

    @property
    def launches(self) -> bool:
        """True if launches follow its weight; otherwise only probes are launched, or nothing."""
        return self.state == "active" and self.health_state == HEALTHY

    @property
    def tripped(self) -> bool:
        return self.state == "active" and self.health_state in (TRIPPED, PROBING)

    @property
    def shown_state(self) -> str:
        """The operator's state where there is one, else the health state."""
        return self.health_state if self.state == "active" else self.state

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
        """Rank of the config's trouble; 0 is none."""
        return 3 if self.tripped else 2 if self.state != "active" else 0


class LeasePool(msgspec.Struct, frozen=True, kw_only=True):
    """A lease pool, with the fields of GET /lease-pools. `eta_seconds` is the wait of one unit requested now."""

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
        """Rank of the lease pool's trouble; 0 is none."""
        return 1 if self.waiting else 0


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """A service, or Kafka, at its last answer. `unavailable_seconds` is None while it answers; otherwise the age of its
    data. `answered` is true once it has answered. `problem` is the error; empty before the first request.
    """

    name: str
    unavailable_seconds: float | None = None
    answered: bool = True
    problem: str = ""


class EventLine(msgspec.Struct, frozen=True):
    """One narrated sentence. `mood` is "good", "bad" or empty. A line replaces an older one of the same `key`."""

    at: datetime
    text: str
    mood: str = ""
    key: str = ""


class Demo(msgspec.Struct, frozen=True, kw_only=True):
    """A demo: its scenario runs `speed` times faster than real time. `seconds` is its duration in real time; None
    without an end."""

    started_at: datetime
    speed: float
    seed: int
    seconds: float | None


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of a screen. `now` is in the reader's zone. All times and durations are in real time, also in a
    demo: the services, their alerts and the other commands use no other clock."""

    now: datetime
    title: str
    services: Sequence[Service] = ()
    launch_stops: Sequence[LaunchStop] = ()
    pools: Sequence[Pool] = ()
    configs: Sequence[Config] = ()
    lease_pools: Sequence[LeasePool] = ()
    lines: Sequence[EventLine] = ()
    demo: Demo | None = None

    def stamp(self, at: datetime) -> str:
        """The reader's time of day."""
        return f"{at.astimezone(self.now.tzinfo):%H:%M:%S}"

    def next_probe_seconds(self, config: Config) -> float | None:
        """Seconds until the next probe; 0 when it is due, None when none is scheduled."""
        if not config.tripped or config.next_probe_at is None:
            return None
        return max(0.0, (config.next_probe_at - self.now).total_seconds())

    def config_reason(self, config: Config) -> str:
        """Reason for a config's state; empty for a healthy one of which nothing is known to be wrong."""
        if config.state != "active":
            return config.state_reason or ""
        if config.tripped:
            return brief(trip_cause(config.reason))
        return (config.reason or "").partition("healthy: ")[2]

    def pool_state(self, pool: Pool) -> str:
        """The pool's own state; "degraded" if some of its launch configs are tripped, "tripped" if all are."""
        if pool.frozen or pool.paused:
            return pool.state
        if self._stop(pool):
            return "stopped"
        tripped, active = self._tripped(pool)
        return pool.state if not tripped else "degraded" if tripped < active else "tripped"

    def pool_reason(self, pool: Pool) -> str:
        """Reason why a pool does not launch as it should; empty when it does."""
        if pool.frozen:
            return pool.frozen_reason or ""
        if pool.paused:
            return pool.paused_reason or ""
        if stop := self._stop(pool):
            return f"launch stop {stop.where}: {stop.reason}"
        if pool.needed and self._broker_unavailable():
            return "lease-broker unavailable"
        tripped, active = self._tripped(pool)
        if tripped:
            return f"{tripped} of {count(active, 'config')} tripped"
        if pool.wanted is not None and pool.wanted >= pool.max_capacity > 0 and pool.pending:
            return f"at max capacity {pool.max_capacity}"
        return ""

    def pool_trouble(self, pool: Pool) -> int:
        """Rank of a pool's trouble, with that of its launch configs; 0 is none."""
        return max(pool.trouble, 2 if self._stop(pool) or self._tripped(pool)[0] else 0)

    def _broker_unavailable(self) -> bool:
        """True if the lease-broker does not answer, or never has."""
        brokers = [service for service in self.services if service.name == "lease-broker"]
        return any(service.unavailable_seconds is not None or service.problem for service in brokers)

    def unavailable(self, name: str) -> Service | None:
        return next((s for s in self.services if s.name == name and s.unavailable_seconds is not None), None)

    def _stop(self, pool: Pool) -> LaunchStop | None:
        """The launch stop that holds the whole pool."""
        accounts = {config.account_id for config in self.configs if config.pool_id == pool.id}
        for stop in self.launch_stops:
            if stop.scope == "all" or (stop.scope, stop.scope_id) == ("pool", pool.id):
                return stop
            if stop.scope == "account" and accounts == {stop.scope_id}:
                return stop
        return None

    def _tripped(self, pool: Pool) -> tuple[int, int]:
        """Numbers of the pool's tripped and active launch configs."""
        active = [config for config in self.configs if config.pool_id == pool.id and config.state == "active"]
        return sum(config.tripped for config in active), len(active)


def shares(configs: Sequence[Config]) -> Mapping[str, float]:
    """The share of its pool's launches that each config gets by its weight; 0 while it gets none."""
    totals: dict[str, float] = {}
    for config in configs:
        if config.launches:
            totals[config.pool_id] = totals.get(config.pool_id, 0.0) + (config.weight or 0.0)
    return {
        config.id: (config.weight or 0.0) / (totals[config.pool_id] or 1.0) if config.launches else 0.0
        for config in configs
    }
