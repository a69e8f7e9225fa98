"""Token buckets of one process, and the wait for their tokens."""

import pytest

from slipway_provisioner.providers.pacing import LocalBuckets, Share, paced


class Clock:
    """A clock that a test sets."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def share(bucket: str = "calls", units: float = 1) -> Share:
    return Share(bucket=bucket, units=units, size=5, refill_per_second=2)


async def test_a_bucket_of_one_process() -> None:
    """Its size at once, then its refill; an idle bucket fills up, and no further."""
    clock = Clock()
    buckets = LocalBuckets(clock)
    assert [await buckets.take([share()], within_seconds=9) for _ in range(7)] == [0, 0, 0, 0, 0, 0.5, 1.0]
    clock.seconds = 3600.0
    assert [await buckets.take([share()], within_seconds=9) for _ in range(6)] == [0, 0, 0, 0, 0, 0.5]


async def test_a_wait_that_is_too_long_takes_nothing() -> None:
    buckets = LocalBuckets(Clock())
    assert await buckets.take([share("b", 5)], within_seconds=9) == 0
    assert await buckets.take([share("a", 3), share("b", 8)], within_seconds=3) == 4
    assert await buckets.take([share("a", 5)], within_seconds=0) == 0


async def test_a_throttle_empties_a_bucket() -> None:
    buckets = LocalBuckets(Clock())
    await buckets.empty([share()])
    assert await buckets.take([share()], within_seconds=9) == pytest.approx(0.5)


async def test_the_missing_wait_is_returned() -> None:
    """A call that would have to wait for too long is not made. One that takes no tokens is not delayed."""
    buckets = LocalBuckets(Clock())
    assert await paced(buckets, [share(units=5)], within_seconds=0) == 0
    assert await paced(buckets, [share()], within_seconds=0.4) == pytest.approx(0.5)
    assert await paced(buckets, [], within_seconds=0) == 0
    assert await paced(buckets, [share(units=200)], within_seconds=3600) == pytest.approx(100)
