"""`make square-wave`: fifty installations at once, then two hundred over twenty minutes, in a lease pool of fifty.

With a fixed hold, the first wave repeats for ever. Compares the lease-broker's pacing with a fixed hold, a random delay
in each client and a random hold; then, for 50 and 250 installations at once, its default with the one before, with none
and with clients that start in the end without a lease. Prints tables over the seeds, then the claimed figures of the
worst seed; exits with 1 if one is false. SEED runs one seed only.
"""

import heapq
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from random import Random
from statistics import fmean, median
from typing import Final

import msgspec

from bench.leases import at_once
from bench.leases.at_once import CROWDS, MAX_WAIT_SECONDS, PACINGS, in_a_minute, most_in_a_third
from bench.leases.broker import Broker, at
from bench.leases.claims import Verdict, closest, report
from bench.leases.seeds import BadSeed, seeds
from slipway_api.events.lease import LeaseGroup
from slipway_lease_broker.domain.report import most_per_minute
from slipway_lease_broker.domain.terms import Policy

CAP: Final = 50
HOLD_SECONDS: Final = 1200.0
FIRST, LATER, LATER_SECONDS = 50, 200, 1200.0
JITTER_SECONDS: Final = 900.0
SEEDS: Final = 20

PEAK_MAX, LAST_MINUTES_MAX = 5, 92.0
SECOND_SECONDS_MAX: Final = 30.0  # of a lease pool of two
LAUNCHES_MIN: Final = 60  # a minute, of an account of aws
THIRD_MAX: Final = 2 / 3  # of the starts without a lease, in any third of their time
GROUP: Final = LeaseGroup(name="payload", size=10, spread_seconds=900)

Start = tuple[float, float]  # requested, started; seconds


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One policy: means over the seeds; `peak_most` and `last_most` are of the worst seed."""

    policy: str
    peak: float
    peak_most: int
    later: float  # peak after the first ten minutes
    wait: float  # median, in minutes
    last: float  # minutes
    last_most: float
    lone: float  # mean seconds that one job waits in an idle lease pool


def arrivals(seed: int) -> list[float]:
    """Seconds at which jobs arrive, in order."""
    chance = Random(f"arrivals/{seed}")
    return [0.0] * FIRST + sorted(chance.uniform(0, LATER_SECONDS) for _ in range(LATER))


def slipway(requested: Sequence[float], seed: int) -> list[Start]:
    """Starts by the lease-broker's own decisions."""
    broker, found, left = Broker(CAP, HOLD_SECONDS, Policy()), [], [*requested][::-1]
    times = dict(enumerate(requested))
    number = 0
    while left or broker.requests:
        nexts = [*left[-1:], *([broker.wake_at] if broker.wake_at is not None else [])]
        now = min(nexts)
        while left and left[-1] <= now:
            broker.request(str(number), left.pop())
            number += 1
        found += [(times[int(lease.request_id)], now) for lease in broker.decide(now)]
    return found


def fixed_hold(requested: Sequence[float], seed: int) -> list[Start]:
    """Starts when every unit is held for the same time."""
    return _first_come(requested, [HOLD_SECONDS] * len(requested))


def client_jitter(requested: Sequence[float], seed: int) -> list[Start]:
    """Starts when each client sleeps up to 15 minutes before its request."""
    chance = Random(f"jitter/{seed}")
    delayed = sorted((time + chance.uniform(0, JITTER_SECONDS), time) for time in requested)
    starts = _first_come([late for late, _ in delayed], [HOLD_SECONDS] * len(requested))
    return [(time, start) for (_, time), (_, start) in zip(delayed, starts, strict=True)]


def hold_jitter(requested: Sequence[float], seed: int) -> list[Start]:
    """Starts when holds vary by up to 25 %."""
    chance = Random(f"holds/{seed}")
    return _first_come(requested, [HOLD_SECONDS * chance.uniform(0.75, 1.25) for _ in requested])


def _first_come(requested: Sequence[float], holds: Sequence[float]) -> list[Start]:
    ends: list[float] = []
    found = []
    for time, hold in zip(requested, holds, strict=True):
        start = time if len(ends) < CAP else max(time, heapq.heappop(ends))
        heapq.heappush(ends, start + hold)
        found.append((time, start))
    return found


POLICIES: Final[Mapping[str, Callable[[Sequence[float], int], list[Start]]]] = {
    "fixed hold": fixed_hold,
    "client jitter 15 min": client_jitter,
    "hold jitter ± 25 %": hold_jitter,
    "slipway": slipway,
}


def group_starts(crowd: int) -> list[float]:
    """Starts of ten group members that request at the same time as `crowd` jobs outside the group."""
    broker, found = Broker(CAP, HOLD_SECONDS, Policy()), []
    for number in range(crowd):
        broker.request(f"crowd-{number}", 0.0)
    for number in range(GROUP.size):
        broker.request(f"member-{number}", 0.0, group=GROUP)
    now: float | None = 0.0
    while now is not None and broker.requests:
        found += [now for lease in broker.decide(now) if lease.request_id.startswith("member")]
        now = broker.wake_at
    return found


