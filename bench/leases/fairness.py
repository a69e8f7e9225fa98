"""`make fairness`: fairness of grants between tenants, by the lease-broker's own decisions on a virtual clock.

Four workloads:

    one against nine    1,000 waiters of one tenant; nine others request one unit each, at any time
    equals              ten tenants, each with more waiters than are served, of any size and duration
    weights             the same with weights 1, 2 and 4
    priorities          a flood at priority 9, while others wait at lower priorities

Prints the figures of the worst seed, each with its bound, and exits with 1 if one is false. SEED runs one seed only.
"""

import heapq
import os
import sys
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

import msgspec

from bench.leases.broker import Broker
from bench.leases.claims import Verdict, grants_until_served, jain, report, shares
from bench.leases.seeds import BadSeed, seeds
from slipway_lease_broker.domain.terms import Policy

SEEDS: Final = 10
LIMIT: Final = 10
HOLD_SECONDS: Final = 1200.0
AGEING_SECONDS: Final = 300.0
MANY: Final = 1000
NINE: Final = tuple(f"small-{number}" for number in range(9))

TURNS_MAX: Final = 10
JAIN_MIN: Final = 0.99
SHARE_ERROR_MAX: Final = 0.01
WEIGHTS: Final = {"one": 1.0, "two": 2.0, "four": 4.0}


class Request(msgspec.Struct, frozen=True):
    """One request: its time, tenant, units and priority, and the seconds that its lease is held."""

    at: float
    tenant: str
    hold_seconds: float
    units: int = 1
    priority: int = 0


class Grant(msgspec.Struct, frozen=True):
    """One granted request and the time of its grant."""

    at: float
    request: Request


def play(requests: Sequence[Request], weights: Mapping[str, float], grants: int) -> list[Grant]:
    """The first `grants` grants, without pacing, which would only delay them."""
    broker = Broker(LIMIT, HOLD_SECONDS, Policy(pacing="off", tenants=dict(weights), ageing_seconds=AGEING_SECONDS))
    of = {str(number): request for number, request in enumerate(sorted(requests, key=lambda request: request.at))}
    coming = [(request.at, name) for name, request in of.items()][::-1]
    ends: list[tuple[float, int, str]] = []  # when, in order of grants, lease
    found: list[Grant] = []
    while len(found) < grants and (coming or ends):
        now = min([time for time, _ in coming[-1:]] + [time for time, _, _ in ends[:1]])
        while ends and ends[0][0] <= now:
            broker.release(broker.leases[heapq.heappop(ends)[2]], now)
        while coming and coming[-1][0] <= now:
            name = coming.pop()[1]
            broker.request(name, now, tenant=of[name].tenant, units=of[name].units, priority=of[name].priority)
        for lease in broker.decide(now):
            request = of[lease.request_id]
            heapq.heappush(ends, (now + request.hold_seconds, len(found), lease.id))
            found.append(Grant(now, request))
    return found[:grants]


def one_against_nine(seed: int) -> int | None:
    """Grants until the last of the nine is served, counted from its request; None if one is never served."""
    chance = Random(f"nine/{seed}")
    requests = [Request(0.0, "big", _hold(chance)) for _ in range(MANY)]
    requests += [Request(chance.uniform(1, 40_000) if seed % 2 else 20_000.0, name, _hold(chance)) for name in NINE]
    found = play(requests, {}, len(requests))
    before = {
        request.tenant: sum(grant.at < request.at for grant in found) for request in requests if request.tenant in NINE
    }
    places = grants_until_served([grant.request.tenant for grant in found], before)
    return None if None in places.values() else max(place for place in places.values() if place is not None)


def equals(seed: int) -> float:
    """Jain's index over ten tenants, by units."""
    chance = Random(f"equals/{seed}")
    names = [f"t{number}" for number in range(10)]
    requests = [Request(0.0, name, _hold(chance), chance.randint(1, 3)) for name in names for _ in range(100)]
    return jain(shares(((g.request.tenant, g.request.units) for g in play(requests, {}, 500)), names).values())


def weighted(seed: int) -> float:
    """Largest difference between a tenant's share of all units and its share of the weights."""
    chance = Random(f"weighted/{seed}")
    requests = [Request(0.0, name, _hold(chance), chance.randint(1, 3)) for name in WEIGHTS for _ in range(600)]
    got = shares(((grant.request.tenant, grant.request.units) for grant in play(requests, WEIGHTS, 700)), WEIGHTS)
    return max(abs(got[name] - weight / sum(WEIGHTS.values())) for name, weight in WEIGHTS.items())


def priorities(seed: int) -> float:
    """Most grants that a lower priority waits beyond its ageing; infinite if one is never granted."""
    chance = Random(f"priorities/{seed}")
    low = [Request(chance.uniform(0, 4000), f"low-{number}", _hold(chance), priority=number) for number in range(9)]
    requests = [Request(0.0, "flood", _hold(chance), priority=9) for _ in range(2 * MANY)] + low
    found = play(requests, {}, len(requests))
    times = {grant.request: grant.at for grant in found if grant.request.tenant != "flood"}
    late = [float("inf")]
    for request in low if len(times) == len(low) else []:
        top = request.at + (9 - request.priority) * AGEING_SECONDS
        late.append(sum(top < grant.at <= times[request] for grant in found))
    return max(late[1:] or late)


def _hold(chance: Random) -> float:
    return chance.uniform(60, 900)


def verdicts(wanted: Sequence[int]) -> list[Verdict]:
    """Verdicts of all claims by the worst of the given seeds."""
    places = [one_against_nine(seed) for seed in wanted]
    served = max((place for place in places if place is not None), default=0)
    index = min(map(equals, wanted))
    error = max(map(weighted, wanted))
    late = max(map(priorities, wanted))
    tenants = 10
    return [
        Verdict(
            None not in places and served <= TURNS_MAX,
            f"1 × {MANY} against 9 × 1: each served within {served} ≤ {TURNS_MAX} grants"
            if None not in places
            else f"1 × {MANY} against 9 × 1: each served",
        ),
        Verdict(index >= JAIN_MIN, f"Jain {index:.4f} ≥ {JAIN_MIN}"),
        Verdict(error <= SHARE_ERROR_MAX, f"weights 1:2:4 met within {error:.4f} ≤ {SHARE_ERROR_MAX}"),
        Verdict(
            late <= tenants,
            f"priority p is served at most {late:g} ≤ {tenants} grants after (9 − p) × {AGEING_SECONDS:g} s",
        ),
    ]


def main(environment: Mapping[str, str]) -> int:
    try:
        wanted = seeds(environment, SEEDS)
    except BadSeed as error:
        print(f"fairness: {error}", file=sys.stderr)
        return 2
    print(
        f"limit {LIMIT}, leases of 1 to 15 min, {len(wanted)} seed{'s' if len(wanted) > 1 else ''}; the worst of them:"
    )
    return report(verdicts(wanted))


if __name__ == "__main__":
    sys.exit(main(os.environ))
