from tests.requirements.live import Live


async def test_attempt_reacquire(live: Live) -> None:
    """One operation (old lease ends, new request enters with age credit); no window in which two or none are held."""
    pool = await live.pool("reacquire", 1, ttl_seconds=60.0)
    client, other = live.client("attempts"), live.client("other")
    first = (await client.acquire(pool, "attempt-1")).lease
    assert first is not None
    assert (await other.acquire(pool, "other")).answer == "waiting"
    second = (await client.acquire(pool, "attempt-2", replaces=first)).lease
    assert second is not None, "it has the age of the earlier attempt, and goes before those that came after that"
    again = (await client.acquire(pool, "attempt-2", replaces=first)).lease
    assert again is not None
    assert again.lease_id == second.lease_id
    (row,) = await live.rows(
        "SELECT o.ended_at = n.granted_at AS same FROM leases AS o, leases AS n WHERE o.id = $1 AND n.id = $2",
        first.lease_id,
        second.lease_id,
    )
    assert row["same"], "one ends as the other begins"
    late = await client.send("renew", pool, first)
    assert (late.answer, late.reason) == ("refused", "replaced")
    assert await live.peak(pool) == 1
    assert (await other.acquire(pool, "other")).answer == "waiting"
    await client.send("release", pool, second)
    assert await live.granted(other, pool, "other")
    assert await live.violations(pool) == []
