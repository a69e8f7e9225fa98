"""What happens, told in sentences. Pure: events and snapshots in, lines out."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from slipway_client.snapshot import Config, Line, Pool, Snapshot, shares
from slipway_common.events.alert import Alert, AlertRaised
from slipway_common.events.weight import WeightChanged
from slipway_common.events.worker import (
    Result,
    Stage,
    WorkerErrorReported,
    WorkerEvent,
    WorkerLaunchFailed,
    WorkerLost,
    WorkerStopping,
)

SIGNAL: Final = "signal"  # what closes a config, where nothing that was observed does
CONFIGS_NAMED: Final = 3
CONFIGS_SHARED: Final = 6  # more than these would not fit into a line of 79 columns
# Failures are told by the second in which they happened, once it is unlikely that more of it arrive.
LATE_SECONDS: Final = 1.0
HELD_SECONDS: Final = LATE_SECONDS + 2.0  # a second's failures, told when somebody looks, a second later


class Circuit(msgspec.Struct, frozen=True):
    """One config's circuit, from its topic or from an answer."""

    closed: bool
    next_probe_at: datetime | None
    reason: str  # begins with "CONFIG: "
    by_signal: bool = False

    @classmethod
    def of(cls, event: WeightChanged) -> "Circuit":
        return cls(event.state == "closed", event.next_probe_at, event.reason, event.closed_by == SIGNAL)

    @classmethod
    def seen(cls, config: Config) -> "Circuit":
        reason = config.reason or f"{config.id}: no reason given"
        return cls(config.circuit == "closed", config.next_probe_at, reason, config.closed_by == SIGNAL)


def changed(before: Circuit | None, now: Circuit, *, at: datetime, speed: float) -> Line | None:
    """One sentence about a circuit; None when nothing that matters changed."""
    name, _, reason = now.reason.partition(": ")
    reason = reason.removeprefix("closed, ")
    was_closed = before is not None and before.closed
    if not now.closed:
        return Line(at, f"{name} open again: {_opened(before)}", "good") if before is not None and was_closed else None
    other_cause = before is not None and was_closed and before.by_signal is not now.by_signal
    if before is not None and was_closed and not other_cause and before.next_probe_at == now.next_probe_at:
        return None
    words = f"{name} {'still closed' if was_closed else 'closed'}: {reason}"
    if now.next_probe_at is None:  # by a signal, or a probe is ready: its result is told
        return None if was_closed and not other_cause else Line(at, words, "bad")
    wait_seconds = max(0.0, (now.next_probe_at - at).total_seconds()) * speed
    return Line(at, f"{words}, next probe {wait_seconds:.0f} s", "bad")


def _opened(before: Circuit) -> str:
    """Why, by what is known: a start may also have come late that was taken for failed."""
    if before.by_signal:
        return "the signal that closed it is over"
    return "a probe succeeded" if before.next_probe_at is None else "a start succeeded"


def alert(event: Alert, at: datetime) -> Line:
    if isinstance(event, AlertRaised):
        return Line(at, f"alert: {event.summary}", "bad")
    return Line(at, f"alert over: {event.summary}", "good")


class Failures:
    """Workers' failures, told together: one line per second and cause, not one per worker."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, _Cause], list[tuple[datetime, str]]] = {}

    def add(self, at: datetime, event: WorkerEvent) -> None:
        if cause := _cause(event):
            self._waiting.setdefault((int(at.timestamp()), cause), []).append((at, event.launch_config_id))

    def due(self, now: datetime) -> list[Line]:
        """Those of seconds that are over; each is told once."""
        over = (now - timedelta(seconds=LATE_SECONDS)).timestamp()
        found = sorted(key for key in self._waiting if key[0] + 1 <= over)
        return [self._told(key[1], self._waiting.pop(key)) for key in found]

    @staticmethod
    def _told(cause: "_Cause", failed: Sequence[tuple[datetime, str]]) -> Line:
        at, many = max(failed)[0], len(failed) > 1
        counts = Counter(config_id for _, config_id in failed).most_common()
        named = [f"{name} {count}" if many else name for name, count in counts[:CONFIGS_NAMED]]
        if len(counts) > CONFIGS_NAMED:
            named.append(f"{len(counts) - CONFIGS_NAMED} more")
        what = cause.many if many else cause.one
        return Line(at, f"{len(failed)} {what}: {cause.why} ({', '.join(named)})", "bad")


class _Cause(msgspec.Struct, frozen=True, order=True):
    one: str
    many: str
    why: str


def _cause(event: WorkerEvent) -> _Cause | None:
    """What failed and the provider's or our word for it; None for what is no failure."""
    match event:
        case WorkerLaunchFailed():
            return _Cause("launch refused", "launches refused", event.outcome.code or event.outcome.scope.value)
        case WorkerStopping(outcome=outcome) if outcome is not None and outcome.result is Result.FAILED:
            if outcome.stage is Stage.BOOT:
                return _Cause("boot failed", "boots failed", event.reason)
            return _Cause("worker claimed nothing", "workers claimed nothing", event.reason)
        case WorkerLost():
            return _Cause("worker lost", "workers lost", event.reason)
        case WorkerErrorReported():
            return _Cause("worker reported an error", "workers reported an error", event.kind)
    return None


