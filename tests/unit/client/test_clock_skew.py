"""Clamping of timestamps in recorded events: a wrong clock affects its own events only."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from slipway_client.transport.clock_skew import CLOCK_SECONDS_MAX, NEIGHBOURS, Times, clamped

BEGAN = datetime(2026, 1, 5, 9, tzinfo=UTC)
HOUR, YEAR = 3600.0, 365 * 86_400.0


def times(given: Sequence[float], stored: Sequence[float | None] | None = None) -> tuple[list[float], int]:
    """Pass seconds since BEGAN through `Times`; returns the times and the number of clamped ones."""
    known = stored or [None] * len(given)
    since = [
        (BEGAN + timedelta(seconds=at), None if kept is None else BEGAN + timedelta(seconds=kept))
        for at, kept in zip(given, known, strict=True)
    ]
    log = Times[tuple[datetime, datetime | None]](lambda each: each)
    found = [at for each in since for _, at in log.add(each)] + [at for _, at in log.rest()]
    return [round(at - BEGAN.timestamp(), 3) for at in found], log.clamped


@pytest.mark.parametrize("wrong", [HOUR, YEAR, -HOUR, -YEAR])
@pytest.mark.parametrize("place", [1, 5, NEIGHBOURS, 50, 98])
def test_one_wrong_clock_moves_nothing_but_its_own_event(place: int, wrong: float) -> None:
    given = [10.0 * number for number in range(100)]
    given[place] += wrong
    found, replaced = times(given)
    assert replaced == 1
    assert found[:place] + found[place + 1 :] == given[:place] + given[place + 1 :]
    assert abs(found[place] - 10.0 * place) <= CLOCK_SECONDS_MAX + 10.0


def test_the_last_and_the_first_of_a_log() -> None:
    """Nothing follows the one and nothing precedes the other: a year is clamped, two hours are accepted."""
    given = [10.0 * number for number in range(100)]
    assert times([*given, YEAR]) == ([*given, given[-1]], 1)
    assert times([*given, 2 * HOUR]) == ([*given, 2 * HOUR], 0)
    assert times([YEAR, *given]) == ([0.0, *given], 1)


def test_long_pauses_are_accepted() -> None:
    """Hours between any two events, and a week between many."""
    for given in (
        [HOUR * number for number in range(60)],
        [*(10.0 * number for number in range(30)), *(7 * 86_400 + 10.0 * number for number in range(30))],
    ):
        assert times(given) == (given, 0)


def test_disorder_is_accepted() -> None:
    """Disorder within two minutes, or a reversed log, is counted elsewhere."""
    chance = Random(7)
    given = sorted((10.0 * number for number in range(200)), key=lambda at: at + chance.uniform(0, 100))
    assert times(given) == (given, 0)
    assert times(given[::-1]) == (given[::-1], 0)


def test_timestamps_are_clamped_to_the_time_of_storage() -> None:
    """Published within two minutes, and not before it happened."""
    stored = BEGAN + timedelta(hours=2)
    for given, expected in ((0.0, 0.0), (-100.0, -100.0), (-HOUR, -120.0), (30.0, 0.001), (YEAR, 0.001)):
        at = clamped(stored + timedelta(seconds=given), stored)
        assert at == pytest.approx(stored.timestamp() + expected, abs=1e-5)
    shifted = [10.0 * number + YEAR for number in range(30)]
    found, replaced = times(shifted, [10.0 * number for number in range(30)])
    assert (found, replaced) == ([10.0 * number + 0.001 for number in range(30)], 30)
