"""`make fairness`: who is served, when one tenant asks for a thousand times as much as the others.

By the lease-broker's own decisions on a virtual clock, in four crowds:

    one against nine    1,000 waiters of one tenant; nine others ask for one unit each, at any time
    equals              ten tenants, each with more waiters than are served, at any size and duration
    weights             the same with weights 1, 2 and 4
    priorities          a flood at priority 9, while others wait at lower ones

Prints the figures of the worst seed, each with its bound, and ends with 1 when one is false. SEED plays one seed only.
"""

import heapq
import os
import sys
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

import msgspec

from bench.leases.broker import Broker
from bench.leases.judges import Verdict, jain, shares, told, turns
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


class Ask(msgspec.Struct, frozen=True):
    """`holds` are the seconds that its lease lasts."""

    at: float
    tenant: str
    holds: float
    units: int = 1
    priority: int = 0


class Grant(msgspec.Struct, frozen=True):
    at: float
    ask: Ask


def play(asks: Sequence[Ask], weights: Mapping[str, float], grants: int) -> list[Grant]:
    """The first so many grants. Without pacing, which would only make them fewer."""
    broker = Broker(LIMIT, HOLD_SECONDS, Policy(pacing="off", tenants=dict(weights), ageing_seconds=AGEING_SECONDS))
    of = {str(number): ask for number, ask in enumerate(sorted(asks, key=lambda ask: ask.at))}
    coming = [(ask.at, name) for name, ask in of.items()][::-1]
    ends: list[tuple[float, int, str]] = []  # when, in order of grants, lease
    found: list[Grant] = []
    while len(found) < grants and (coming or ends):
        now = min([time for time, _ in coming[-1:]] + [time for time, _, _ in ends[:1]])
        while ends and ends[0][0] <= now:
            broker.release(broker.leases[heapq.heappop(ends)[2]], now)
        while coming and coming[-1][0] <= now:
            name = coming.pop()[1]
            broker.ask(name, now, tenant=of[name].tenant, units=of[name].units, priority=of[name].priority)
        for lease in broker.decide(now):
            ask = of[lease.request_id]
            heapq.heappush(ends, (now + ask.holds, len(found), lease.id))
            found.append(Grant(now, ask))
    return found[:grants]


def one_against_nine(seed: int) -> int | None:
    """With which grant after it asked the last of the nine was served."""
    chance = Random(f"nine/{seed}")
    asks = [Ask(0.0, "big", _holds(chance)) for _ in range(MANY)]
    asks += [Ask(chance.uniform(1, 40_000) if seed % 2 else 20_000.0, name, _holds(chance)) for name in NINE]
    found = play(asks, {}, len(asks))
    before = {ask.tenant: sum(grant.at < ask.at for grant in found) for ask in asks if ask.tenant in NINE}
    places = turns([grant.ask.tenant for grant in found], before)
    return None if None in places.values() else max(place for place in places.values() if place is not None)


def equals(seed: int) -> float:
    """Jain's index over ten tenants, by units."""
    chance = Random(f"equals/{seed}")
    names = [f"t{number}" for number in range(10)]
    asks = [Ask(0.0, name, _holds(chance), chance.randint(1, 3)) for name in names for _ in range(100)]
    return jain(shares(((g.ask.tenant, g.ask.units) for g in play(asks, {}, 500)), names).values())


def weighted(seed: int) -> float:
    """How far a tenant's share of all units is from what its weight gives it, at most."""
    chance = Random(f"weighted/{seed}")
    asks = [Ask(0.0, name, _holds(chance), chance.randint(1, 3)) for name in WEIGHTS for _ in range(600)]
    got = shares(((grant.ask.tenant, grant.ask.units) for grant in play(asks, WEIGHTS, 700)), WEIGHTS)
    return max(abs(got[name] - weight / sum(WEIGHTS.values())) for name, weight in WEIGHTS.items())


def priorities(seed: int) -> float:
    """The longest wait below a flood beyond what ageing allows for, in grants; without end for who never started."""
    chance = Random(f"priorities/{seed}")
    low = [Ask(chance.uniform(0, 4000), f"low-{number}", _holds(chance), priority=number) for number in range(9)]
    asks = [Ask(0.0, "flood", _holds(chance), priority=9) for _ in range(2 * MANY)] + low
    found = play(asks, {}, len(asks))
    times = {grant.ask: grant.at for grant in found if grant.ask.tenant != "flood"}
    late = [float("inf")]
    for ask in low if len(times) == len(low) else []:
        top = ask.at + (9 - ask.priority) * AGEING_SECONDS
        late.append(sum(top < grant.at <= times[ask] for grant in found))
    return max(late[1:] or late)


def _holds(chance: Random) -> float:
    return chance.uniform(60, 900)


def verdicts(wanted: Sequence[int]) -> list[Verdict]:
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
        Verdict(error <= SHARE_ERROR_MAX, f"weights 1:2:4 kept to {error:.4f} ≤ {SHARE_ERROR_MAX}"),
        Verdict(
            late <= tenants,
            f"a priority p is served {late:g} ≤ {tenants} grants after (9 − p) × {AGEING_SECONDS:g} s at the latest",
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
    return told(verdicts(wanted))


if __name__ == "__main__":
    sys.exit(main(os.environ))
