"""Replay of a recorded log through the same core with other coefficients, to compare policies. Pure.

The events are added in their recorded order; time moves with them, and timers fire at their times. For each requested
start a policy decides whether it would have allowed it: not while the config is tripped, unless a permit is ready, and
not while a window is full. Starts that it would not have allowed are not folded, only counted with their outcomes.
Permits are issued anew, because the recorded numbers belong to another policy.
"""

import hashlib
import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from slipway_common.base.percent import decoded
from slipway_common.events.launch_config import LaunchConfigState
from slipway_common.events.scopes import NEW_SHARED_WINDOWS, Key
from slipway_common.events.signal import SignalRaised
from slipway_common.events.worker import (
    Outcome,
    Result,
    Scope,
    Stage,
    WorkerClaimed,
    WorkerDelayed,
    WorkerEvent,
    WorkerIdle,
    WorkerLaunched,
    WorkerLaunchFailed,
    WorkerLost,
    WorkerRegistered,
    WorkerRequested,
    WorkerStopped,
    WorkerStopping,
)
from slipway_weight_calculator.domain import probes, signals
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.policy import PROFILES, Policy, faster
from slipway_weight_calculator.domain.rows import STAGES, Config, Row, new_shared_row
from slipway_weight_calculator.domain.world import World, advance, apply_signal, commit, declare, fold, forget

DEFAULT: Final = "default"
ORDER_SECONDS: Final = 120.0  # a log is in the order of arrival, and events arrive sooner than that
OUTAGE_FAILURES: Final = 5  # in a row, of one stage of one config: fewer occur by chance
# Scopes of failures that concern the place of the start, whatever row is charged.
ATTRIBUTED: Final = frozenset({Scope.CONFIG, Scope.CAPACITY, Scope.QUOTA, Scope.IMAGE, Scope.CREDENTIAL})
# Next stage of a start by its newest event; None: it has ended, or serves.
NEXT: Final[Mapping[type[Any], str | None]] = {
    WorkerRequested: "launch",
    WorkerDelayed: "launch",
    WorkerLaunched: "boot",
    WorkerRegistered: "claim",
    WorkerLaunchFailed: None,
    WorkerClaimed: None,
    WorkerIdle: None,
    WorkerStopping: None,
    WorkerStopped: None,
    WorkerLost: None,
}

TINY: Final = 1e-6
COEFFICIENT_MAX: Final = 1e12
# By the name of a coefficient or its ending; all others are 1 or more. Intervals that repeat during a trip have a lower
# bound: with shorter ones the replay of a log of hours would take forever.
INTERVAL_SECONDS_MIN: Final = 0.1
BOUNDS: Final = (
    *(
        (name, (INTERVAL_SECONDS_MIN, math.inf))
        for name in (
            "permit_seconds",
            "pool_probe_seconds",
            "probe_initial_seconds",
            "probe_max_seconds",
            "probe_timeout_seconds",
            "permit_expiry_seconds",
        )
    ),
    ("_seconds", (TINY, math.inf)),
    ("prior_mass", (TINY, math.inf)),
    ("prior", (TINY, 1.0 - TINY)),
    ("bad_success", (TINY, 1.0 - TINY)),
    ("floor", (TINY, 1.0)),
    ("sharpness", (0.0, math.inf)),
    ("threshold", (0.0, math.inf)),
    ("boot_shrink", (TINY, 1.0 - TINY)),
    ("_shrink", (TINY, 1.0)),
    ("_factor", (TINY, math.inf)),
)
# Pairs of coefficients of which the first must not exceed the second.
ORDERED: Final = (
    *((f"{stage}_window_min", f"{stage}_window") for stage in STAGES),
    ("probe_initial_seconds", "probe_max_seconds"),
    ("slow_factor", "late_factor"),
    ("late_samples", "boot_samples"),
)

Policies = Mapping[str, Policy]
"""The coefficients by profile."""


