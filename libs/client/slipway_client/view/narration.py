"""Narration of a deployment in sentences. Pure: events and snapshots in, lines out."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Final

import msgspec

from slipway_api.events import worker as events
from slipway_api.events.alert import Alert, AlertRaised
from slipway_api.events.pool import PoolRolledBack
from slipway_api.events.weight import WeightChanged
from slipway_client.view import roll_outs
from slipway_client.view.phrases import HEALTHY, count, next_probe, trip_cause, where
from slipway_client.view.snapshot import Config, EventLine, Pool, Snapshot, labels, shares
from slipway_common.base.revisions import name_of

SIGNAL: Final = "signal"  # `tripped_by` of a config that an external signal has tripped
CONFIGS_NAMED: Final = 3
CONFIGS_SHARED: Final = 6  # more than these would not fit into a line of 79 columns
# Failures are grouped by the second in which they happened, once no more failures of that second are expected.
LATE_SECONDS: Final = 1.0
HELD_SECONDS: Final = LATE_SECONDS + 2.0  # a second's failures, shown with the next refresh, a second later

Label = Callable[[str], str]
"""Text that names a revision of a launch config in a line, by its id."""


class Health(msgspec.Struct, frozen=True):
    """Health of one config, from its topic or from an answer."""

    id: str
    tripped: bool
    next_probe_at: datetime | None
    reason: str
    by_signal: bool = False

    @classmethod
    def of(cls, row: WeightChanged | Config) -> "Health":
        id_, state = (row.id, row.health_state) if isinstance(row, Config) else (row.launch_config_id, row.state)
        return cls(id_, state != HEALTHY, row.next_probe_at, row.reason or "", row.tripped_by == SIGNAL)


def changed(before: Health | None, now: Health, *, at: datetime, label: Label = name_of) -> EventLine | None:
    """The line about a config's health; None when nothing that matters changed.

    A config has one line from its trip to its recovery: each failed probe replaces it by one that counts one more.
    """
    key = f"trip/{now.id}"
    was_tripped = before is not None and before.tripped
    if not now.tripped:
        if before is None or not was_tripped:
            return None
        return EventLine(at, f"{label(now.id)} recovered: {_recovery(before)}", "good", key)
    other_cause = before is not None and was_tripped and before.by_signal is not now.by_signal
    if before is not None and was_tripped and not other_cause and before.next_probe_at == now.next_probe_at:
        return None
    words = f"{label(now.id)} tripped: {trip_cause(now.reason)}"
    if now.next_probe_at is None:  # tripped by a signal, or a probe is due: its result will be a line
        return None if was_tripped and not other_cause else EventLine(at, words, "bad", key)
    return EventLine(at, next_probe(words, max(0.0, (now.next_probe_at - at).total_seconds())), "bad", key)


def _recovery(before: Health) -> str:
    """The cause of a recovery, as far as it is known: a start counted as failed may also have succeeded late."""
    if before.by_signal:
        return "the down signal ended"
    return "a probe succeeded" if before.next_probe_at is None else "a start succeeded"


def alert(event: Alert, at: datetime) -> EventLine | None:
    """The line of an alert; None for a config's trip and recovery, which have lines of their own."""
    if event.kind == "config-tripped" or (event.kind == "recovered" and event.subject_kind == "config"):
        return None
    if isinstance(event, AlertRaised):
        return EventLine(at, f"alert: {event.summary}", "bad" if event.severity == "page" else "")
    return EventLine(at, f"alert resolved: {event.summary}", "good")


