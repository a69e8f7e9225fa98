from tests.requirements.virtual import Virtual, acquire_request, paced, release
from tests.support.lease_broker import Broker

WAITERS = 1000


async def test_fairness(broker: Broker) -> None:
    """One tenant with 1,000 requests and nine with one each: each of the nine is served within 10 grants."""
    await broker.declare(paced(1, pacing="off", hold_seconds=1e6))
    lived = Virtual(broker)
    (held,) = await lived.send(*(acquire_request(f"many-{number}", "many") for number in range(WAITERS)))
    few = {f"few-{number}" for number in range(9)}
    await lived.send(*(acquire_request(name, name) for name in sorted(few)))
    for _ in range(10):
        (held,) = await lived.send(release(held))
    assert few <= set(lived.names()[1:11])
    many = [name for name in lived.names() if name not in few]
    assert many == ["many-0", "many-1"], "first come, first served inside a tenant"
