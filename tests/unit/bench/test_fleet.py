"""Figures of the benchmark of large fleets: each claim can be false."""

from typing import Any

import pytest

from bench.fleet.figures import LAUNCHES_MIN, claims, lines, results
from bench.fleet.parts import Listed, Played

APART = Played(seconds=5.0, launches=[0.5] * LAUNCHES_MIN, peak_mb=170.0, cpu_seconds=1.0, before_mb=170.0)
BESIDE = Played(seconds=10.0, launches=[0.55] * LAUNCHES_MIN, peak_mb=190.0, cpu_seconds=2.0, before_mb=170.0)


def found(beside: list[Played], apart: list[Played] | None = None, **changes: Any) -> dict[str, bool]:
    usual: dict[str, Any] = {"instances": 100, "accounts": 5, "throttled": 0, "bare": [Listed(20.0, 4.0, 100)]}
    usual |= {"memory_before": 170.0}
    figures = results("make", {}, beside=beside, apart=apart or [APART], **(usual | changes))
    assert any("round ÷ bare client" in line for line in lines(figures))
    return claims(figures)


def changed(**changes: Any) -> Played:
    values = {name: getattr(BESIDE, name) for name in Played.__struct_fields__}
    return Played(**(values | changes))


def test_all_claims_hold() -> None:
    assert all(found([BESIDE, BESIDE, BESIDE]).values())


#          rounds, beginning of the false claim
FALSE: list[tuple[list[Played], str]] = [
    ([BESIDE, changed(seconds=20.5)], "round 20.5 s"),
    ([changed(peak_mb=271.0), changed(peak_mb=271.0)], "memory +101.0 MB"),
    ([BESIDE, BESIDE, changed(peak_mb=201.0)], "flat over 3 rounds: +5.8%"),
    ([changed(launches=[0.55] * 197 + [0.7] * 3)], "p99 of launches beside 1.4 ×"),
    ([changed(launches=[0.5] * (LAUNCHES_MIN - 1))], f"{LAUNCHES_MIN - 1} launches a side"),
]


@pytest.mark.parametrize(("beside", "claim"), FALSE)
def test_each_claim_can_be_false(beside: list[Played], claim: str) -> None:
    (false,) = [name for name, holds in found(beside).items() if not holds]
    assert false.startswith(claim)


def test_a_throttled_call_is_a_false_claim() -> None:
    (false,) = [name for name, holds in found([BESIDE], throttled=1).items() if not holds]
    assert false == "1 throttled calls"
