"""State of a deployment at one moment, as its services report it. Pure: their answers become structs."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from slipway_api.http import lease_pools
from slipway_api.http.provisioner import pools
from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_api.http.provisioner.pools import LaunchStop
from slipway_api.http.service import ListedAlert
from slipway_client.view import phrases
from slipway_common.base.revisions import name_of

ROLLING = "rolling"


class Pool(pools.Pool, frozen=True, kw_only=True):
    """A worker pool with its trouble."""

    @property
    def state(self) -> str:
        """The operator's state where there is one, else the mode."""
        return "frozen" if self.frozen else "paused" if self.paused else self.mode

    @property
    def trouble(self) -> int:
        """Rank of the pool's own trouble; 0 is none."""
        return 3 if self.frozen or self.paused else 1 if self.needed or self.stale_sources else 0


class Level(msgspec.Struct, frozen=True):
    """A stage's level against its window. Starts in earlier stages count: they will arrive here."""

    stage: str
    level: int
    window: int


class Config(LaunchConfig, frozen=True, kw_only=True):
    """One revision of a launch config with its place in a roll-out, its binding window and its trouble."""

    @property
    def launches(self) -> bool:
        """True if launches follow its weight; otherwise only probes are launched, or nothing."""
        return self.state == "active" and self.health_state == phrases.HEALTHY

    @property
    def shown_state(self) -> str:
        """The state of an operator or a roll-out where there is one, else the health state; a trip matters more."""
        if self.state != "active":
            return self.state
        return "fallback" if phrases.is_fallback(self) and self.launches else self.health_state

    @property
    def binding(self) -> Level | None:
        """The stage with the least room, as the provisioner counts it."""
        levels = [
            Level(name, stage.in_flight + stage.unfolded + before, stage.window)
            for name, stage, before in phrases.levels(self)
        ]
        return min(levels, key=lambda level: level.window - level.level, default=None)

    @property
    def in_flight(self) -> int:
        return sum(stage.in_flight for stage in self.stages.values()) if self.stages else self.starting

    @property
    def trouble(self) -> int:
        """Rank of the config's trouble; 0 is none."""
        return 3 if phrases.is_tripped(self) else 2 if self.state in ("paused", "archived") else 0


