"""The calculator's core alone: events become health in drafts as large as a busy turn's. The yardstick replaces one
value of the same kind per event, and does nothing else."""

import gc
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from bench import lives
from bench.lives import Told
from bench.spread import Spread, spread
from slipway_weight_calculator.domain.world import Draft, World

CONFIGS: Final = 200
EVENTS: Final = 20_000
DRAFT: Final = 2_000
WARM_UP: Final = 20_000  # before what is measured: by then every stage is as busy as any
PLACE: Final = "slipway.worker.lifecycle.v1/0"


class Fold(msgspec.Struct, frozen=True, kw_only=True):
    """Events per second; `ratio` is of the medians of `yardstick_per_second` and `folded_per_second`."""

    events: int
    configs: int
    folded_per_second: Spread
    yardstick_per_second: Spread
    ratio: float


def measure(seconds: float) -> Fold:
    """Both in turn, for so long, from the same warm world each time."""
    configs = lives.declared(CONFIGS)
    told = lives.told(configs, WARM_UP + EVENTS)
    warm, measured = told[:WARM_UP], told[WARM_UP:]
    folded: list[float] = []
    replaced: list[float] = []
    gc.collect()
    gc.freeze()  # a service decodes its events one by one, and keeps none
    until = time.perf_counter() + seconds
    while len(folded) < 3 or time.perf_counter() < until:
        world = World()
        draft = Draft(world)
        for config in configs:
            draft.declare(config, lives.BEGAN)
        draft.commit()
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


def _fold(world: World, told: Sequence[Told]) -> float:
    """Seconds in which the world learns all that was told, and what time changes meanwhile."""
    began = time.perf_counter()
    for first in range(0, len(told), DRAFT):
        part = told[first : first + DRAFT]
        draft = Draft(world)
        draft.advance(part[-1][1])
        for offset, (event, at) in enumerate(part, first + 1):
            draft.fold(event, at, PLACE, offset)
        draft.commit()
    return time.perf_counter() - began


def _replace(world: World, told: Sequence[Told]) -> float:
    """Seconds of one look-up and one new value per event, of the rows that the world has."""
    rows = dict(world.rows)
    began = time.perf_counter()
    for event, at in told:
        row = rows[event.launch_config_id]
        rows[event.launch_config_id] = msgspec.structs.replace(row, permit_at=at, version=row.version + 1)
    return time.perf_counter() - began
