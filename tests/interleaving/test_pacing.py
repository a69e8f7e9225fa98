"""Token buckets that replicas share: two sessions for every locking statement."""

from typing import Final

import pytest

import slipway_provisioner
from slipway_provisioner.providers.pacing import Share
from slipway_provisioner.store.pacing import SharedBuckets
from tests.support.provisioner import Provisioner
from tests.support.statements import Covered

locking: Final = Covered(slipway_provisioner)
PAUSE: Final = "SELECT FROM provider_bucket WHERE bucket = $1 FOR UPDATE"


def share(bucket: str = "calls", units: float = 1) -> Share:
    return Share(bucket=bucket, units=units, size=5, refill_per_second=2)


def replicas(provisioner: Provisioner) -> tuple[SharedBuckets, SharedBuckets]:
    """Two replicas on one database."""
    return SharedBuckets(lambda: provisioner.database), SharedBuckets(lambda: provisioner.database)


async def test_replicas_share_a_bucket(provisioner: Provisioner) -> None:
    """Five calls at once, then one in half a second, whichever replica makes it; an idle bucket fills up, and no
    further."""
    one, two = replicas(provisioner)
    waits = [await replica.take([share()], within_seconds=9) for _ in range(4) for replica in (one, two)]
    assert waits == [0, 0, 0, 0, 0, 0.5, 1.0, 1.5]
    await provisioner.set_clock(2)
    assert await one.take([share()], within_seconds=9) == 0
    await provisioner.set_clock(3600)
    assert [await two.take([share()], within_seconds=9) for _ in range(6)] == [0, 0, 0, 0, 0, 0.5]


async def test_a_clock_that_is_set_back_empties_a_bucket(provisioner: Provisioner) -> None:
    """And no more: its calls would wait for the hour by which it was ahead."""
    one, two = replicas(provisioner)
    await provisioner.set_clock(3600)
    await one.take([share()], within_seconds=60)
    await provisioner.set_clock(0)
    assert await two.take([share()], within_seconds=60) == 0.5
    assert [await one.take([share(units=100)], within_seconds=60) for _ in range(2)] == [50.5, 100.5]


async def test_buckets_are_separate(provisioner: Provisioner) -> None:
    one, two = replicas(provisioner)
    assert await one.take([share("a", 5)], within_seconds=9) == 0
    assert await two.take([share("b", 5)], within_seconds=9) == 0


async def test_a_wait_that_is_too_long_takes_nothing(provisioner: Provisioner) -> None:
    """From none of the buckets, so that calls that are not made do not delay others."""
    one, two = replicas(provisioner)
    assert await one.take([share("b", 5)], within_seconds=9) == 0
    assert await two.take([share("a", 3), share("b", 8)], within_seconds=3) == 4
    assert await one.take([share("a", 5)], within_seconds=0) == 0
    assert await one.take([share("b", 1)], within_seconds=0.5) == 0.5


@locking("store.pacing.TAKE")
async def test_two_calls_take_the_last_token(provisioner: Provisioner) -> None:
    """The second waits for the first, and then for its own token."""
    one, two = replicas(provisioner)
    assert await one.take([share(units=4)], within_seconds=9) == 0
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await db.fetch(PAUSE, "calls")
            first = provisioner.start(one.take([share()], within_seconds=9))
            await provisioner.until_waiting(first)
            second = provisioner.start(two.take([share()], within_seconds=9))
            await provisioner.until_waiting(first, second)
        assert sorted([await first, await second]) == [0, 0.5]


@locking("store.pacing.TAKE")
async def test_time_passes_while_a_call_waits_for_the_lock(provisioner: Provisioner) -> None:
    """The clock is read once the row is locked, so that what was refilled meanwhile counts."""
    one, two = replicas(provisioner)
    assert await one.take([share(units=5)], within_seconds=9) == 0
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await db.fetch(PAUSE, "calls")
            taking = provisioner.start(two.take([share(units=2)], within_seconds=0))
            await provisioner.until_waiting(taking)
            await provisioner.set_clock(1)
        assert await taking == 0


@locking("store.pacing.TAKE")
async def test_calls_that_share_two_buckets_do_not_block_each_other(provisioner: Provisioner) -> None:
    """In any order in which they name them."""
    one, two = replicas(provisioner)
    await one.take([share("a"), share("b")], within_seconds=9)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await db.fetch(PAUSE, "a")
            first = provisioner.start(one.take([share("b"), share("a")], within_seconds=9))
            second = provisioner.start(two.take([share("a"), share("b")], within_seconds=9))
            await provisioner.until_waiting(first, second)
            assert len(await db.fetch(f"{PAUSE} SKIP LOCKED", "b")) == 1, "a waiting call holds the other bucket"
        assert (await first, await second) == (0, 0)


@locking("store.pacing.TAKE", "store.pacing.EMPTY")
async def test_a_throttle_empties_a_bucket_that_is_in_use(provisioner: Provisioner) -> None:
    """A call that waits for the throttle finds no token. A throttle refills no bucket that is in debt."""
    one, two = replicas(provisioner)
    await one.take([share()], within_seconds=9)
    async with provisioner.database.acquire() as db:
        async with db.transaction():
            await db.fetch(PAUSE, "calls")
            emptying = provisioner.start(one.empty([share()]))
            await provisioner.until_waiting(emptying)
            taking = provisioner.start(two.take([share(units=2)], within_seconds=9))
            await provisioner.until_waiting(emptying, taking)
        await emptying
        assert await taking == pytest.approx(1.0)
    await one.empty([share()])
    assert await two.take([share()], within_seconds=9) == pytest.approx(1.5)