def row(policy: str, wanted: Sequence[int]) -> Row:
    """Play one policy on all given seeds."""
    play = POLICIES[policy]
    runs = [play(arrivals(seed), seed) for seed in wanted]
    peaks = [peak(run) for run in runs]
    lasts = [max(start for _, start in run) / 60 for run in runs]
    return Row(
        policy=policy,
        peak=fmean(peaks),
        peak_most=max(peaks),
        later=fmean(peak([(time, start) for time, start in run if start >= 600]) for run in runs),
        wait=fmean(median(start - time for time, start in run) for run in runs) / 60,
        last=fmean(lasts),
        last_most=max(lasts),
        lone=fmean(start - time for seed in wanted for time, start in play([seed * 1000.0], seed)),
    )


def peak(starts: Sequence[Start]) -> int:
    """Most starts within any 60 s."""
    return most_per_minute((at(start), 1) for _, start in starts)


def verdicts(ours: Row, groups: Sequence[Sequence[float]]) -> list[Verdict]:
    """Verdicts on the lease-broker's row and on the starts of its groups."""
    apart, near = GROUP.spread_seconds / GROUP.size, min(map(closest, groups))
    is_whole = all(len(group) == GROUP.size for group in groups)
    return [
        Verdict(ours.peak_most <= PEAK_MAX, f"peak {ours.peak_most}/min ≤ {PEAK_MAX}/min"),
        Verdict(ours.last_most <= LAST_MINUTES_MAX, f"last {ours.last_most:.1f} min ≤ {LAST_MINUTES_MAX:g} min"),
        Verdict(ours.lone == 0, f"lone {ours.lone:g} s = 0 s"),
        Verdict(
            is_whole and near >= apart,
            f"group of {GROUP.size} over {GROUP.spread_seconds / 60:g} min: closest {near:g} s ≥ {apart:g} s",
        ),
    ]


def crowd_verdicts(wanted: Sequence[int]) -> list[Verdict]:
    """Print the starts of crowds that arrive at once; verdicts on them."""
    print(f"\nall at once; limit {at_once.LIMIT}, hold {at_once.HOLD_SECONDS / 60:g} min")
    print(f"{'pacing':<32}{'jobs':>6}{'peak/min':>10}{'last start':>12}{'lone job':>10}")

    def line(name: str, jobs: int, found: Sequence[float], lone: float) -> None:
        print(f"{name:<32}{jobs:>6}{in_a_minute(found):>10}{max(found) / 60:>8.1f} min{lone:>8.0f} s")

    peaks, lones, thirds = [], [], []
    for jobs in CROWDS:
        for name, policy in PACINGS.items():
            found, (lone,) = at_once.starts(policy, jobs), at_once.starts(policy, 1)
            line(name, jobs, found, lone)
            if name == "new default":
                peaks.append(in_a_minute(found))
                lones.append(lone)
        runs = [at_once.unleased(jobs, seed) for seed in wanted]
        worst = max(runs, key=in_a_minute)
        line("full, --fail-open always", jobs, worst, at_once.unleased(1, wanted[0])[0])
        thirds += [most_in_a_third(run, MAX_WAIT_SECONDS / 2, MAX_WAIT_SECONDS) for run in runs]
        is_inside = all(MAX_WAIT_SECONDS / 2 <= start <= MAX_WAIT_SECONDS for run in runs for start in run)
        thirds += [] if is_inside else [1.0]
    seconds = {name: at_once.starts(policy, 2, limit=2)[1] for name, policy in PACINGS.items()}
    print("limit 2, second start: " + ", ".join(f"{name} {second:g} s" for name, second in seconds.items()))
    second, launched = seconds["new default"], in_a_minute(at_once.launches(4 * LAUNCHES_MIN))
    print(f"launches of an aws account: {launched} a minute")
    return [
        Verdict(max(peaks) <= PEAK_MAX, f"all at once: peak {max(peaks)}/min ≤ {PEAK_MAX}/min"),
        Verdict(max(lones) == 0, f"lone {max(lones):g} s = 0 s"),
        Verdict(max(thirds) <= THIRD_MAX, f"without a lease: {max(thirds):.2f} in any third ≤ {THIRD_MAX:.2f}"),
        Verdict(second <= SECOND_SECONDS_MAX, f"limit 2: second start {second:g} s ≤ {SECOND_SECONDS_MAX:g} s"),
        Verdict(launched >= LAUNCHES_MIN, f"aws: {launched} launches/min ≥ {LAUNCHES_MIN}/min"),
    ]


def main(environment: Mapping[str, str]) -> int:
    try:
        wanted = seeds(environment, SEEDS)
    except BadSeed as error:
        print(f"square-wave: {error}", file=sys.stderr)
        return 2
    print(
        f"{FIRST} at once, then {LATER} over {LATER_SECONDS / 60:g} min; cap {CAP}, hold {HOLD_SECONDS / 60:g} min;"
        f" {len(wanted)} seed{'s' if len(wanted) > 1 else ''}, means"
    )
    print(f"{'policy':<22}{'peak/min':>10}{'after 10 min':>14}{'median wait':>13}{'last start':>12}{'lone job':>10}")
    rows = {policy: row(policy, wanted) for policy in POLICIES}
    for one in rows.values():
        print(
            f"{one.policy:<22}{one.peak:>10.1f}{one.later:>14.1f}{one.wait:>9.1f} min{one.last:>8.1f} min"
            f"{one.lone:>8.0f} s"
        )
    crowds = crowd_verdicts(wanted)
    return report([*verdicts(rows["slipway"], [group_starts(0), group_starts(FIRST)]), *crowds])


if __name__ == "__main__":
    sys.exit(main(os.environ))
