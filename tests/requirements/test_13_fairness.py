from tests.lease_broker import Broker
from tests.requirements.virtual import Virtual, ask, paced, release

WAITERS = 1000


async def test_fairness(broker: Broker) -> None:
    """1 tenant × 1,000 waiters vs 9 × 1: each of the 9 served within 10 grants."""
    await broker.declare(paced(1, pacing="off", hold_seconds=1e6))
    lived = Virtual(broker)
    (held,) = await lived.ask(*(ask(f"many-{number}", "many") for number in range(WAITERS)))
    few = {f"few-{number}" for number in range(9)}
    await lived.ask(*(ask(name, name) for name in sorted(few)))
    for _ in range(10):
        (held,) = await lived.ask(release(held))
    assert few <= set(lived.names()[1:11])
    many = [name for name in lived.names() if name not in few]
    assert many == ["many-0", "many-1"], "first come, first served inside a tenant"
