"""Token buckets that limit callers, and the limits of a service that are made of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_common.base.buckets import Buckets, Limit, taken
from slipway_common.web.limits import LIMITS, CallerLimits, Counted, network
from slipway_common.web.problem import Problem

ROUNDING_SECONDS = 1e-5
limits = st.builds(Limit, per_second=st.floats(0.1, 1_000), burst=st.integers(1, 1_000))
gaps = st.lists(st.floats(0, 10), min_size=1, max_size=200)


@given(limits, gaps)
def test_no_more_than_the_rate_and_the_burst(limit: Limit, gaps: list[float]) -> None:
    """In any time from an admitted request on, as many are admitted as the burst and the rate allow."""
    admitted, now, bucket = [], 0.0, 0.0
    for gap in gaps:
        now += gap
        bucket, wait_seconds = taken(bucket, limit, now)
        if not wait_seconds:
            admitted.append(now)
    for number, since in enumerate(admitted):
        for more, until in enumerate(admitted[number:], 1):
            assert more <= limit.burst + (until - since) * limit.per_second + ROUNDING_SECONDS


@given(limits, gaps)
def test_a_refusal_names_the_time_at_which_there_is_room(limit: Limit, gaps: list[float]) -> None:
    """After that time the request is admitted, and not noticeably before. A refusal takes nothing."""
    now, bucket = 0.0, 0.0
    for gap in gaps:
        now += gap
        after, wait_seconds = taken(bucket, limit, now)
        if wait_seconds:
            assert after == bucket
            assert taken(bucket, limit, now + wait_seconds + ROUNDING_SECONDS)[1] == 0
            assert taken(bucket, limit, now + wait_seconds * 0.99 - ROUNDING_SECONDS)[1] > 0
        bucket = after


@given(limits, gaps)
def test_a_refused_caller_was_heard_a_moment_ago(limit: Limit, gaps: list[float]) -> None:
    """A refusal is no silence: less than the time of one request before it another one was admitted."""
    now, bucket, heard_at = 0.0, 0.0, 0.0
    for gap in gaps:
        now += gap
        bucket, wait_seconds = taken(bucket, limit, now)
        if wait_seconds:
            assert now - heard_at < limit.interval_seconds + ROUNDING_SECONDS
        else:
            heard_at = now


@given(limits, st.integers(1, 2_000))
def test_what_is_given_back_was_never_taken(limit: Limit, number: int) -> None:
    """However many requests come at once, one after another, none is refused if each is given back."""
    buckets = Buckets(limit)
    for _ in range(number):
        assert buckets.take("key", 5.0) == 0
        buckets.give_back("key")
    assert buckets.take("key", 5.0) == 0


def test_buckets_are_few() -> None:
    """Made-up keys fill no memory: full buckets are forgotten, and too many of the others, oldest first."""
    buckets = Buckets(Limit(per_second=10, burst=5), keys_max=100)
    for number in range(1_000):
        buckets.take(f"made up {number}", number * 0.05)
        assert len(buckets) <= 4
    for number in range(1_000):
        buckets.take(f"at once {number}", 60.0)
        assert len(buckets) <= 100
    assert buckets.wait_seconds("at once 999", 60.0) == 0
    for _ in range(4):
        buckets.take("at once 999", 60.0)
    assert buckets.wait_seconds("at once 999", 60.0) > 0


def test_a_refusal_says_when_to_come_back() -> None:
    limits = CallerLimits(0.25, clock=lambda: 7.0)
    for _ in range(3):
        limits.take(Counted.TOKEN, "ann")
    limits.take(Counted.TOKEN, "bob")
    with pytest.raises(Problem) as refused:
        limits.take(Counted.TOKEN, "ann")
    assert (refused.value.status, refused.value.slug) == (429, "too-many-requests")
    assert refused.value.body.retry_after_seconds == 4
    assert refused.value.body.title == "Too many requests of this token"
    limits.give_back(Counted.TOKEN, "ann")
    limits.take(Counted.TOKEN, "ann")


def test_only_requests_without_a_valid_credential_count_against_an_address() -> None:
    limits = CallerLimits(1.0, clock=lambda: 7.0)
    known, unknown = Problem(409, "conflict", ""), Problem(401, "unknown-token", "")
    for _ in range(1_000):
        assert limits.refused(known, "192.0.2.1") is known
    for _ in range(LIMITS[Counted.ADDRESS].burst):
        assert limits.refused(unknown, "192.0.2.1") is unknown
    assert limits.refused(unknown, "192.0.2.1").status == 429
    assert limits.refused(unknown, "192.0.2.2") is unknown
    assert limits.wait_seconds(Counted.ADDRESS, "192.0.2.1") > 0
    assert limits.wait_seconds(Counted.ADDRESS, "192.0.2.2") == 0


@pytest.mark.parametrize(
    ("address", "key"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:0:1::1", "20010db800000001::/64"),
        ("2001:db8:0:1:ffff::", "20010db800000001::/64"),
        ("2001:db8:0:2::1", "20010db800000002::/64"),
        ("", ""),
    ],
)
def test_one_host_may_have_a_whole_network(address: str, key: str) -> None:
    assert network(address).zfill(len(key)) == key
