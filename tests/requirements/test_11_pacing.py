import itertools
from collections import Counter

from tests.requirements.virtual import Virtual, acquire_request, paced
from tests.support.lease_broker import Broker

LIMIT = 50
PER_MINUTE = 5  # 2 × limit / hold


async def test_pacing(broker: Broker) -> None:
    """The peak of starts per minute is bounded; a single job is not delayed."""
    # No offset by a hash of the request is needed: starts are spaced in one place, under the lease pool's lock, so that
    # no two starts coincide and a single job does not wait.
    await broker.declare(paced(LIMIT))
    lived = Virtual(broker)
    (lone,) = await lived.send(acquire_request("lone"))
    assert (lone.request_id, lone.waited_seconds) == ("lone", 0)
    await lived.at(60)
    await lived.send(*(acquire_request(f"r{number}") for number in range(LIMIT - 1)))
    await lived.until(15 * 60)
    starts = [at for at, _ in lived.granted[1:]]
    assert len(starts) == LIMIT - 1
    assert max(sum(at <= other < at + 60 for other in starts) for at in starts) == PER_MINUTE
    assert starts[0] == 60, "a request after a pause is not delayed"
    steps = Counter(round(b - a, 6) for a, b in itertools.pairwise(starts))
    assert steps == {12.0: LIMIT - 2}
