"""When recorded events happened: clocks that are wrong move nothing but their own events."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from slipway_client.believed import CLOCK_SECONDS_MAX, NEIGHBOURS, Times, by_store

BEGAN = datetime(2026, 1, 5, 9, tzinfo=UTC)
HOUR, YEAR = 3600.0, 365 * 86_400.0


def times(told: Sequence[float], stored: Sequence[float | None] | None = None) -> tuple[list[float], int]:
    """Seconds since the begin in and out, and how many were clamped."""
    known = stored or [None] * len(told)
    since = [
        (BEGAN + timedelta(seconds=at), None if kept is None else BEGAN + timedelta(seconds=kept))
        for at, kept in zip(told, known, strict=True)
    ]
    log = Times[tuple[datetime, datetime | None]](lambda each: each)
    found = [at for each in since for _, at in log.add(each)] + [at for _, at in log.rest()]
    return [round(at - BEGAN.timestamp(), 3) for at in found], log.clamped


@pytest.mark.parametrize("wrong", [HOUR, YEAR, -HOUR, -YEAR])
@pytest.mark.parametrize("place", [1, 5, NEIGHBOURS, 50, 98])
def test_one_wrong_clock_moves_nothing_but_its_own_event(place: int, wrong: float) -> None:
    told = [10.0 * number for number in range(100)]
    told[place] += wrong
    found, clamped = times(told)
    assert clamped == 1
    assert found[:place] + found[place + 1 :] == told[:place] + told[place + 1 :]
    assert abs(found[place] - 10.0 * place) <= CLOCK_SECONDS_MAX + 10.0


def test_the_last_and_the_first_of_a_log() -> None:
    """Nothing follows the one and nothing precedes the other: a year is not believed, and an hour may have passed."""
    told = [10.0 * number for number in range(100)]
    assert times([*told, YEAR]) == ([*told, told[-1]], 1)
    assert times([*told, 2 * HOUR]) == ([*told, 2 * HOUR], 0)
    assert times([YEAR, *told]) == ([0.0, *told], 1)


def test_what_rests_for_long_is_believed() -> None:
    """Hours between any two events, and a week between many."""
    for told in (
        [HOUR * number for number in range(60)],
        [*(10.0 * number for number in range(30)), *(7 * 86_400 + 10.0 * number for number in range(30))],
    ):
        assert times(told) == (told, 0)


def test_what_arrives_in_another_order_is_believed() -> None:
    """Within two minutes, or backwards: that is for whoever counts what is out of order."""
    chance = Random(7)
    told = sorted((10.0 * number for number in range(200)), key=lambda at: at + chance.uniform(0, 100))
    assert times(told) == (told, 0)
    assert times(told[::-1]) == (told[::-1], 0)


def test_when_it_was_stored_says_what_can_be() -> None:
    """Told within two minutes, and not before it happened."""
    stored = BEGAN + timedelta(hours=2)
    for told, believed in ((0.0, 0.0), (-100.0, -100.0), (-HOUR, -120.0), (30.0, 0.001), (YEAR, 0.001)):
        at = by_store(stored + timedelta(seconds=told), stored)
        assert at == pytest.approx(stored.timestamp() + believed, abs=1e-5)
    told_all = [10.0 * number + YEAR for number in range(30)]
    found, clamped = times(told_all, [10.0 * number for number in range(30)])
    assert (found, clamped) == ([10.0 * number + 0.001 for number in range(30)], 30)
