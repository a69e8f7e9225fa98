"""Comparison with an earlier commit: benchmarks are chosen by name, and ratios are checked."""

import pytest

from bench.before import Incomplete, chosen, claims, compared, counted
from bench.side import BENCHMARKS
from bench.sides import Figure


def test_parts_of_one_benchmark_share_its_rounds() -> None:
    assert chosen("events") == {"events": list(BENCHMARKS["events"].figures)}
    assert chosen("reports,events,registrations") == {
        "http": ["report of demand", "claim and its end", "registration"],
        "events": list(BENCHMARKS["events"].figures),
    }


def test_nothing_measured_is_no_round() -> None:
    with pytest.raises(Incomplete, match="'replay' is 0: SECONDS is too short"):
        counted("replay", Figure(0))


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
