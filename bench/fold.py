"""Throughput of the weight-calculator's core: events folded into health, in drafts as large as a busy turn's.

The yardstick replaces one value of the same kind per event and does nothing else.
"""

import gc
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from bench import worker_events
from bench.spread import Spread, spread
from bench.worker_events import TimedEvent
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.rows import CONFIG
from slipway_weight_calculator.domain.world import World, advance, commit, declare, fold

CONFIGS: Final = 200
EVENTS: Final = 20_000
DRAFT: Final = 2_000
WARM_UP: Final = 20_000  # events folded before the measurement, so that every stage has work
PLACE: Final = "slipway.worker.lifecycle.v1/0"


class Fold(msgspec.Struct, frozen=True, kw_only=True):
    """Events per second. `ratio` is the median of `yardstick_per_second` over that of `folded_per_second`."""

    events: int
    configs: int
    folded_per_second: Spread
    yardstick_per_second: Spread
    ratio: float


def measure(seconds: float) -> Fold:
    """Measure fold and yardstick in turn for `seconds`, each time from the same warm world."""
    configs = worker_events.launch_configs(CONFIGS)
    events = worker_events.generate(configs, WARM_UP + EVENTS)
    warm, measured = events[:WARM_UP], events[WARM_UP:]
    folded: list[float] = []
    replaced: list[float] = []
    gc.collect()
    gc.freeze()  # a service decodes its events one by one and retains none
    until = time.perf_counter() + seconds
    while len(folded) < 3 or time.perf_counter() < until:
        world = World()
        draft = Draft(world)
        for config in configs:
            declare(draft, config, worker_events.BEGAN)
        commit(draft)
        _fold(world, warm)
        replaced.append(EVENTS / _replace(world, measured))
        folded.append(EVENTS / _fold(world, measured))
    gc.unfreeze()
    yardstick = spread(replaced)
    return Fold(
        events=EVENTS,
        configs=CONFIGS,
        folded_per_second=spread(folded),
        yardstick_per_second=yardstick,
        ratio=round(yardstick.median / spread(folded).median, 2),
    )


def _fold(world: World, events: Sequence[TimedEvent]) -> float:
    """Fold all events, advancing time with them; return the seconds taken."""
    began = time.perf_counter()
    for first in range(0, len(events), DRAFT):
        part = events[first : first + DRAFT]
        draft = Draft(world)
        advance(draft, part[-1][1])
        for offset, (event, at) in enumerate(part, first + 1):
            fold(draft, event, at, PLACE, offset)
        commit(draft)
    return time.perf_counter() - began


def _replace(world: World, events: Sequence[TimedEvent]) -> float:
    """Look up one row and replace one value per event; return the seconds taken."""
    rows = {key.id: row for key, row in world.rows.items() if key.kind == CONFIG}
    began = time.perf_counter()
    for event, at in events:
        row = rows[event.launch_config_id]
        rows[event.launch_config_id] = msgspec.structs.replace(row, permit_at=at, version=row.version + 1)
    return time.perf_counter() - began
