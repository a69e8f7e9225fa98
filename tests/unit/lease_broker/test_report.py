"""Report on a lease pool's past: a past computed by hand, and properties of any past."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_lease_broker.domain.pacing import Pacing
from slipway_lease_broker.domain.report import (
    Band,
    PacingOf,
    PastLease,
    Report,
    Spread,
    most_per_minute,
    report,
    weighted_spread,
    what_if,
)

START = datetime(2026, 1, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def past_lease(
    requested: float,
    granted: float | None = None,
    ended: float | None = None,
    *,
    units: int = 1,
    confirmed: float | None = None,
    throttled: bool = False,
    returned: tuple[tuple[float, int], ...] = (),
    operation: str = "",
) -> PastLease:
    times = [None if seconds is None else at(seconds) for seconds in (granted, confirmed, ended)]
    return PastLease(
        requested_at=at(requested),
        operation=operation,
        units=units,
        granted_at=times[0],
        confirmed_at=times[1],
        ended_at=times[2],
        throttled=throttled,
        returned=tuple((at(seconds), back) for seconds, back in returned),
    )


def always(pacing: Pacing | None) -> PacingOf:
    """The same pacing for every operation."""
    return lambda _: pacing


def reported(
    past_leases: list[PastLease], until: float = 1000, limit: int = 2, hold: float = 600, pacing: Pacing | None = None
) -> Report:
    return report(past_leases, START, at(until), limit_units=limit, hold_seconds=hold, pacing=always(pacing))


def test_a_past_computed_by_hand() -> None:
    """Three leases that overlap, one from before, one still running, one request without a lease."""
    found = reported(
        [
            past_lease(-300, -100, 100),  # held at the beginning
            past_lease(0, 0, 400, confirmed=10),
            past_lease(0, 0, 600, confirmed=30, throttled=True),
            past_lease(150, 200, confirmed=220),
            past_lease(900, units=5),
        ]
    )
    assert msgspec.structs.replace(found, what_if=None) == Report(
        since=START,
        until=at(1000),
        requests=5,
        # 3 held for 100 s, 2 for 100, 3 for 200, 2 for 200, 1 for 400
        concurrency=Spread(5, 2, 3, 3),
        starts_per_minute_most=2,
        waiting=Spread(3, 0, 50, 50),
        reserved=Spread(3, 20, 30, 30),
        held=Spread(2, 400, 600, 600),
        throttled=1,
        bands=(Band(1, 1, 0, 0), Band(2, 2, 1, 0), Band(3, 3, 2, 1)),
        quiet_units=2,
        what_if=None,  # type: ignore[arg-type]
    )


def test_released_units_no_longer_count() -> None:
    """Also of a lease that goes on, in the past and in the replay; it stays one lease."""
    found = reported(
        [past_lease(0, 0, 900, units=4, returned=((100, 1), (300, 2))), past_lease(300, 300, 900, units=3)],
        until=900,
        limit=4,
    )
    assert found.concurrency == Spread(3, 4, 4, 4)  # 4 held for 100 s, 3 for 200, 4 for 600
    assert found.bands == (Band(1, 1, 0, 0), Band(2, 2, 0, 0), Band(3, 3, 0, 0), Band(4, 4, 2, 0))
    assert (found.requests, found.held) == (2, Spread(2, 600, 900, 900))
    assert (found.what_if.waited, found.what_if.concurrency_most, found.what_if.cut_short) == (0, 4, 1)


def test_a_provider_that_throttles_the_first_start_was_never_quiet() -> None:
    assert reported([past_lease(0, 0, 9, throttled=True)]).quiet_units == 0


def test_no_time_counts_before_the_first_request() -> None:
    """A pool of ten minutes was not idle all day; one with units held at the beginning counts from there."""
    found = reported([past_lease(400, 400, 1000), past_lease(600, 600)])
    assert (found.since, found.concurrency) == (at(400), Spread(2, 2, 2, 2))
    assert reported([past_lease(-10, -10, 100)]).since == START


def test_an_unused_pool() -> None:
    """Reported without a division by zero."""
    found = reported([])
    assert found.concurrency == Spread(1, 0, 0, 0)  # nothing, all the time
    assert (found.waiting, found.bands, found.quiet_units) == (Spread(0, 0, 0, 0), (), None)
    assert (found.what_if.waited, found.what_if.starts_per_minute_most) == (0, 0)


#   past leases (requested, granted, ended), limit, hold, pacing → waited, longest wait, most held, most a minute,
#   cut short
WHAT_IF = [
    ([(0, 0, 100), (0, 0, 100), (0, 0, 100)], 3, 600, None, 0, 0, 3, 3, 0),
    ([(0, 0, 100), (0, 0, 100), (0, 0, 100)], 2, 600, None, 1, 100, 2, 2, 0),
    ([(0, 0, 100), (0, 0, 100), (0, 0, 100)], 1, 600, None, 2, 200, 1, 1, 0),
    ([(0, 0, 100), (0, 0, 100), (0, 0, 100)], 1, 50, None, 2, 100, 1, 2, 3),  # the hold ends it earlier
    ([(0, 0, 100), (0, 0, 100), (0, 0, 100)], 3, 600, Pacing(40), 2, 80, 3, 2, 0),
    ([(0, 0, 100), (0, 0, 100), (0, 0, 100)], 3, 600, Pacing(40, burst=2), 1, 40, 3, 3, 0),
    ([(0, None, None), (10, None, None)], 1, 600, None, 1, 590, 1, 1, 0),  # unknown: the whole hold
    ([(0, 0, 100), (50, 50, 60), (99, 99, 300)], 1, 600, None, 2, 50, 1, 2, 0),
]


@pytest.mark.parametrize(("past", "limit", "hold", "pacing", "waited", "longest", "most", "rate", "cut"), WHAT_IF)
def test_the_same_past_under_other_terms(
    past: list[tuple[float, float, float]],
    limit: int,
    hold: float,
    pacing: Pacing | None,
    waited: int,
    longest: float,
    most: int,
    rate: int,
    cut: int,
) -> None:
    """First come, first served, within the limit, at the pacing, for at most the hold."""
    past_leases = [past_lease(*times) for times in past]
    found = what_if(past_leases, limit_units=limit, hold_seconds=hold, pacing=always(pacing))
    assert (found.waited, found.waiting.most, found.concurrency_most) == (waited, longest, most)
    assert (found.starts_per_minute_most, found.cut_short) == (rate, cut)
    assert (found.limit_units, found.hold_seconds) == (limit, hold)


def test_a_request_for_more_than_the_limit_blocks_no_other() -> None:
    """It is reported separately: under this limit it would never start."""
    found = what_if(
        [past_lease(0, 0, 9, units=3), past_lease(0, 0, 9, units=4), past_lease(1, 1, 9)],
        limit_units=2,
        hold_seconds=60,
        pacing=always(None),
    )
    assert (found.never, found.waited) == (2, 0)


def test_a_request_that_waits_for_units_is_passed_by_no_smaller_one() -> None:
    past = [past_lease(0, 0, 100, units=2), past_lease(10, 10, 20, units=2), past_lease(50, 50, 60)]
    found = what_if(past, limit_units=3, hold_seconds=600, pacing=always(None))
    assert (found.waited, found.waiting) == (2, Spread(2, 50, 90, 90))


def test_a_past_of_great_demand_is_replayed_under_any_terms() -> None:
    """A start beyond the range of dates counts as never."""
    year = 31_536_000
    for requested in (1_000, 20_000):
        for pacing, waited in ((None, 101), (Pacing(year), 100)):
            past = [past_lease(second) for second in range(requested)]
            found = what_if(past, limit_units=1, hold_seconds=year, pacing=always(pacing))
            assert (found.waited, found.never) == (waited, requested - waited - 1)
            assert found.waiting.most == pytest.approx(waited * year, abs=requested)


def test_the_replay_paces_like_admission() -> None:
    """`paced_until` is bounded as in admission: a year at most for one request of a million units."""
    past = [past_lease(0, 0, 1, units=1_000_000), past_lease(1, 1, 2)]
    found = what_if(past, limit_units=1_000_000, hold_seconds=60, pacing=always(Pacing(3600)))
    assert found.waiting.most == 31_536_000 - 1


def test_operations_are_replayed_each_at_its_own_pace() -> None:
    """A start of one operation delays no other; within an operation, requests start in order of arrival."""
    past = [past_lease(at, at, at + 9, operation=name) for at in range(2) for name in ("install", "launch", "look")]
    paces = {"install": Pacing(40), "launch": Pacing(10), "look": None}
    found = what_if(past, limit_units=6, hold_seconds=60, pacing=paces.__getitem__)
    assert (found.waited, found.waiting.p50, found.waiting.most, found.interval_seconds) == (2, 9, 39, 40)
    assert found.starts_per_minute_most == 6


#   seconds of the starts, most within a minute
MINUTES = [([], 0), ([0], 1), ([0, 59.9], 2), ([0, 60], 1), ([0, 30, 60, 89, 91], 3)]


@pytest.mark.parametrize(("starts", "most"), MINUTES)
def test_most_per_minute(starts: list[float], most: int) -> None:
    """Within any 60 s, wherever they begin."""
    assert most_per_minute((at(seconds), 1) for seconds in starts) == most


def test_weights_count() -> None:
    """A value that lasted longer counts for more."""
    assert weighted_spread([(5, 94.0), (9, 6.0)]) == Spread(2, 5, 9, 9)
    assert weighted_spread([(5, 95.0), (9, 5.0)]) == Spread(2, 5, 5, 9)


pasts = st.lists(
    st.builds(
        lambda requested, wait, held, units, back: past_lease(
            requested,
            requested + wait,
            requested + wait + held,
            units=units,
            returned=tuple((requested + wait + held * share, 1) for share in sorted(back)[: units - 1]),
        ),
        st.floats(0, 500),
        st.floats(0, 100),
        st.floats(1, 300),
        st.integers(1, 4),
        st.lists(st.floats(0.01, 0.99), max_size=3),
    ),
    max_size=30,
)


@given(pasts, st.integers(1, 12), st.floats(1, 400), st.none() | st.builds(Pacing, st.floats(0.1, 60)))
def test_laws(past: list[PastLease], limit: int, hold: float, pacing: Pacing | None) -> None:
    """Never above the limit; without pacing an unreached limit makes nothing wait, and a higher one never more."""
    found = what_if(past, limit_units=limit, hold_seconds=hold, pacing=always(pacing))
    assert found.concurrency_most <= limit
    assert found.waited + found.never <= len(past)
    roomy = what_if(past, limit_units=1000, hold_seconds=hold, pacing=always(None))
    assert (roomy.waited, roomy.never) == (0, 0)
    whole = report(past, START, at(1000), limit_units=limit, hold_seconds=hold, pacing=always(pacing))
    assert sum(band.starts for band in whole.bands) == len(past)
    assert whole.concurrency.p50 <= whole.concurrency.p95 <= whole.concurrency.most
