"""Launch policies of other systems, modelled by their selection of launch configs. Pure except for the given Random.

Each multiplies its weight by the fair share of the config, so that unequal prices affect all policies alike.
"""

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Final

from bench.policies.conditions import Conditions, either
from bench.policies.error_rates import EVENTS_SECONDS, ErrorRates
from bench.policies.policy import Policy

HOUR_SECONDS: Final = 3600.0


class Weighted(Policy):
    """Base of policies that draw configs independently by weight; subclasses define `weights`."""

    def __init__(self, conditions: Conditions, rng: Random) -> None:
        self.shares = conditions.shares
        self.places = range(conditions.configs)
        self.rng = rng

    def weights(self, now: float) -> Sequence[float]:
        return self.shares

    def choose(self, now: float, tries: int) -> Sequence[int]:
        weights = self.weights(now)
        return self.rng.choices(self.places, weights=weights, k=tries) if any(weights) else ()


class Uniform(Weighted):
    """Draws by fair share, regardless of outcomes."""


class ErrorRate(Weighted):
    """Taskcluster's RFC 191: share of non-failures among a config's events of the last hour."""

    def __init__(self, conditions: Conditions, rng: Random) -> None:
        super().__init__(conditions, rng)
        self.rates = ErrorRates(self.shares)

    def weights(self, now: float) -> Sequence[float]:
        return self.rates.weights(now - EVENTS_SECONDS)

    def accepted(self, now: float, config: int, worker: int) -> None:
        self.rates.add(now, config, others=1)

    def refused(self, now: float, config: int, worker: int, scope: str) -> None:
        self.rates.add(now, config, failures=1)

    def unregistered(self, now: float, config: int, worker: int) -> None:
        self.rates.add(now, config, failures=1)


class Taskcluster(Weighted):
    """Taskcluster as implemented: 1 − used/1000 − own errors/all errors of the last hour, at least 0.

    If all weights are 0, all are 0.01.
    """

    CAPACITY: Final = 1000

    def __init__(self, conditions: Conditions, rng: Random) -> None:
        super().__init__(conditions, rng)
        self.used = [0] * conditions.configs
        self.errors: deque[tuple[float, int]] = deque()
        self.own = [0] * conditions.configs

    def weights(self, now: float) -> Sequence[float]:
        while self.errors and self.errors[0][0] <= now - HOUR_SECONDS:
            self.own[self.errors.popleft()[1]] -= 1
        every = len(self.errors) or 1
        found = [
            share * max(0.0, 1 - used / self.CAPACITY - own / every)
            for share, used, own in zip(self.shares, self.used, self.own, strict=True)
        ]
        return found if any(found) else self.shares

    def _failed(self, now: float, config: int) -> None:
        self.errors.append((now, config))
        self.own[config] += 1

    def accepted(self, now: float, config: int, worker: int) -> None:
        self.used[config] += 1

    def refused(self, now: float, config: int, worker: int, scope: str) -> None:
        self._failed(now, config)

    def unregistered(self, now: float, config: int, worker: int) -> None:
        self.used[config] -= 1
        self._failed(now, config)

    def ended(self, now: float, config: int, worker: int) -> None:
        self.used[config] -= 1


class Excluding(Weighted):
    """Base of policies that exclude a config until `until`; the others get their fair shares."""

    def __init__(self, conditions: Conditions, rng: Random) -> None:
        super().__init__(conditions, rng)
        self.until = [0.0] * conditions.configs

    def weights(self, now: float) -> Sequence[float]:
        return [share if until <= now else 0.0 for share, until in zip(self.shares, self.until, strict=True)]

    def failed(self, now: float, config: int) -> None:
        raise NotImplementedError

    def refused(self, now: float, config: int, worker: int, scope: str) -> None:
        self.failed(now, config)

    def unregistered(self, now: float, config: int, worker: int) -> None:
        self.failed(now, config)


