from slipway_lease_broker.domain.terms import Backoff
from tests.requirements.virtual import Virtual, acquire_request, paced, release
from tests.support.lease_broker import Broker

LIMIT = 10
INTERVAL_SECONDS = 1200 / (2 * LIMIT)


async def test_failing_holders(broker: Broker) -> None:
    """All holders fail: a healthy tenant still gets a slot within one pacing interval."""
    await broker.declare(paced(LIMIT, backoff=Backoff(seconds=120, max_seconds=900)))
    lived = Virtual(broker)
    await lived.send(*(acquire_request(f"bad-{number}", "broken") for number in range(3 * LIMIT)))
    await lived.until((LIMIT - 1) * INTERVAL_SECONDS)
    held = [grant for _, grant in lived.granted]
    assert len(held) == LIMIT
    await lived.send(acquire_request("good", "healthy"), *(release(grant, "failed") for grant in held))
    asked_at = lived.now
    await lived.until(asked_at + INTERVAL_SECONDS)
    assert lived.names()[LIMIT:] == ["good"], "and those that failed wait"
    await lived.until(asked_at + 900 + INTERVAL_SECONDS)
    assert "bad-10" in lived.names(), "but not forever"
