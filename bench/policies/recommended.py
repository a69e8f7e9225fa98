"""The published rule that Slipway's calculator is based on, in its short form.

It has two stages, no shared keys, trips after 2 failures in each stage, and a delay between probes that only grows. It
is part of the comparison to show that this simulator reproduces its published figures.
"""

from collections.abc import Sequence
from random import Random
from typing import Final

import msgspec

from bench.policies.conditions import Conditions
from bench.policies.policy import Policy

HALF_LIFE_SECONDS: Final = 600.0
MASS_MAX: Final = 12.0
PRIOR: Final = 0.95
PRIOR_MASS: Final = 2.0
FLOOR: Final = 0.02
SHARPNESS: Final = 3
TRIP: Final = 2
LAUNCH_WINDOW_MAX: Final = 64.0  # launches per tick
BOOT_WINDOW: Final = 8.0  # starts not confirmed
PROBE_SECONDS: Final = 15.0
PROBE_SECONDS_MAX: Final = 600.0
POOL_PROBE_SECONDS: Final = 30.0
SIBLING_SECONDS: Final = 180.0
RECOVERED_WINDOW: Final = 2.0
LATE_SECONDS: Final = 300.0
LATE_SAMPLES: Final = 20
LAUNCH, BOOT = range(2)


class State(msgspec.Struct):
    """State of one config. Lists are indexed by stage; `late` starts count as failed until they end."""

    successes: list[float]
    failures: list[float]
    run: list[int]
    booting: dict[int, float]
    late: set[int]
    at: float = 0.0
    launch_window: float = LAUNCH_WINDOW_MAX
    boot_window: float = BOOT_WINDOW
    under_way: int = 0
    tripped: int | None = None
    tripped_at: float = 0.0
    probe_at: float = 0.0
    delay: float = PROBE_SECONDS
    probing: bool = False
    credit: float = 0.0


