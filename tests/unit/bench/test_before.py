"""Comparison with an earlier commit: figures are read from the output of the benchmarks, and ratios are checked."""

from typing import Any

import pytest

from bench import events, http, weights
from bench.before import FIGURES, Incomplete, chosen, claims, compared, figures
from bench.calculator_replay import CalculatorReplay
from bench.calculator_size import CalculatorSize
from bench.decode import Decoding
from bench.fold import Fold
from bench.hop_latency import HopLatency
from bench.publish_latency import PublishLatency
from bench.replay import Replay
from bench.sides import Figure
from bench.spread import Spread

RATE = Spread(1.0, 1.234e6, 2e6)
EVENTS: dict[str, Any] = {"events": 1, "configs": 200}
PLAIN: dict[str, Any] = {"plain_p50": 1.0, "plain_p99": 2.0, "ratio": 3.0}
WEIGHTS = weights.Results(
    command="",
    on={},
    fold=Fold(**EVENTS, folded_per_second=RATE, yardstick_per_second=RATE, ratio=1.0),
    replays=[
        CalculatorReplay(
            events=1,
            configs=number,
            folded_per_second=Spread(1.0, number * 1.0, 2e6),
            applied_per_second=RATE,
            read_per_second=RATE,
            ratio=1.0,
        )
        for number in (200, 10_000)
    ],
    size=CalculatorSize(
        configs=(60, 6_000),
        keys=(98, 9_800),
        idle_ms=(1.0, 1.0),
        event_ms=(1.0, 1.0),
        idle_ratio=1.0,
        event_ratio=1.0,
    ),
    publish_latency=PublishLatency(per_second=200, events=1, latency=RATE, p50=4.5, p99=6.5, **PLAIN),
)
HOP = HopLatency(per_second=50, events=1, committed_p50=1.0, next=RATE, next_p50=7.5, next_p99=65.0, **PLAIN)
DECODING = Decoding(
    event=RATE,
    json_loads=RATE,
    record=RATE,
    event_ratio=1.0,
    event_ratio_by_type={"launched": 1.0},
    record_ratio=1.0,
    bytes_median=1,
)
REPLAY = Replay(events=1, applied_per_second=RATE, read_per_second=RATE, ratio=1.0)
EVENT_RESULTS = events.Results(command="", on={}, decode=DECODING, hop=HOP, replay=REPLAY)


HTTP_RESULTS = http.Results(
    command="",
    on={},
    rates=[
        http.Rate(name=name, per_second=Spread(1.0, number * 10.0, 2e6), ratio=0.1)
        for number, name in enumerate(FIGURES["http"], 1)
    ],
)


@pytest.mark.parametrize(
    ("only", "results", "found"),
    [
        ("weights", WEIGHTS, [Figure(1_234_000), Figure(200), Figure(10_000), Figure(4.5, 6.5)]),
        ("events", EVENT_RESULTS, [Figure(1_234_000), Figure(7.5, 65)]),
        ("http", HTTP_RESULTS, [Figure(number * 10.0) for number in range(1, 7)]),
    ],
)
def test_figures_are_found_in_what_a_benchmark_prints(
    only: str, results: Any, found: list[Figure], capsys: pytest.CaptureFixture[str]
) -> None:
    {"weights": weights, "events": events, "http": http}[only].report(results)
    assert figures(only, capsys.readouterr().out) == dict(zip(FIGURES[only], found, strict=True))


def test_parts_of_one_benchmark_share_its_run() -> None:
    assert chosen("events") == {"events": list(FIGURES["events"])}
    assert chosen("reports,events,registrations") == {
        "http": ["report of demand", "claim and its end", "registration"],
        "events": list(FIGURES["events"]),
    }
    printed = "registration 1 / 2 / 3 requests/s; ÷ /livez 0.1"
    assert figures("http", printed, ["registration"]) == {"registration": Figure(2)}


def test_a_run_without_a_figure_is_no_round() -> None:
    with pytest.raises(Incomplete, match="no figure 'replay' in:\nTraceback"):
        figures("events", "Traceback")


def test_nothing_measured_is_no_round() -> None:
    with pytest.raises(Incomplete, match="'replay' is 0: SECONDS is too short"):
        figures("events", "replay   0 / 0 / 0 events/s into rows")


def round_of(rate: float, p50: float) -> tuple[dict[str, Figure], dict[str, Figure]]:
    return {"a": Figure(100), "b": Figure(10, 20)}, {"a": Figure(rate), "b": Figure(p50, 90)}


@pytest.mark.parametrize(
    ("rounds", "judged"),
    [
        ([round_of(95, 10.5)], {"a × 0.950 ≥ 0.95": True, "b p50 × 1.050 ≤ 1.05": True}),
        ([round_of(94, 10.6)], {"a × 0.940 ≥ 0.95": False, "b p50 × 1.060 ≤ 1.05": False}),
        (
            [round_of(10, 90), round_of(99, 9), round_of(98, 9)],
            {"a × 0.980 ≥ 0.95": True, "b p50 × 0.900 ≤ 1.05": True},
        ),
    ],
)
def test_the_median_of_paired_ratios_is_judged(
    rounds: list[tuple[dict[str, Figure], dict[str, Figure]]], judged: dict[str, bool]
) -> None:
    assert claims(rounds) == judged


def test_a_round_prints_both_sides() -> None:
    lines = [" ".join(line.split()) for line in compared(*round_of(95, 12))]
    assert lines == ["a 100/s → 95/s × 0.950", "b p50 10 ms, p99 20 ms → p50 12 ms, p99 90 ms × 1.200"]
