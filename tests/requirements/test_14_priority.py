from itertools import count

from tests.requirements.virtual import Virtual, acquire_request, paced, release
from tests.support.lease_broker import Broker

AGEING_SECONDS = 60.0
LEVELS = 9


async def test_priority_without_starvation(broker: Broker) -> None:
    """Priority with ageing and optional reserved slots; proven starvation bound."""
    await broker.declare(paced(1, pacing="off", ageing_seconds=AGEING_SECONDS, hold_seconds=1e6))
    lived = Virtual(broker)
    (held,) = await lived.send(acquire_request("first"))
    await lived.send(acquire_request("low", "patient"), acquire_request("high", "urgent", priority=5))
    (held,) = await lived.send(release(held))
    assert held.request_id == "high"
    bound = LEVELS * AGEING_SECONDS
    for number in count():  # urgent requests arrive faster than any are served
        await lived.send(*(acquire_request(f"urgent-{number}-{twin}", "urgent", priority=9) for twin in range(2)))
        await lived.at(lived.now + 10)
        (held,) = await lived.send(release(held))
        if held.request_id == "low" or lived.now > 2 * bound:
            break
    assert held.request_id == "low"
    assert bound - AGEING_SECONDS < held.waited_seconds <= bound + 2 * 10
