from itertools import pairwise

from slipway_api.events.lease import LeaseCancelRequested, LeaseGranted
from slipway_lease_broker.domain.pacing import Pacing
from slipway_lease_broker.domain.terms import Bounds
from tests.requirements.virtual import POOL, Virtual, acquire_request, paced, release
from tests.support.lease_broker import Broker

BEARS = 8  # concurrent leases that the provider does not throttle
DECLARED, FLOOR, CEILING = 20, 2, 30
HOLD_SECONDS = 60.0
STEP_SECONDS = 15.0
STEPS = 150
WAITERS = 2000


async def test_adaptive_limit(broker: Broker) -> None:
    """At most one multiplicative cut per window, +1 per hold window only when saturated, floor and ceiling, Retry-After
    blocks grants, no evidence changes nothing."""
    bounds = Bounds(floor=FLOOR, ceiling=CEILING)
    await broker.declare(paced(DECLARED, adaptive=bounds, pacing=Pacing(1.0, CEILING), hold_seconds=HOLD_SECONDS))
    lived = Virtual(broker)
    await lived.send(*(acquire_request(f"r{number}") for number in range(WAITERS)))
    lived.limits.clear()  # its declaration
    held: list[tuple[float, LeaseGranted, bool]] = []
    throttled: list[bool] = []
    for step in range(STEPS):
        await lived.at(step * STEP_SECONDS)
        ending = [each for each in held if lived.now - each[0] >= HOLD_SECONDS / 2]
        held = [each for each in held if each not in ending]
        throttled += [hit for _, _, hit in ending]
        await lived.send(*(release(grant, throttled=hit) for _, grant, hit in ending))
        for at, grant in lived.granted[len(held) + len(throttled) :]:
            held.append((at, grant, len(held) >= BEARS))

    changes = [(at, change.previous_limit, change.limit) for at, change in lived.limits]
    assert all(FLOOR <= limit <= CEILING for _, _, limit in changes)
    cuts = [at for at, before, after in changes if before is not None and after < before]
    assert len(cuts) >= 3
    assert all(later - earlier >= HOLD_SECONDS for earlier, later in pairwise(cuts))
    rises = [(at, after - before) for at, before, after in changes if before is not None and after > before]
    assert {by for _, by in rises} == {1}
    assert all(later - earlier >= HOLD_SECONDS for (earlier, _), (later, _) in pairwise(rises))
    late = [limit for at, _, limit in changes if at > STEPS * STEP_SECONDS / 2]
    assert BEARS <= min(late) <= max(late) <= 2 * BEARS < DECLARED, "it has come near what the cloud bears"

    (row,) = await broker.pool.fetch("SELECT waiting_requests, limit_in_force FROM lease_pools WHERE id = $1", POOL)
    waiting = [f"r{number}" for number in range(WAITERS - row["waiting_requests"], WAITERS)]
    await lived.send(
        *(LeaseCancelRequested(lease_pool_id=POOL, request_id=name, units=1, reason="over") for name in waiting),
        *(release(grant) for _, grant, _ in held[1:]),
    )
    known = len(lived.limits)
    await lived.until(lived.now + 20 * HOLD_SECONDS)
    assert len(lived.limits) == known

    (grant,) = await lived.send(acquire_request("last"))
    away = 3 * HOLD_SECONDS
    await lived.send(release(grant, throttled=True, retry_after_seconds=away), acquire_request("blocked"))
    asked_at = lived.now
    await lived.until(asked_at + away)
    assert lived.granted[-1][1].request_id == "blocked"
    assert lived.granted[-1][0] >= asked_at + away