class Recommended(Policy):
    """Credits by weight, windows by stage, and probes of tripped configs."""

    def __init__(self, conditions: Conditions, rng: Random) -> None:
        self.shares = conditions.shares
        self.rng = rng
        self.states = [State([0.0, 0.0], [0.0, 0.0], [0, 0], {}, set()) for _ in self.shares]
        self.probes: dict[int, int] = {}
        self.sent: list[tuple[int, bool]] = []
        self.boots: list[float] = []
        self.pool_probe_at = 0.0

    def choose(self, now: float, tries: int) -> Sequence[int]:
        self._find_late(now)
        found: list[int] = []
        self.sent = []
        every = all(state.tripped is not None for state in self.states)
        for config, state in enumerate(self.states):
            if state.tripped is None or state.probing or len(found) >= tries:
                continue
            if every and (now >= self.pool_probe_at) and state.tripped == LAUNCH:
                self.pool_probe_at = now + POOL_PROBE_SECONDS
                every = False
            elif now < state.probe_at or (every and state.tripped == LAUNCH):
                continue
            state.probing = True
            found.append(config)
        free = [self._free_slots(state) for state in self.states]
        weights = [self._weight(now, config) if slots > 0 else 0.0 for config, slots in enumerate(free)]
        for _ in range(tries - len(found)):
            total = sum(weights)
            if total <= 0:
                break
            for state, weight in zip(self.states, weights, strict=True):
                state.credit += weight / total
            config = max((c for c, weight in enumerate(weights) if weight), key=lambda c: self.states[c].credit)
            self.states[config].credit -= 1
            found.append(config)
            free[config] -= 1
            if free[config] <= 0:
                weights[config] = 0.0
        for config in found:
            self.states[config].under_way += 1
        return found

    @staticmethod
    def _free_slots(state: State) -> int:
        if state.tripped is not None:
            return 0
        return int(min(state.launch_window, state.boot_window - state.under_way - len(state.booting)))

    def _weight(self, now: float, config: int) -> float:
        state = self.states[config]
        share = 2.0 ** ((state.at - now) / HALF_LIFE_SECONDS)
        health = 1.0
        for stage in (LAUNCH, BOOT):
            well, bad = state.successes[stage] * share, state.failures[stage] * share
            bad += len(state.late) if stage == BOOT else 0
            health *= (well + PRIOR_MASS * PRIOR) / (well + bad + PRIOR_MASS)
        return self.shares[config] * (FLOOR + (1 - FLOOR) * health**SHARPNESS)

    def _find_late(self, now: float) -> None:
        limit = LATE_SECONDS
        if len(self.boots) >= LATE_SAMPLES:
            limit = 2 * sorted(self.boots[-100:])[int(0.95 * min(100, len(self.boots)))]
        for config, state in enumerate(self.states):
            for worker, since in list(state.booting.items()):
                if now - since > limit and worker not in state.late:
                    state.late.add(worker)
                    self._fail(now, config, worker, BOOT, provisional=True)

    def _add(self, now: float, config: int, stage: int, *, is_well: bool) -> None:
        state = self.states[config]
        share = 2.0 ** ((state.at - now) / HALF_LIFE_SECONDS)
        state.at = now
        for masses in (state.successes, state.failures):
            masses[:] = [mass * share for mass in masses]
        if (mass := state.successes[stage] + state.failures[stage]) >= MASS_MAX:
            state.successes[stage] *= (MASS_MAX - 1) / mass
            state.failures[stage] *= (MASS_MAX - 1) / mass
        (state.successes if is_well else state.failures)[stage] += 1

    def _fail(self, now: float, config: int, worker: int, stage: int, *, provisional: bool = False) -> None:
        state = self.states[config]
        if not provisional:
            self._add(now, config, stage, is_well=False)
        if stage == LAUNCH:
            state.launch_window = max(1.0, state.launch_window * 0.5)
        else:
            state.boot_window = max(2.0, state.boot_window * 0.7)
        state.run[stage] += 1
        if state.tripped is not None and self.probes.get(config) == worker:
            del self.probes[config]
            state.probing = False
            state.delay = min(PROBE_SECONDS_MAX, 2 * state.delay)
            self._schedule(now, state)
        elif state.tripped is None and state.run[stage] >= TRIP:
            state.tripped, state.tripped_at = stage, now
            self._schedule(now, state)

    def _schedule(self, now: float, state: State) -> None:
        state.probe_at = now + state.delay * (1 + self.rng.random()) / 2

    def _succeed(self, now: float, config: int, worker: int, stage: int) -> None:
        state = self.states[config]
        self._add(now, config, stage, is_well=True)
        state.run[stage] = 0
        if stage == LAUNCH:
            state.launch_window = min(LAUNCH_WINDOW_MAX, state.launch_window + 1)
        else:
            state.boot_window += 1
        if self.probes.get(config) == worker and state.tripped is not None and state.tripped <= stage:
            del self.probes[config]
            state.probing = False
            if state.tripped == LAUNCH:
                state.launch_window = RECOVERED_WINDOW
            else:
                state.boot_window = RECOVERED_WINDOW
            state.tripped = None
            for other in self.states:
                if other.tripped is not None and abs(other.tripped_at - state.tripped_at) <= SIBLING_SECONDS:
                    other.probe_at = now

    def _answered(self, config: int, worker: int) -> None:
        state = self.states[config]
        state.under_way -= 1
        if state.tripped is not None and state.probing and config not in self.probes:
            self.probes[config] = worker

    def accepted(self, now: float, config: int, worker: int) -> None:
        self._answered(config, worker)
        self.states[config].booting[worker] = now
        self._succeed(now, config, worker, LAUNCH)

    def refused(self, now: float, config: int, worker: int, scope: str) -> None:
        self._answered(config, worker)
        self._fail(now, config, worker, LAUNCH)

    def registered(self, now: float, config: int, worker: int, boot_seconds: float) -> None:
        state = self.states[config]
        del state.booting[worker]
        state.late.discard(worker)
        self.boots.append(boot_seconds)
        self._succeed(now, config, worker, BOOT)

    def unregistered(self, now: float, config: int, worker: int) -> None:
        state = self.states[config]
        del state.booting[worker]
        was_late = worker in state.late
        state.late.discard(worker)
        if was_late:
            self._add(now, config, BOOT, is_well=False)
        else:
            self._fail(now, config, worker, BOOT)
