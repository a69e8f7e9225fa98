"""State of a held lease: trust, renewal, and ends that are a loss. Leases are granted by the broker's own code."""

from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.leases.holds import Circumstances, hold, renewals_max
from slipway_api.http.lease_broker import Lease
from slipway_client.leases import holding
from slipway_client.leases.admission import Wait
from slipway_client.leases.holding import Doubt, LeaseEnd, Renew, next_step
from tests.support.held_lease import HeldLease


def lease(at: float = 0.0, **terms: Any) -> Lease:
    """A lease as answered `at` seconds after its grant."""
    return msgspec.convert(HeldLease(**terms).answer(at), Lease)


def test_renewed_three_times_in_a_ttl() -> None:
    held = holding.granted(lease(), 50.0)
    assert next_step(held, 50.0, fenced=True) == Wait(150.0)
    assert next_step(held, 150.0, fenced=True) == Renew()


def test_the_end_of_the_hold_is_promised() -> None:
    """A lease with as much TTL left as hold is trusted to its end, whatever becomes of its renewals."""
    held = holding.granted(lease(hold_seconds=8.0), 50.0)
    assert held.trusted_until == held.hold_until == 58.0
    unanswered = holding.unanswered(held, 54.0, 0.5)
    for at in (50.0, 57.9):
        assert next_step(held, at, fenced=True) == next_step(unanswered, at, fenced=True) == Wait(58.0)
    assert next_step(held, 58.0, fenced=True) == LeaseEnd("hold", lost=False)


def test_no_renewal_in_the_last_third_of_a_ttl() -> None:
    """It could prolong nothing. The last one before falls due a third of the full TTL after the one before it."""
    broker = HeldLease(hold_seconds=400.0)
    held = holding.granted(msgspec.convert(broker.renew(200.0), Lease), 200.0)
    assert next_step(held, 200.0, fenced=True) == Wait(300.0)
    assert next_step(held, 300.0, fenced=True) == Renew()
    assert next_step(held, 300.1, fenced=True) == Wait(400.0)


def test_a_late_renewal_that_still_prolongs_the_lease_is_made() -> None:
    """The last answer promised less than the hold: a holder that was suspended meanwhile renews it, however late."""
    held = holding.granted(lease(hold_seconds=310.0), 0.0)
    assert next_step(held, 250.0, fenced=True) == Renew()


def test_remaining_time_counts_from_before_the_request() -> None:
    """An answer that took a minute makes the lease a minute shorter for its holder, never longer."""
    held = holding.granted(lease(), 50.0)
    assert held.trusted_until == 50.0 + 300.0 - holding.SKEW_SECONDS


def test_a_lease_is_not_trusted_to_its_last_second() -> None:
    """Clocks drift: the holder stops before another one may start."""
    for ttl_seconds, margin_seconds in ((300.0, 5.0), (50.0, 5.0), (10.0, 1.0), (1.0, 0.1)):
        held = holding.granted(lease(ttl_seconds=ttl_seconds), 0.0)
        assert held.trusted_until == pytest.approx(ttl_seconds - margin_seconds)


def test_a_lease_that_was_not_renewed_is_lost_by_our_own_clock() -> None:
    """For a holder that needs fencing, even if no renewal was tried, because this process was suspended."""
    held = holding.granted(lease(), 0.0)
    assert next_step(held, 294.9, fenced=True) == Renew()
    assert next_step(held, 295.0, fenced=True) == LeaseEnd("not renewed in time", lost=True)


def test_any_other_holder_goes_on_renewing_until_its_hold_ends() -> None:
    """It learns once that another may have its units. The broker may have been unable to expire it."""
    held = holding.granted(lease(), 0.0)
    assert next_step(held, 295.0, fenced=False) == Doubt()
    doubted = holding.doubted(held)
    assert next_step(doubted, 295.0, fenced=False) == Renew()
    doubted = holding.unanswered(doubted, 295.0, 0.0)
    assert next_step(doubted, 295.0, fenced=False) == Wait(295.1)
    assert next_step(doubted, 1199.9, fenced=False) == Renew()
    assert next_step(doubted, 1200.0, fenced=False) == LeaseEnd("hold", lost=False)
    assert not holding.granted(lease(300.0), 300.0).doubted


