"""Events that the benchmarks make: each can be read as the services read it."""

from typing import Any

import msgspec
import pytest

from bench import hop_latency, publish_latency, worker_events
from slipway_api.events.topics import DECODERS

CONFIGS = worker_events.launch_configs(2)
MADE: list[Any] = [
    hop_latency.launched("w0"),
    hop_latency.weight("w0"),
    *CONFIGS,
    *(event for event, _ in worker_events.generate(CONFIGS, 200)),
    publish_latency.report("p0"),
    *(publish_latency.outcome("config-0", "w0", failed=failed) for failed in (False, True)),
]


@pytest.mark.parametrize("kind", sorted({type(event) for event in MADE}, key=str), ids=lambda kind: kind.__name__)
def test_an_event_of_a_benchmark_has_every_field_of_its_type(kind: type[Any]) -> None:
    for event in MADE:
        if type(event) is kind:
            assert DECODERS[event.type].decode(msgspec.json.encode(event)) == event