class Cache(Excluding):
    """Karpenter's cache of unavailable offerings: a config is excluded for 3 minutes after each failure."""

    TTL_SECONDS: Final = 180.0

    def failed(self, now: float, config: int) -> None:
        self.until[config] = now + self.TTL_SECONDS


class Backoff(Excluding):
    """Kubernetes cluster-autoscaler: a config is excluded for 5 minutes, doubling to 30.

    Failures of an excluded config change nothing; the backoff is reset after 3 hours.
    """

    INITIAL_SECONDS: Final = 300.0
    MAX_SECONDS: Final = 1800.0
    RESET_SECONDS: Final = 3 * HOUR_SECONDS

    def __init__(self, conditions: Conditions, rng: Random) -> None:
        super().__init__(conditions, rng)
        self.seconds = [0.0] * conditions.configs

    def failed(self, now: float, config: int) -> None:
        if now < self.until[config]:
            return
        is_known = self.seconds[config] and now - self.until[config] <= self.RESET_SECONDS
        self.seconds[config] = min(self.MAX_SECONDS, 2 * self.seconds[config]) if is_known else self.INITIAL_SECONDS
        self.until[config] = now + self.seconds[config]


class Thompson(Weighted):
    """Discounted Thompson sampling: each try goes to the highest draw from Beta(1 + successes, 1 + failures).

    Both masses halve every 10 minutes.
    """

    HALF_LIFE_SECONDS: Final = 600.0

    def __init__(self, conditions: Conditions, rng: Random) -> None:
        super().__init__(conditions, rng)
        self.well = [0.0] * conditions.configs
        self.bad = [0.0] * conditions.configs
        self.at = 0.0

    def choose(self, now: float, tries: int) -> Sequence[int]:
        share = 2.0 ** ((self.at - now) / self.HALF_LIFE_SECONDS)
        self.at = now
        self.well = [mass * share for mass in self.well]
        self.bad = [mass * share for mass in self.bad]
        draw = self.rng.betavariate
        found = []
        for _ in range(tries):
            drawn = [draw(1 + well, 1 + bad) for well, bad in zip(self.well, self.bad, strict=True)]
            found.append(drawn.index(max(drawn)))
        return found

    def accepted(self, now: float, config: int, worker: int) -> None:
        self.well[config] += 1

    def refused(self, now: float, config: int, worker: int, scope: str) -> None:
        self.bad[config] += 1

    def unregistered(self, now: float, config: int, worker: int) -> None:
        self.bad[config] += 1


class Oracle(Weighted):
    """Knows each config's current chances of failure, and launches nothing while all configs are down."""

    def __init__(self, conditions: Conditions, rng: Random) -> None:
        super().__init__(conditions, rng)
        self.refusal = conditions.refusal
        self.caps = conditions.caps
        self.bad = conditions.unregistered
        self.images = [
            [revision for revision in reversed(conditions.revisions) if revision.config == config]
            for config in self.places
        ]
        self.held = [0] * conditions.configs
        self.tick_seconds = conditions.scenario.tick_seconds

    def weights(self, now: float) -> Sequence[float]:
        tick = int(now / self.tick_seconds)
        chances = [self._refused(config, tick) for config in self.places]
        best = min(chances)
        return [share if chance == best < 1 else 0.0 for share, chance in zip(self.shares, chances, strict=True)]

    def _refused(self, config: int, tick: int) -> float:
        bad, cap = self.bad[config], self.caps.get(config)
        is_full = cap is not None and cap[0] <= tick < cap[1] and self.held[config] >= cap[2]
        if is_full:
            return 1.0
        image = next(revision for revision in self.images[config] if revision.since <= tick)
        of_boot = either(image.unregistered, bad[tick] if bad is not None else 0.0)
        return either(self.refusal[config][tick], of_boot)

    def accepted(self, now: float, config: int, worker: int) -> None:
        self.held[config] += 1

    def unregistered(self, now: float, config: int, worker: int) -> None:
        self.held[config] -= 1

    def ended(self, now: float, config: int, worker: int) -> None:
        self.held[config] -= 1
