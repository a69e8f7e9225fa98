"""Reports of throttling: which of them move the pool, as laws over sequences of reports."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slipway_api.events.lease import LeaseReleaseRequested
from slipway_lease_broker.domain.commands import apply_command
from slipway_lease_broker.domain.ledger import Lease, LeasePool, Ledger, State
from slipway_lease_broker.domain.limits import adapted, in_force
from slipway_lease_broker.domain.sender import Sender
from slipway_lease_broker.domain.terms import Bounds, Policy
from slipway_lease_broker.domain.throttling import (
    REPORTERS_MAX,
    RETRY_AFTER_SECONDS_MAX,
    ThrottleReport,
    is_major,
    judge,
    pause_until,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOLD = 1200.0
HELD = st.dictionaries(st.sampled_from("abc"), st.integers(0, 20))
REPORTS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2000), HELD), max_size=20)


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


@given(REPORTS)
def test_a_report_moves_the_pool_by_weight_or_by_confirmation(reports: list[tuple[str, int, dict[str, int]]]) -> None:
    """A reporter that holds less than half moves it only within one hold of a report by another."""
    now = 0
    before: tuple[ThrottleReport, ...] = ()
    last: dict[str, int] = {}
    for reporter, passed, held in reports:
        now += passed
        judged = judge(
            ThrottleReport(reporter, at(now), at(now + 60)), before, is_adapter=False, held=held, hold_seconds=HOLD
        )
        confirmed = any(other != reporter and now - then <= HOLD for other, then in last.items())
        assert judged.moves_pool == (confirmed or is_major(reporter, held))
        assert len(judged.reports) <= REPORTERS_MAX
        assert judged.until is not None
        last[reporter] = now
        before = judged.reports


@given(st.sampled_from("abc"), HELD)
def test_the_adapter_is_believed(reporter: str, held: dict[str, int]) -> None:
    judged = judge(ThrottleReport(reporter, NOW, None), (), is_adapter=True, held=held, hold_seconds=HOLD)
    assert (judged.moves_pool, judged.until) == (True, None)


@given(HELD)
@example({"a": 1})
def test_at_most_two_reporters_hold_half(held: dict[str, int]) -> None:
    """Of nothing held nobody does."""
    major = [name for name in held if is_major(name, held)]
    assert len(major) <= 2
    assert bool(major) <= (sum(held.values()) > 0)
    assert not is_major("another", held)


@pytest.mark.parametrize(
    ("asked", "maximum", "seconds"),
    [
        (None, 300.0, None),
        (0.0, 300.0, None),
        (-1.0, 300.0, None),
        (9.0, 300.0, 9.0),
        (0.5, 300.0, 0.5),
        (86_400.0, 300.0, 300.0),
        (86_400.0, 86_400.0, RETRY_AFTER_SECONDS_MAX),
    ],
)
def test_a_pause_is_bounded(asked: float | None, maximum: float, seconds: float | None) -> None:
    assert pause_until(asked, NOW, maximum) == (None if seconds is None else at(seconds))


LIMIT = 50


def limit_after(throttled: int, tokens: int) -> tuple[int, set[str]]:
    """Adaptive limit after the release of fifty leases, held by some tokens in turn, of which the first were throttled;
    and the tenants that wait for what they reported."""
    policy = Policy(adaptive=Bounds(floor=2, ceiling=100))
    pool = LeasePool(
        id="p", limit_units=LIMIT, hold_seconds=HOLD, ttl_seconds=HOLD, reserve_seconds=HOLD, policy=policy
    )
    held = [lease(number, f"token-{number % tokens}") for number in range(LIMIT)]
    waiting: set[str] = set()
    for number, one in enumerate(held):
        ledger = Ledger([pool], [one], [])
        ledger.held_by = {"p": Counter(other.owner for other in held[number:])}
        report = {"throttled": True, "retry_after_seconds": 60.0} if number < throttled else {}
        apply_command(ledger, released(one, **report), at(number), Sender(name=one.owner))
        pool, _ = adapted(ledger.pools["p"], at(number))
        waiting |= {tenant.tenant for tenant in ledger.tenants_to_save() if tenant.held_back_until is not None}
    return in_force(pool).units, waiting


def lease(number: int, owner: str) -> Lease:
    return Lease(
        id=str(number),
        lease_pool_id="p",
        request_id=str(number),
        fencing_token=number,
        granted_units=1,
        units=1,
        state=State.CONFIRMED,
        granted_at=NOW,
        expires_at=at(HOLD),
        hold_until=at(HOLD),
        extended_at=NOW,
        owner=owner,
        tenant=owner,
    )


def released(one: Lease, **report: Any) -> LeaseReleaseRequested:
    return LeaseReleaseRequested(
        lease_pool_id="p", lease_id=one.id, fencing_token=one.fencing_token, units=1, result="done", **report
    )


@pytest.mark.parametrize("tokens", [1, 2, 4, 50])
def test_a_fleet_that_is_throttled_lowers_the_limit(tokens: int) -> None:
    """Whether one token holds all units or none holds half: of several the first report alone has nobody to confirm it,
    and only its own tenant waits for it."""
    assert limit_after(25, tokens) == (45, set() if tokens <= 2 else {"token-0"})


@pytest.mark.parametrize(
    ("throttled", "tokens", "waiting"), [(1, 1, set()), (1, 50, {"token-0"}), (8, 50, {"token-0"})]
)
def test_a_few_that_are_throttled_lower_no_limit(throttled: int, tokens: int, waiting: set[str]) -> None:
    """A bucket refuses single calls long before it is empty."""
    assert limit_after(throttled, tokens) == (LIMIT, waiting)