class InvalidPolicy(ValueError):
    """A policy that cannot be replayed; the text has the reason and the valid names."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a log: `time` of the fact, in seconds since the epoch; `event` None for a tombstone of `subject`."""

    id: str
    source: str
    subject: str
    time: float
    event: Any


class Outage(msgspec.Struct, kw_only=True):
    """Failures in a row of one stage in the log; `ended` is the first success after them, 0: not in the log."""

    config_id: str
    pool_id: str
    stage: str
    began: float
    failures: int = 0
    ended: float = 0.0


class Tally(msgspec.Struct, kw_only=True):
    """Starts of one config under a policy: those it allows and those it avoids, and the failures of each."""

    allowed: int = 0
    failed: int = 0
    probes: int = 0
    avoided: int = 0
    avoided_failed: int = 0


class Start(msgspec.Struct):
    """A start in flight: the rows whose windows it counts in, its stage, and whether the policy allowed it."""

    keys: tuple[Key, ...] = ()
    stage: str | None = None
    allowed: bool = True
    permit: int | None = None
    failed: bool = False


def policies(given: str | Mapping[str, Any]) -> Policies:
    """The coefficients of a named policy, or those of every profile with some of them set. Raises InvalidPolicy."""
    if isinstance(given, str):
        if given == DEFAULT:
            return PROFILES
        if given not in PROFILES:
            raise InvalidPolicy(f"unknown policy {given!r}; use {', '.join((DEFAULT, *PROFILES))} or a file")
        return dict.fromkeys(PROFILES, PROFILES[given])
    known = Policy.__struct_fields__
    if unknown := [str(name) for name in given if name not in known]:
        raise InvalidPolicy(f"unknown coefficient {', '.join(unknown)}; known: {', '.join(known)}")
    found = {}
    for name, profile in PROFILES.items():
        try:
            found[name] = msgspec.convert(msgspec.structs.asdict(profile) | dict(given), Policy)
        except msgspec.ValidationError as error:
            raise InvalidPolicy(str(error).replace("`$.", "`")) from error
        if wrong := _problem(found[name]):
            raise InvalidPolicy(f"{wrong} (profile {name})")
    return found


def at_speed(given: Policies, speed: float) -> Policies:
    """The same coefficients for events that were recorded at `speed` times real time."""
    return {name: faster(policy, speed) for name, policy in given.items()}


def _problem(policy: Policy) -> str:
    """Reason why the core cannot run with these coefficients; empty if it can."""
    for name, value in msgspec.structs.asdict(policy).items():
        least, most = next((bounds for ending, bounds in BOUNDS if name.endswith(ending)), (1.0, math.inf))
        if not (least <= value <= min(most, COEFFICIENT_MAX)):
            text = f"{value:g}" if isinstance(value, float) or value <= sys.float_info.max else "too large a number"
            return f"{name} is {text}; it must be at least {least:g} and at most {min(most, COEFFICIENT_MAX):g}"
    for lower, upper in ORDERED:
        small, large = getattr(policy, lower), getattr(policy, upper)
        if small > large:
            return f"{lower} is {small:g} and {upper} {large:g}; {lower} must be at most {upper}"
    return ""


