"""Claims of the lease benchmarks."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from bench.leases import at_once, fairness, square_wave
from bench.leases.broker import Broker
from bench.leases.claims import Verdict, closest, grants_until_served, jain, report, shares
from bench.leases.fairness import Request
from bench.leases.seeds import BadSeed, seeds
from bench.leases.square_wave import GROUP, POLICIES, arrivals, peak, verdicts
from slipway_lease_broker.domain.terms import Policy

# Claims


def test_one_false_claim_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    """One false claim among true ones gives exit code 1 and is marked in the last line."""
    assert report([Verdict(True, "a ≤ 1"), Verdict(True, "b ≤ 2")]) == 0
    assert report([Verdict(True, "a ≤ 1"), Verdict(False, "b ≤ 2")]) == 1
    assert capsys.readouterr().out == "a ≤ 1, b ≤ 2\na ≤ 1, FALSE: b ≤ 2\n"


def test_gaps_shares_and_turns() -> None:
    """Small examples, counted by hand."""
    assert closest([300, 0, 90, 181]) == 90
    assert closest([5]) == float("inf")
    assert jain([5, 5, 5, 5]) == 1
    assert jain([1, 0, 0, 0]) == 0.25
    assert jain([]) == jain([0, 0]) == 0
    assert shares([("a", 3), ("b", 1)], ["a", "b", "c"]) == {"a": 0.75, "b": 0.25, "c": 0}
    # A grant before the request does not count; counting starts at the request.
    assert grants_until_served(["a", "b", "a", "a", "b"], {"b": 2, "a": 0, "c": 1}) == {"b": 3, "a": 1, "c": None}


OURS = square_wave.Row(policy="slipway", peak=5, peak_most=5, later=5, wait=37, last=90, last_most=91.9, lone=0)
TEN = [90.0 * number for number in range(10)]

#   changes to the row and starts of the group → the only claim that becomes false
PLANTED = [
    ({}, TEN, None),
    ({"peak_most": 6}, TEN, "peak"),
    ({"last_most": 92.1}, TEN, "last"),
    ({"lone": 0.01}, TEN, "lone"),
    ({}, [*TEN[:-1], TEN[-2] + 89.9], "group"),
    ({}, TEN[:-1], "group"),  # one never started
]


@pytest.mark.parametrize(("changes", "group", "false"), PLANTED)
def test_each_claim_fails_alone(changes: Mapping[str, float], group: list[float], false: str | None) -> None:
    """Each change makes one claim false and no other."""
    found = [one for one in verdicts(replace(OURS, **changes), [TEN, group]) if not one.holds]
    assert [one.claim.split()[0] for one in found] == ([] if false is None else [false])


def test_policies_compared_with_pacing() -> None:
    """A fixed hold repeats the first wave; no policy starts a job before its request or exceeds the cap."""
    waves = {name: play(arrivals(1), 1) for name, play in POLICIES.items()}
    assert peak(waves["fixed hold"]) == square_wave.CAP
    assert {len(wave) for wave in waves.values()} == {250}
    assert all(start >= requested for wave in waves.values() for requested, start in wave)
    assert len(square_wave.group_starts(50)) == GROUP.size


class Unfair(Broker):
    """Broker that serves all tenants in order of arrival."""

    def __init__(self, limit_units: int, hold_seconds: float, policy: Policy) -> None:
        super().__init__(limit_units, hold_seconds, replace(policy, tenants={}))

    def request(self, name: str, now: float, *, units: int = 1, **_: Any) -> None:
        super().request(name, now, tenant="all", units=units)


def test_crowds_that_arrive_at_once() -> None:
    """Paced by default, with the second start of a small pool after 30 s, and launches at the rate of their provider;
    without a lease they start within the second half of their maximum wait."""
    assert at_once.in_a_minute(at_once.starts(Policy(), 50)) == 5
    assert at_once.in_a_minute(at_once.starts(Policy(pacing="off"), 50)) == 50
    assert at_once.starts(Policy(), 2, limit=2) == [0, 30]
    assert at_once.starts(at_once.PACINGS["old default"], 2, limit=2) == [0, 300]
    assert at_once.in_a_minute(at_once.launches(150)) == 120
    unleased = at_once.unleased(50, 1)
    assert at_once.MAX_WAIT_SECONDS / 2 <= unleased[0] <= unleased[-1] <= at_once.MAX_WAIT_SECONDS
    assert at_once.most_in_a_third([0, 1, 2, 30], 0, 30) == 0.75


def test_an_unfair_broker_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every claim is false for first come, first served, and true for the lease-broker."""
    assert [one.holds for one in fairness.verdicts([1])] == [True] * 4
    monkeypatch.setattr(fairness, "Broker", Unfair)
    assert [one.holds for one in fairness.verdicts([1])] == [False] * 4


def test_grants_are_those_of_the_time() -> None:
    """A lease lasts as long as requested, and the limit is never exceeded."""
    requests = [Request(0.0, "a", 100.0) for _ in range(25)]
    assert [grant.at for grant in fairness.play(requests, {}, 25)] == [0.0] * 10 + [100.0] * 10 + [200.0] * 5


def test_seeds() -> None:
    """SEED gives one seed; without it there are the first few."""
    assert seeds({}, 3) == [1, 2, 3]
    assert seeds({"SEED": "7"}, 3) == [7]
    for text in ("0", "-1", "x", "1.5"):
        with pytest.raises(BadSeed):
            seeds({"SEED": text}, 3)
