"""State of a held lease: trust, renewal, and ends that are a loss."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_client.leases import holding
from slipway_client.leases.admission import Wait
from slipway_client.leases.holding import LeaseEnd, Renew, next_step
from slipway_client.leases.terms import Lease


def lease(**changes: Any) -> Lease:
    given: dict[str, Any] = {
        "lease_id": "l-1",
        "lease_pool_id": "aws-ci",
        "request_id": "r-1",
        "fencing_token": 7,
        "ttl_seconds_left": 300.0,
        "hold_seconds_left": 1200.0,
    }
    return Lease(**(given | changes))


def test_renewed_three_times_in_a_ttl() -> None:
    held = holding.granted(lease(), 50.0)
    assert next_step(held, 50.0) == Wait(150.0)
    assert next_step(held, 150.0) == Renew()


def test_remaining_time_counts_from_before_the_request() -> None:
    """An answer that took a minute makes the lease a minute shorter for its holder, never longer."""
    held = holding.granted(lease(), 50.0)
    assert held.trusted_until == 50.0 + 300.0 - holding.SKEW_SECONDS


def test_a_lease_is_not_trusted_to_its_last_second() -> None:
    """Clocks drift: the holder stops before another one may start."""
    for ttl_seconds, margin_seconds in ((300.0, 5.0), (50.0, 5.0), (10.0, 1.0), (1.0, 0.1)):
        held = holding.granted(lease(ttl_seconds_left=ttl_seconds), 0.0)
        assert held.trusted_until == pytest.approx(ttl_seconds - margin_seconds)


def test_a_lease_that_was_not_renewed_is_lost_by_our_own_clock() -> None:
    """The lease is lost even if no renewal was tried, because this process was suspended."""
    held = holding.granted(lease(), 0.0)
    assert next_step(held, 294.9) == Renew()
    over = next_step(held, 295.0)
    assert isinstance(over, LeaseEnd)
    assert (over.lost, over.by_broker) == (True, False)


def test_an_unanswered_renewal_is_retried_until_the_lease_is_lost() -> None:
    held = holding.unanswered(holding.granted(lease(), 0.0), 100.0, 0.0)
    assert next_step(held, 100.0) == Wait(100.1)
    assert next_step(held, 100.1) == Renew()
    late = holding.unanswered(held, 294.95, 0.9)
    assert next_step(late, 294.96) == Wait(295.0)


def test_the_end_of_the_hold_is_no_loss() -> None:
    """The hold is over; the command is not stopped."""
    held = holding.granted(lease(ttl_seconds_left=5.0, hold_seconds_left=4.0), 0.0)
    assert next_step(held, 4.0) == LeaseEnd("hold", lost=False, by_broker=False)


@pytest.mark.parametrize(
    ("reason", "lost"),
    [
        ("hold", False),
        ("released", False),
        ("expired", True),
        ("lost", True),
        ("no-progress", True),
        ("replaced", True),
        ("unknown-lease", True),
        ("stale-token", True),
    ],
)
def test_which_ends_are_a_loss(reason: str, lost: bool) -> None:
    """A lease released in the holder's name, or at the end of its hold, is not lost."""
    assert holding.ended(reason).lost is lost


@given(ttl=st.floats(0.001, 1e6), hold=st.floats(0.001, 1e6), at=st.floats(0.0, 1e6), failures=st.integers(0, 5))
def test_there_is_always_something_to_do_and_time_for_it(ttl: float, hold: float, at: float, failures: int) -> None:
    held = holding.granted(lease(ttl_seconds_left=ttl, hold_seconds_left=hold), 0.0)
    for _ in range(failures):
        held = holding.unanswered(held, at, 0.5)
    match next_step(held, at):
        case Wait(until):
            assert at < until <= min(held.trusted_until, held.hold_until)
        case Renew():
            assert at < held.trusted_until
            assert at >= held.renew_at