class Failures:
    """Workers' failures, one line per second and cause instead of one per worker."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[int, _Cause], list[tuple[datetime, str]]] = {}

    def add(self, at: datetime, event: events.WorkerEvent) -> None:
        if cause := _cause(event):
            self._waiting.setdefault((int(at.timestamp()), cause), []).append((at, event.launch_config_id))

    def due(self, now: datetime, *, label: Label = name_of) -> list[EventLine]:
        """Lines of the seconds that are over; each once."""
        over = (now - timedelta(seconds=LATE_SECONDS)).timestamp()
        found = sorted(key for key in self._waiting if key[0] + 1 <= over)
        return [self._line(key[1], self._waiting.pop(key), label) for key in found]

    @staticmethod
    def _line(cause: "_Cause", failed: Sequence[tuple[datetime, str]], label: Label) -> EventLine:
        at, many = max(failed)[0], len(failed) > 1
        counts = Counter(config_id for _, config_id in failed).most_common()
        revisions = Counter(name_of(config_id) for config_id in dict(counts))
        called = [label(id_) if revisions[name_of(id_)] == 1 else id_ for id_, _ in counts]
        named = [f"{name} {number}" if many else name for name, (_, number) in zip(called, counts, strict=True)]
        named = named[:CONFIGS_NAMED]
        if len(counts) > CONFIGS_NAMED:
            named.append(f"{len(counts) - CONFIGS_NAMED} more")
        what = cause.many if many else cause.one
        return EventLine(at, f"{len(failed)} {what}: {cause.reason} ({', '.join(named)})", "bad")


class _Cause(msgspec.Struct, frozen=True, order=True):
    one: str
    many: str
    reason: str


def _cause(event: events.WorkerEvent) -> _Cause | None:
    """The failure in an event, with the provider's or Slipway's reason; None for an event that is no failure."""
    match event:
        case events.WorkerLaunchFailed():
            return _Cause("launch refused", "launches refused", event.outcome.code or event.outcome.scope.value)
        case events.WorkerStopping(outcome=outcome) if outcome is not None and outcome.result is events.Result.FAILED:
            if outcome.stage is events.Stage.BOOT:
                return _Cause("boot failed", "boots failed", event.reason)
            return _Cause("worker claimed no task", "workers claimed no task", event.reason)
        case events.WorkerLost():
            return _Cause("worker lost", "workers lost", event.reason)
        case events.WorkerErrorReported():
            return _Cause("worker reported an error", "workers reported an error", event.kind)
    return None


class InOrder:
    """Lines in the order of their times: each is held until late lines of an earlier time have arrived."""

    def __init__(self) -> None:
        self._held: list[EventLine] = []

    def add(self, lines: Iterable[EventLine]) -> None:
        self._held += lines

    def due(self, now: datetime | None = None) -> list[EventLine]:
        """Lines that nothing older is expected to follow at `now`; without it, all that are left."""
        held = sorted(self._held, key=lambda line: line.at)
        due = [line for line in held if now is None or line.at <= now - timedelta(seconds=HELD_SECONDS)]
        self._held = held[len(due) :]
        return due


def differences(before: Snapshot, now: Snapshot) -> list[EventLine]:
    """Acts of operators and services between two snapshots. Health has its own lines."""
    compared = (_services, _launch_stops, _pools, _pauses, roll_outs.differences, _limits)
    return [line for compare in compared for line in compare(before, now)]


def _changes(
    at: datetime, before: Set[str], now: Mapping[str, str], ended: Callable[[str], str], mood: str = "bad"
) -> list[EventLine]:
    """Lines about what began, by name with its text, and about what was `before` and has ended."""
    begun = [EventLine(at, text, mood) for name, text in now.items() if name not in before]
    return begun + [EventLine(at, ended(name), "good") for name in sorted(before - now.keys())]


def _services(before: Snapshot, now: Snapshot) -> list[EventLine]:
    failing = {service.name for service in before.services if service.problem}
    texts = {row.name: f"{row.name} is unavailable: {row.problem}" for row in now.services if row.problem}
    return _changes(now.now, failing, texts, lambda name: f"{name} is available again")


def _launch_stops(before: Snapshot, now: Snapshot) -> list[EventLine]:
    known = {where(row.scope, row.scope_id) for row in before.launch_stops}
    reasons = {where(row.scope, row.scope_id): row.reason for row in now.launch_stops}
    texts = {place: f"launching is stopped {place}: {reason}" for place, reason in reasons.items()}
    return _changes(now.now, known, texts, lambda place: f"launching resumed {place}")


def _pools(before: Snapshot, now: Snapshot) -> list[EventLine]:
    known = {pool.id: pool for pool in before.pools}
    return [
        EventLine(now.now, f"pool {pool.id}: {known[pool.id].state} → {pool.state}", "bad" if pool.trouble > 1 else "")
        for pool in now.pools
        if pool.id in known and known[pool.id].state != pool.state
    ]


def _pauses(before: Snapshot, now: Snapshot) -> list[EventLine]:
    """Pauses of launch configs, which stop all revisions of a name."""
    if not before.configs:
        return []
    paused = {config.name: config.state_reason for config in now.configs if config.state == "paused"}
    texts = {name: f"{name} paused" + (f": {reason}" if reason else "") for name, reason in paused.items()}
    known = {config.name for config in now.configs if config.state == "active"} | paused.keys()
    was = {config.name for config in before.configs if config.state == "paused"} & known
    return _changes(now.now, was, texts, lambda name: f"{name} active again", mood="")


def rolled_back(event: PoolRolledBack, at: datetime) -> EventLine:
    """The line of a rollback."""
    back = f"pool {event.pool_id} rolled back by {event.by} to entry {event.to_revision} of its history"
    return EventLine(at, f"{back}: {event.reason}")


def _limits(before: Snapshot, now: Snapshot) -> list[EventLine]:
    known = {pool.id: pool.limit for pool in before.lease_pools}
    return [
        EventLine(now.now, f"lease pool {pool.id}: limit {known[pool.id]} → {pool.limit}")
        for pool in now.lease_pools
        if known.get(pool.id, pool.limit) != pool.limit
    ]


def zones(before: frozenset[str], out: frozenset[str], at: datetime) -> list[EventLine]:
    """Outages of a simulated cloud."""
    texts = {zone: f"the cloud: {zone} has no capacity" for zone in sorted(out)}
    return _changes(at, before, texts, lambda zone: f"the cloud: {zone} has capacity again")


def rates(before: Snapshot, now: Snapshot) -> Mapping[str, float]:
    """Launches per minute of each pool between two snapshots, by those that the providers have accepted of each config.

    Revisions come and go: a new one has launched all of its workers since, one that is no longer listed none.
    """
    minutes = (now.now - before.now).total_seconds() / 60
    earlier = {config.id: config.launched for config in before.configs}
    launched: Counter[str] = Counter()
    for config in now.configs:
        launched[config.pool_id] += config.launched - earlier.get(config.id, 0)
    return {pool: number / minutes for pool, number in launched.items() if minutes > 0}


def status(pool: Pool, configs: Sequence[Config], per_minute: float | None) -> str:
    """A pool in one line: tasks, workers, launches a minute, and the share of each config, or a count by state."""
    if len(configs) > CONFIGS_SHARED:
        states = Counter(config.shown_state for config in configs)
        places = [f"{number} {state}" for state, number in sorted(states.items())]
    else:
        share, called = shares(configs), labels(configs)
        common = common_start([*called.values()])
        # The first name is shown whole, so that the others can be short.
        names = [called[config.id] for config in configs]
        brief = [*names[:1], *(f"…{name.removeprefix(common)}" if common else name for name in names[1:])]
        places = [
            f"{name} "
            + (f"{share[config.id]:.0%}" if share[config.id] or config.shown_state == HEALTHY else config.shown_state)
            for name, config in zip(brief, configs, strict=True)
        ]
    rate = "" if per_minute is None else f" {count(round(per_minute), 'launch', 'launches')}/min"
    return (
        f"{pool.id} {pool.pending:3d} pending {pool.claimed:3d} claimed "
        f"{pool.serving:3d}/{pool.wanted or 0} serving{rate}  {' '.join(places)}"
    )


def common_start(names: Sequence[str]) -> str:
    """The beginning that several names share, up to a hyphen."""
    if len(names) < 2:
        return ""
    first, last = min(names), max(names)
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), 0)
    return first[: first.rfind("-", 0, same) + 1]