class InOrder:
    """Lines by the times of what they tell: each is held until what is told late would have come."""

    def __init__(self) -> None:
        self._held: list[Line] = []

    def add(self, lines: Iterable[Line]) -> None:
        self._held += lines

    def due(self, now: datetime | None = None) -> list[Line]:
        """Those that nothing older will follow any more, as far as is known at `now`; without it, all that are left."""
        held = sorted(self._held, key=lambda line: line.at)
        told = [line for line in held if now is None or line.at <= now - timedelta(seconds=HELD_SECONDS)]
        self._held = held[len(told) :]
        return told


def differences(before: Snapshot, now: Snapshot) -> list[Line]:
    """What operators and services did between two looks, circuits apart."""
    told = (_services, _brakes, _pools, _configs, _limits)
    return [line for tell in told for line in tell(before, now)]


def _services(before: Snapshot, now: Snapshot) -> list[Line]:
    lines = []
    failing = {service.name for service in before.services if service.problem}
    for service in now.services:
        if service.problem and service.name not in failing:
            lines.append(Line(now.now, f"{service.name} does not answer: {service.problem}", "bad"))
        elif service.silent_seconds is None and service.name in failing:
            lines.append(Line(now.now, f"{service.name} answers again", "good"))
    return lines


def _brakes(before: Snapshot, now: Snapshot) -> list[Line]:
    known, held = {brake.where for brake in before.brakes}, {brake.where for brake in now.brakes}
    return [
        Line(now.now, f"launching is stopped {b.where}: {b.reason}", "bad") for b in now.brakes if b.where not in known
    ] + [Line(now.now, f"launching goes on {where}", "good") for where in sorted(known - held)]


def _pools(before: Snapshot, now: Snapshot) -> list[Line]:
    known = {pool.id: pool for pool in before.pools}
    return [
        Line(now.now, f"pool {pool.id}: {known[pool.id].state} → {pool.state}", "bad" if pool.trouble > 1 else "")
        for pool in now.pools
        if pool.id in known and known[pool.id].state != pool.state
    ]


def _configs(before: Snapshot, now: Snapshot) -> list[Line]:
    known = {config.id: config.state for config in before.configs}
    lines = []
    for config in now.configs:
        was = known.get(config.id, "active" if before.configs else config.state)
        if was == config.state:
            continue
        if config.state == "active":
            lines.append(Line(now.now, f"{config.id} active again", "good"))
        else:
            why = f": {config.state_reason}" if config.state_reason else ""
            lines.append(Line(now.now, f"{config.id} {config.state}{why}"))
    return lines


def _limits(before: Snapshot, now: Snapshot) -> list[Line]:
    known = {pool.id: pool.limit for pool in before.lease_pools}
    return [
        Line(now.now, f"lease pool {pool.id}: limit {known[pool.id]} → {pool.limit}")
        for pool in now.lease_pools
        if known.get(pool.id, pool.limit) != pool.limit
    ]


def zones(before: frozenset[str], out: frozenset[str], at: datetime) -> list[Line]:
    """What a simulated cloud did."""
    return [Line(at, f"the cloud: {zone} has no capacity", "bad") for zone in sorted(out - before)] + [
        Line(at, f"the cloud: {zone} has capacity again", "good") for zone in sorted(before - out)
    ]


def launched(configs: Sequence[Config]) -> dict[str, int]:
    """Launches that the providers have accepted, over the life of each pool's configs."""
    totals: Counter[str] = Counter()
    for config in configs:
        totals[config.pool_id] += config.ok or 0
    return totals


def rates(before: Snapshot, now: Snapshot) -> Mapping[str, float]:
    """Launches per product minute of each pool between two looks."""
    minutes = (now.now - before.now).total_seconds() * now.speed / 60
    earlier = launched(before.configs)
    return {pool: (count - earlier[pool]) / minutes for pool, count in launched(now.configs).items() if minutes > 0}


def status(pool: Pool, configs: Sequence[Config], per_minute: float | None) -> str:
    """A pool in one line: tasks, workers, launches a minute, and each config's share or, of many, how many are what."""
    if len(configs) > CONFIGS_SHARED:
        places = [f"{count} {words}" for words, count in sorted(Counter(config.words for config in configs).items())]
    else:
        share, common = shares(configs), common_start([config.id for config in configs])
        places = [
            f"{config.id.removeprefix(common)} {f'{share[config.id]:.0%}' if config.launches else config.words}"
            for config in configs
        ]
    rate = "" if per_minute is None else f" {per_minute:4.0f}/min"
    return (
        f"{pool.id} {pool.pending:3d} waiting {pool.claimed:3d} running "
        f"{pool.serving:3d}/{pool.wanted or 0} up{rate}  {' '.join(places)}"
    )


def common_start(names: Sequence[str]) -> str:
    """What all of several names begin with, up to a hyphen."""
    if len(names) < 2:
        return ""
    first, last = min(names), max(names)
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    return first[: first.rfind("-", 0, same) + 1]