class Comparison:
    """Comparison of several policies, by name, on the same log. Add every event with `add`, then read the results.

    `began` and `ended` are the earliest and the latest time in the log; `disordered` counts events that happened long
    before an earlier entry of the log.
    """

    def __init__(self, policies: Mapping[str, Policies]) -> None:
        self.replays = {name: Replay(each) for name, each in policies.items()}
        self.events = self.duplicates = self.disordered = 0
        self.began = self.ended = 0.0
        self.outages: list[Outage] = []
        self._seen: set[tuple[str, str]] = set()
        self._running: dict[tuple[str, str], Outage] = {}

    def add(self, record: Recorded) -> None:
        """Add one event; a duplicate changes nothing."""
        if (record.source, record.id) in self._seen:
            self.duplicates += 1
            return
        self._seen.add((record.source, record.id))
        self.events += 1
        self.disordered += record.time < self.ended - ORDER_SECONDS
        self.began, self.ended = min(self.began or record.time, record.time), max(self.ended, record.time)
        outcome: Outcome | None = getattr(record.event, "outcome", None)
        if outcome is not None and outcome.stage is not Stage.UNKNOWN:
            self._record_outage(record.event, outcome, record.time)
        for replay in self.replays.values():
            replay.add(record)

    def _record_outage(self, event: WorkerEvent, outcome: Outcome, at: float) -> None:
        """Record the outages that the log itself shows."""
        key = (event.launch_config_id, outcome.stage.value)
        running = self._running.get(key)
        if outcome.result is Result.FAILED and outcome.scope in ATTRIBUTED:
            if running is None:
                running = self._running[key] = Outage(
                    config_id=event.launch_config_id, pool_id=event.pool_id, stage=outcome.stage.value, began=at
                )
            running.failures += 1
            if running.failures == OUTAGE_FAILURES:
                self.outages.append(running)
        elif outcome.result is Result.OK and running is not None:
            running.ended = at
            del self._running[key]


