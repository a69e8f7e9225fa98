"""Conditions of one run, the same for all policies: arrivals, and the outcome of a try at each config and tick."""

from collections.abc import Sequence
from math import ceil, exp
from random import Random
from typing import Final

import msgspec

from bench.policies.scenario import BadScenario, Scenario, check_configs
from bench.policies.traces import Traces

POISSON_MAX: Final = 30.0  # beyond it exp(-mean) times chances is drawn in parts


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """One image of a config, from the tick `since` on. A boot of it never registers with the chance `unregistered`."""

    config: int
    since: int
    image: str
    boot_seconds: float
    unregistered: float


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """Per config, then per tick: `refusal` and `unregistered`, the chances that a try is refused and that a boot fails.

    `revisions` are the images of the configs: first one per config for the start of the run, then those of the changes
    in the order of their times. `caps` maps a config to (first tick, tick after the last, workers). `scopes` are the
    scopes of refusals by config. `shares` are the fair shares of configs in all launches when all are healthy.
    """

    scenario: Scenario
    names: Sequence[str]
    regions: Sequence[str]
    refusal: Sequence[Sequence[float]]
    unregistered: Sequence[Sequence[float] | None]
    revisions: Sequence[Revision]
    caps: dict[int, tuple[int, int, int]]
    scopes: Sequence[str]
    shares: Sequence[float]
    faulty: Sequence[int]
    rates: Sequence[float]

    @property
    def configs(self) -> int:
        return len(self.names)


def conditions(scenario: Scenario, traces: Traces | None = None, offset_seconds: float = 0.0) -> Conditions:
    """Conditions of a scenario; its availability starts `offset_seconds` into the trace.

    Raises BadScenario if the scenario does not fit the zones of the trace.
    """
    ticks, tick_seconds = scenario.ticks, scenario.tick_seconds
    if scenario.availability == "trace":
        assert traces is not None
        try:
            check_configs(scenario, len(traces.zones))
        except BadScenario as error:
            raise BadScenario(f"{scenario.name}: {error} (configs are the zones of the trace)") from error
        names = [zone.name for zone in traces.zones]
        regions = [zone.region for zone in traces.zones]
        shortest = min(len(zone.up) for zone in traces.zones)
        places = [int((offset_seconds + tick * tick_seconds) / traces.gap_seconds) % shortest for tick in range(ticks)]
        refusal = [[0.0 if zone.up[place] else 1.0 for place in places] for zone in traces.zones]
    else:
        names = [f"config-{place}" for place in range(scenario.configs)]
        regions = [f"region-{place}" for place in range(scenario.configs)]
        refusal = [[0.0] * ticks for _ in names]
    unregistered: list[list[float] | None] = [None] * len(names)
    caps: dict[int, tuple[int, int, int]] = {}
    scopes = ["capacity"] * len(names)
    minutes = [tick * tick_seconds / 60 for tick in range(ticks)]
    for fault in scenario.faults:
        active = [fault.active(minute) for minute in minutes]
        for config in fault.configs:
            scopes[config] = fault.scope
            if fault.kind == "capped":
                first = active.index(True)  # a cap has no periods, and every fault a tick
                caps[config] = (first, first + sum(active), fault.workers)
                continue
            if fault.kind == "refused":
                chances = refusal[config]
            else:
                chances = unregistered[config] = unregistered[config] or [0.0] * ticks
            for tick, is_active in enumerate(active):
                if is_active:
                    chances[tick] = either(chances[tick], fault.probability_at(minutes[tick]))
    factors = scenario.price_factors or (1.0,) * len(names)
    return Conditions(
        scenario=scenario,
        names=names,
        regions=regions,
        refusal=refusal,
        unregistered=unregistered,
        revisions=_revisions(scenario, len(names)),
        caps=caps,
        scopes=scopes,
        shares=[factor / sum(factors) for factor in factors],
        faulty=sorted({config for fault in scenario.faults for config in fault.configs}),
        rates=_rates(scenario, traces),
    )


def either(one: float, other: float) -> float:
    """Chance of at least one of two independent events."""
    return 1 - (1 - one) * (1 - other)


def _revisions(scenario: Scenario, configs: int) -> list[Revision]:
    is_shared = scenario.image == "shared"
    found = [
        Revision(
            config=config,
            since=0,
            image="image" if is_shared else f"image-{config}",
            boot_seconds=scenario.boot_seconds,
            unregistered=0.0,
        )
        for config in range(configs)
    ]
    for number, change in sorted(enumerate(scenario.image_changes, 2), key=lambda item: item[1].minute):
        found += [
            Revision(
                config=config,
                since=ceil(change.minute * scenario.ticks_per_minute),
                image=f"image@{number}" if is_shared else f"image-{config}@{number}",
                boot_seconds=change.boot_seconds or scenario.boot_seconds,
                unregistered=change.unregistered,
            )
            for config in change.configs
        ]
    return found


def _rates(scenario: Scenario, traces: Traces | None) -> Sequence[float]:
    """Mean arrivals of each tick."""
    if scenario.demand == "trace":
        assert traces is not None
        return [float(traces.arrivals[tick % len(traces.arrivals)]) for tick in range(scenario.ticks)]
    rates = [scenario.launches_per_minute * scenario.tick_seconds / 60] * scenario.ticks
    for span in scenario.bursts:
        for tick in range(scenario.ticks):
            if span.begin_minute <= tick * scenario.tick_seconds / 60 < span.end_minute:
                rates[tick] = span.launches_per_minute * scenario.tick_seconds / 60
    return rates


def arrivals(conditions: Conditions, seed: int) -> list[int]:
    """Tasks that arrive in each tick; the same for every policy."""
    rng = Random(f"arrivals/{seed}")
    found = [_poisson(rng, rate) for rate in conditions.rates]
    for push in conditions.scenario.pushes:
        found[int(push.minute * conditions.scenario.ticks_per_minute)] += push.tasks
    return found


def _poisson(rng: Random, mean: float) -> int:
    count = 0
    while mean > 0:
        part = min(mean, POISSON_MAX)
        mean -= part
        limit, product = exp(-part), rng.random()
        while product > limit:
            count += 1
            product *= rng.random()
    return count