def test_an_unanswered_renewal_is_retried_until_the_lease_is_lost() -> None:
    held = holding.unanswered(holding.granted(lease(), 0.0), 100.0, 0.0)
    assert next_step(held, 100.0, fenced=True) == Wait(100.1)
    assert next_step(held, 100.1, fenced=True) == Renew()
    late = holding.unanswered(held, 294.95, 0.9)
    assert next_step(late, 294.96, fenced=True) == Wait(295.0)


@pytest.mark.parametrize(
    ("reason", "lost", "uncounted"),
    [
        ("hold", False, False),
        ("released", False, False),
        ("expired", True, True),
        ("lost", True, True),
        ("unknown-lease", True, True),
        ("no-progress", True, False),
        ("replaced", True, False),
        ("stale-token", True, False),
    ],
)
def test_which_ends_are_a_loss(reason: str, lost: bool, uncounted: bool) -> None:
    """A lease released in the holder's name, or at the end of its hold, is not lost. The work of one that the broker no
    longer knows goes on without counting; that of a replaced one counts for its successor."""
    assert holding.ended(reason) == LeaseEnd(reason, lost=lost, uncounted=uncounted)


@given(
    ttl=st.floats(0.1, 86_400.0),
    hold=st.floats(0.1, 86_400.0),
    at=st.floats(0.0, 1e6),
    failures=st.integers(0, 5),
    fenced=st.booleans(),
)
def test_there_is_always_something_to_do_and_time_for_it(
    ttl: float, hold: float, at: float, failures: int, fenced: bool
) -> None:
    held = holding.granted(lease(ttl_seconds=ttl, hold_seconds=hold, pool_hold_seconds=hold), 0.0)
    for _ in range(failures):
        held = holding.unanswered(held, at, 0.5)
    match next_step(held, at, fenced=fenced):
        case Wait(until):
            assert at < until <= min(held.trusted_until, held.hold_until)
        case Renew():
            assert at < held.trusted_until
            assert at >= held.renew_at
        case Doubt():
            assert not fenced
            assert held.trusted_until <= at < held.hold_until


@st.composite
def circumstances(draw: st.DrawFn) -> Circumstances:
    """A hold with a healthy broker: a renewal that is due arrives before the lease expires, though timers and answers
    are late. A holder whose clock stops while it is suspended is suspended only at the end, where all TTL is promised.
    """
    ttl = draw(st.floats(0.5, 3_600.0))
    hold_seconds = draw(st.floats(0.05, 16.0)) * ttl
    stops = draw(st.booleans())
    return Circumstances(
        ttl_seconds=ttl,
        hold_seconds=hold_seconds,
        drift=draw(st.floats(-0.02, 0.02)),
        round_trip_seconds=draw(st.floats(0.0, 0.25)) * ttl,
        lateness_seconds=draw(st.floats(0.0, 0.25)) * ttl,
        suspended_at=max(0.0, hold_seconds - ttl / 8) if stops else draw(st.floats(0.0, 1.0)) * hold_seconds,
        suspended_seconds=draw(st.one_of(st.just(0.0), st.just(1.1 * hold_seconds))),
        stops=stops,
    )


@given(circumstances(), st.integers(0, 1_000))
@example(Circumstances(ttl_seconds=300.0, hold_seconds=8.0, round_trip_seconds=0.04), 1)
@example(Circumstances(ttl_seconds=300.0, hold_seconds=1200.0, round_trip_seconds=0.04, drift=0.02), 1)
@example(Circumstances(ttl_seconds=300.0, hold_seconds=300.05), 1)
def test_never_lost_while_the_broker_is_healthy(circumstances: Circumstances, seed: int) -> None:
    """Nor renewed more often than three times in a TTL."""
    held = hold(circumstances, Random(seed))
    assert held.end == LeaseEnd("hold", lost=False)
    assert held.renewals <= renewals_max(circumstances)