class LeasePool(lease_pools.LeasePool, frozen=True, kw_only=True):
    """A lease pool with its trouble."""

    @property
    def units(self) -> int:
        """Units that may be held now."""
        return phrases.limit_in_force(self)

    @property
    def state(self) -> str:
        return "queueing" if self.waiting else "full" if self.held >= self.units else "free"

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
    alerts: Sequence[ListedAlert] = ()
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
        if not phrases.is_tripped(config) or config.next_probe_at is None:
            return None
        return max(0.0, (config.next_probe_at - self.now).total_seconds())

    def config_reason(self, config: Config) -> str:
        """Reason for a config's state; empty for a healthy one of which nothing is known to be wrong."""
        if config.state == "draining":
            return "; ".join(part for part in (phrases.drain(config, self.now), config.state_reason) if part)
        if config.state != "active":
            return config.state_reason
        if phrases.is_tripped(config):
            return phrases.own_cause(config.reason)
        roll_out = self._roll_out(config)
        weak = (config.reason or "").partition("healthy: ")[2]
        return "; ".join(part for part in (roll_out, weak) if part)

    def _roll_out(self, config: Config) -> str:
        """Progress of a roll-out; empty for a revision that replaces none and is not replaced."""
        fallbacks = {other.name for other in self.configs if phrases.is_fallback(other)}
        if phrases.unproven(config) and config.name not in fallbacks:
            return ""
        return phrases.progress(config, self.now).removeprefix("fallback: ")

    def pool_state(self, pool: Pool) -> str:
        """The pool's own state; "degraded" if some of its launch configs are tripped, "tripped" if all are."""
        if pool.frozen or pool.paused:
            return pool.state
        if self._stop(pool):
            return "stopped"
        tripped, active = self._tripped(pool)
        if not tripped:
            return "degraded" if self._tripped_new(pool) else pool.state
        return "degraded" if tripped < active else "tripped"

    def pool_reason(self, pool: Pool) -> str:
        """Reason why a pool does not launch as it should; empty when it does."""
        if pool.frozen:
            return pool.frozen_reason
        if pool.paused:
            return pool.paused_reason
        if stop := self._stop(pool):
            return f"launch stop {phrases.where(stop.scope, stop.scope_id)}: {stop.reason}"
        if pool.needed and self._broker_unavailable():
            return "lease-broker unavailable"
        throttled = f"{', '.join(pool.throttled)} throttles calls" if pool.throttled else ""
        reasons = [self._full(pool), self._trips(pool), throttled]
        if not any(reasons) and pool.stale_sources:
            reasons = [f"{phrases.count(pool.stale_sources, 'stale source')} of demand"]
        return "; ".join(filter(None, reasons))

    @staticmethod
    def _full(pool: Pool) -> str:
        """The maximum, if no worker may start for the pending tasks; a healthy pool would be no larger."""
        if not pool.pending or pool.max_capacity <= 0:
            return ""
        if pool.serving >= pool.max_capacity:
            return f"at max capacity {pool.max_capacity}"
        if pool.serving + pool.leaving >= pool.max_capacity:
            return (
                f"at max capacity {pool.max_capacity}; {phrases.count(pool.leaving, 'leaving worker')} until terminated"
            )
        return ""

    def _trips(self, pool: Pool) -> str:
        """The number of tripped launch configs, and the cause that all of them have; it comes first where none of the
        pool launches."""
        tripped, active = self._tripped(pool)
        if not tripped:
            new = self._tripped_new(pool)
            return f"{phrases.count(new, 'new revision')} tripped" if new else ""
        bad = filter(phrases.is_tripped, self._active(pool))
        causes = {phrases.own_cause(config.reason).partition(";")[0] for config in bad}
        parts = [f"{tripped} of {phrases.count(active, 'config')} tripped", *(causes if len(causes) == 1 else ())]
        return "; ".join(reversed(parts) if tripped == active else parts)

    def pool_trouble(self, pool: Pool) -> int:
        """Rank of a pool's trouble, with that of its launch configs; 0 is none."""
        tripped = self._tripped(pool)[0] or self._tripped_new(pool)
        return max(pool.trouble, 2 if self._stop(pool) or tripped else 0)

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
            if phrases.stops_everything(stop.scope) or (stop.scope, stop.scope_id) == ("pool", pool.id):
                return stop
            if stop.scope == "account" and accounts == {stop.scope_id}:
                return stop
        return None

    def _tripped(self, pool: Pool) -> tuple[int, int]:
        """Numbers of the pool's tripped and active launch configs. One with a fallback that launches is not tripped."""
        active = self._active(pool)
        names = {config.name for config in active}
        return len(names - {config.name for config in active if config.launches}), len(names)

    def _tripped_new(self, pool: Pool) -> int:
        """Number of the pool's tripped revisions whose predecessors launch instead."""
        active = self._active(pool)
        launching = {config.name for config in active if config.launches and not config.current}
        return sum(config.name in launching for config in active if config.current and not config.launches)

    def _active(self, pool: Pool) -> list[Config]:
        return [config for config in self.configs if config.pool_id == pool.id and config.state == "active"]


def pages_first(alerts: Iterable[ListedAlert]) -> list[ListedAlert]:
    """Open alerts in their order on a screen: pages first, then the newest first."""
    newest = sorted(alerts, key=lambda alert: alert.since, reverse=True)
    return sorted(newest, key=lambda alert: alert.severity != "page")


def label(config_id: str, configs: Sequence[Config]) -> str:
    """Text that names a config beside these: its name, with the revision where there are others of the name."""
    name = name_of(config_id)
    return config_id if any(config.name == name and config.id != config_id for config in configs) else name


def labels(configs: Sequence[Config]) -> Mapping[str, str]:
    """Text that names each config: its name, with the revision where the name has several among these."""
    revisions = Counter(config.name for config in configs)
    return {config.id: config.id if revisions[config.name] > 1 else config.name for config in configs}


def shares(configs: Sequence[Config]) -> Mapping[str, float]:
    """The share of its pool's launches that each config gets by its weight; 0 while it gets none.

    A revision that is being replaced shares the launches of its name in a rolling roll-out. Otherwise it gets what the
    current ones leave over: everything while none of its pool launches.
    """
    launching = [config for config in configs if config.launches]
    first = [config for config in launching if config.current or config.replaced_by == ROLLING]
    served = {config.pool_id for config in first}
    getting = [*first, *(config for config in launching if config.pool_id not in served)]
    weights = {config.id: (config.weight or 0.0) * config.share for config in getting}
    totals: dict[str, float] = {}
    for config in getting:
        totals[config.pool_id] = totals.get(config.pool_id, 0.0) + weights[config.id]
    return {config.id: weights.get(config.id, 0.0) / (totals.get(config.pool_id) or 1.0) for config in configs}