class Replay:
    """Replay of a log under one policy.

    `tallies` are by config id; `trips` holds the trips of a config as (from, until), in seconds since the epoch, until
    0 for one that has not ended. `refused` counts signals without effect.
    """

    def __init__(self, policies: Policies) -> None:
        self.world = World(policies)
        self.now = 0.0
        self.tallies: dict[str, Tally] = {}
        self.trips: dict[str, list[tuple[float, float]]] = {}
        self.refused = 0
        self._starts: dict[str, Start] = {}
        self._in_flight: Counter[tuple[Key, str]] = Counter()

    def add(self, record: Recorded) -> None:
        """Add one event, not a duplicate; time moves forward to it, never back."""
        self.now = max(self.now, record.time)
        while (due := self.world.due()) is not None and due <= self.now:
            self._step(due, partial(advance, now=due))
        self._step(self.now, lambda draft: self._fold(draft, record))

    def pool_of(self, config_id: str) -> str:
        """Pool of a config; empty if the config is unknown at the end."""
        config = self.world.configs.get(config_id)
        return config.declared.pool_id if config is not None else ""

    def detected(self, outage: Outage) -> float | None:
        """Seconds from an outage's first failure to the trip of its config; None if it never tripped."""
        end = outage.ended or math.inf
        for tripped, recovered in self.trips.get(outage.config_id, ()):
            if tripped < end and (not recovered or recovered > outage.began):
                return max(0.0, tripped - outage.began)
        return None

    def recovered(self, outage: Outage) -> float | None:
        """Seconds from its end to the recovery of its config; None if that never tripped or never recovered."""
        if not outage.ended or self.detected(outage) is None:
            return None
        for tripped, recovered in self.trips.get(outage.config_id, ()):
            if tripped <= outage.ended and not recovered:
                return None
            if tripped <= outage.ended < recovered:
                return recovered - outage.ended
        return 0.0

    def digest(self) -> str:
        """Hash of the state at the end; the same for the same log and policy."""
        found = hashlib.blake2b(digest_size=16)
        state: tuple[Mapping[Any, Any], ...] = (self.world.rows, self.world.boots, self.world.signals)
        for values in state:
            for key in sorted(values):
                found.update(msgspec.json.encode((key, values[key])) + b"\n")
        return found.hexdigest()

    def _step(self, now: float, change: Callable[[Draft], None]) -> None:
        draft = Draft(self.world)
        change(draft)
        self.observe(draft, now)
        commit(draft)

    def observe(self, draft: Draft, now: float) -> None:
        """Record the times at which configs trip and recover."""
        touched = {*draft.configs, *draft.signalled()}
        for key, row in draft.rows.items():
            if _is_tripped(row) is not _is_tripped(self.world.rows.get(key)):
                touched |= draft.affected(key)
        for config_id in touched:
            config, periods = draft.config(config_id), self.trips.setdefault(config_id, [])
            lasting = bool(periods) and not periods[-1][1]
            tripped = config is not None and bool(draft.trips_on(config) or self._is_down(draft, config_id))
            if tripped and not lasting:
                periods.append((now, 0.0))
            elif lasting and not tripped:
                periods[-1] = (periods[-1][0], now)

    def _fold(self, draft: Draft, record: Recorded) -> None:
        event = record.event
        if event is None:
            forget(draft, decoded(record.subject)[0], self.now)
        elif isinstance(event, LaunchConfigState):
            declare(draft, event, self.now)
        elif isinstance(event, SignalRaised):
            self.refused += bool(apply_signal(draft, event, self.now))
        elif isinstance(event, WorkerEvent):
            self._worker(draft, event, record.time)

    def _worker(self, draft: Draft, event: WorkerEvent, at: float) -> None:
        start = self._starts.get(event.worker_id)
        if start is None:
            start = self._starts[event.worker_id] = self._begin(draft, event)
        elif isinstance(event, WorkerRequested):
            return  # it arrived after the events that followed it
        tally = self._tally(event.launch_config_id)
        outcome: Outcome | None = getattr(event, "outcome", None)
        failed = outcome is not None and outcome.result is Result.FAILED and outcome.scope in ATTRIBUTED
        if failed and not start.failed:
            start.failed = True
            tally.failed += start.allowed
            tally.avoided_failed += not start.allowed
        if not start.allowed:
            return
        if type(event) in NEXT:
            self._move(start, NEXT[type(event)])
        if event.probe_permit != start.permit:
            event = msgspec.structs.replace(event, probe_permit=start.permit)
        fold(draft, event, at)

    def _begin(self, draft: Draft, event: WorkerEvent) -> Start:
        """Decide whether the policy allows a start. One that began before the log continues and is not counted."""
        start, tally = Start(), self._tally(event.launch_config_id)
        if not isinstance(event, WorkerRequested):
            return start
        config = draft.config(event.launch_config_id)
        row = draft.row(config.key) if config is not None else None
        if config is not None and row is not None:
            start.keys = config.keys
            if self._is_down(draft, config.id):
                start.allowed = False
            elif active := draft.trips_on(config):
                start.allowed = probes.is_ready(draft, config, active)
                start.permit = row.permit if start.allowed else None
            else:
                start.allowed = self._has_room(draft, config)
        tally.allowed += start.allowed
        tally.avoided += not start.allowed
        tally.probes += start.permit is not None
        return start

    def _has_room(self, draft: Draft, config: Config) -> bool:
        """True if one more start fits into every window.

        Starts in flight in an earlier stage will arrive in the later ones, so they count there too. Failures need no
        place, because every failure is folded already. A shared key without a row has the windows of a new one.
        """
        row, upstream = draft.row(config.key), 0
        for stage in STAGES:
            upstream += self._in_flight[config.key, stage]
            if row is not None and upstream >= max(1, int(getattr(row, stage).window)):
                return False
        for kind, stage in NEW_SHARED_WINDOWS:
            shared = draft.row(config.shared[kind]) or new_shared_row(draft.policy(config), self.now)
            stages = STAGES[: STAGES.index(stage) + 1]
            in_flight = sum(self._in_flight[config.shared[kind], each] for each in stages)
            if in_flight >= max(1, int(getattr(shared, stage).window)):
                return False
        return True

    def _move(self, start: Start, stage: str | None) -> None:
        for key in start.keys:
            if start.stage is not None:
                self._in_flight[key, start.stage] -= 1
            if stage is not None:
                self._in_flight[key, stage] += 1
        start.stage = stage

    def _tally(self, config_id: str) -> Tally:
        return self.tallies.setdefault(config_id, Tally())

    def _is_down(self, draft: Draft, config_id: str) -> bool:
        return signals.down_signal(draft.signals_on(config_id)) is not None


def _is_tripped(row: Row | None) -> bool:
    return row is not None and any(getattr(row, stage).trip.tripped for stage in STAGES)
