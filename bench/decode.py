"""Decoding of an event compared with `json.loads` of the same bytes, for each event type of a worker's lifecycle."""

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from bench.spread import Spread, spread
from generate.examples import EXAMPLES, example
from slipway_api.events.topics import DECODERS, WORKER_LIFECYCLE
from slipway_common.base.clock import utc_now
from slipway_common.messaging.envelope import decode, decode_data

ROUNDS: Final = 41
REPEATS: Final = 200  # of all examples per arm: a few milliseconds, so that noise affects all arms alike
CLAIM: Final = 0.25

Bytes = Sequence[tuple[str, bytes, list[tuple[str, bytes | None]]]]


class Decoding(msgspec.Struct, frozen=True, kw_only=True):
    """Decoding times: µs per event, and ratios of medians to `json.loads`. `record` decodes headers and event."""

    event: Spread
    json_loads: Spread
    record: Spread
    event_ratio: float
    event_ratio_by_type: dict[str, float]
    record_ratio: float
    bytes_median: int


def measure() -> Decoding:
    """Run all arms in turn, ROUNDS times."""
    worker = [event for event in EXAMPLES if type(event) in WORKER_LIFECYCLE.events]
    records = [
        (event.type, msgspec.json.encode(event), [(k, v.encode()) for k, v in example(event)["headers"].items()])
        for event in worker
    ]
    now = utc_now()
    arms: dict[str, Callable[[str, bytes, Any], object]] = {
        "event": lambda type_, value, _: DECODERS[type_].decode(value),
        "json": lambda _, value, __: json.loads(value),
        "record": lambda type_, value, headers: (decode(headers, received_at=now), decode_data(type_, value)),
    }
    taken: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(ROUNDS):
        for name, arm in arms.items():
            taken[name].append(_microseconds(arm, records, REPEATS))
    event, loads, record = (spread(taken[name]) for name in arms)
    return Decoding(
        event=event,
        json_loads=loads,
        record=record,
        event_ratio=round(event.median / loads.median, 3),
        event_ratio_by_type={one[0].split(".")[-2]: _ratio(arms, [one]) for one in records},
        record_ratio=round(record.median / loads.median, 3),
        bytes_median=sorted(len(value) for _, value, _ in records)[len(records) // 2],
    )


def _ratio(arms: dict[str, Callable[[str, bytes, Any], object]], records: Bytes) -> float:
    pairs = [(_microseconds(arms["event"], records, 500), _microseconds(arms["json"], records, 500)) for _ in range(11)]
    events, loads = zip(*pairs, strict=True)
    return round(spread(events).median / spread(loads).median, 3)


def _microseconds(arm: Callable[[str, bytes, Any], object], records: Bytes, repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        for type_, value, headers in records:
            arm(type_, value, headers)
    return (time.perf_counter() - began) / (repeats * len(records)) * 1e6
