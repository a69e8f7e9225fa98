"""What the table has to show. Each claim is judged from the figures, and says them: by means, or of fewer than five
runs by their intervals."""

from collections.abc import Iterator, Mapping, Sequence
from math import floor, log10
from typing import Final

import msgspec

from bench.policies.intervals import Interval, as_of
from bench.policies.published import RECOMMENDED, RUNS
from bench.policies.results import Summary

OURS: Final = "slipway"
ENOUGH: Final = 5
RATIO_MAX: Final = 0.025
WAIT_MAX: Final = 1.03  # times the oracle's
OUTAGE_FAILED_MAX: Final = 120.0
STEADY_FAILED: Final = 209.0
STEADY_SHARE_MIN: Final = 0.05
RECOVER_MINUTES_MAX: Final = 5.0
BAD_LAUNCHES_MAX: Final = 25.0
UNFAIRNESS_MAX: Final = 0.03
# Which published figures depend on a definition that was not published, and what is measured in their place: judged
# against the same rule, played here with the same luck.
MEASURED_HERE: Final = {
    "detect_minutes": "the end of the first minute below a quarter of the fair share",
    "recover_minutes": "the end of the first minute at 80 % of the fair share",
}
MORE_IS_BETTER: Final = ("share_left",)
WORDS: Final = {
    "failed": "failed launches",
    "detect_minutes": "minutes to detect",
    "recover_minutes": "minutes to recover",
    "share_left": "share left",
    "unfairness": "unfairness",
    "on_bad_image": "launches on the bad image",
    "wait_mean": "mean wait s",
    "ratio": "failed/ok",
    "peak": "failures in a minute",
}


class Verdict(msgspec.Struct, frozen=True):
    """`by_rule`: it holds by the rule played here, and the figure that was published is not met."""

    claim: str
    holds: bool
    found: str
    by_rule: bool = False

    def __str__(self) -> str:
        word = "FALSE" if not self.holds else "by the rule played here" if self.by_rule else "true "
        return f"{word} {self.claim}: {self.found}"


Summaries = Mapping[tuple[str, str], Summary]


def verdicts(found: Summaries) -> list[Verdict]:
    """Of every claim whose scenarios are there."""
    return [*_headline(found), *_against_published(found), *_better(found), *_bad_images(found), *_fair(found)]


def say(value: Interval | None) -> str:
    if value is None:
        return "–"
    if value.half == 0:
        return f"{value.mean:.4g}"
    decimals = max(0, 1 - floor(log10(value.half)))  # two digits of what is uncertain
    return f"{value.mean:.{decimals}f} ± {value.half:.{decimals}f}"


def _least(value: Interval) -> float:
    return value.mean if value.count >= ENOUGH else value.low


def _most(value: Interval) -> float:
    return value.mean if value.count >= ENOUGH else value.high


def _of(found: Summaries, scenario: str, metric: str, policy: str = OURS) -> Interval | None:
    return found.get((scenario, policy), {}).get(metric)


def _headline(found: Summaries) -> Iterator[Verdict]:
    ratio, wait = _of(found, "real", "ratio"), _of(found, "real", "wait_mean")
    best = _of(found, "real", "wait_mean", "oracle")
    if ratio is not None and wait is not None and best is not None:
        yield Verdict(
            f"real: failed/ok ≤ {RATIO_MAX} at a mean wait ≤ {WAIT_MAX} × oracle",
            _least(ratio) <= RATIO_MAX and _least(wait) <= WAIT_MAX * _most(best),
            f"{say(ratio)} at {say(wait)} s, {wait.mean / best.mean:.3f} × {say(best)} s",
        )


def _against_published(found: Summaries) -> Iterator[Verdict]:
    """Confidence intervals that overlap count as equal. Published figures come without: theirs are as wide as four runs
    of the same rule, played here, would have it. What depends on a definition that was not published is judged against
    that rule itself."""
    for scenario, published in RECOMMENDED.items():
        for metric in published.__struct_fields__:
            wanted: float | None = getattr(published, metric)
            ours = _of(found, scenario, metric)
            if wanted is None or (scenario, OURS) not in found:
                continue
            theirs = _of(found, scenario, metric, "recommended")
            theirs_then = as_of(wanted, RUNS, theirs)
            if metric in MEASURED_HERE:
                if theirs is not None:
                    yield _by_rule(scenario, metric, wanted, ours, theirs, _of(found, scenario, f"{metric}_more"))
                continue
            better = "≥" if metric in MORE_IS_BETTER else "≤"
            holds = ours is not None and (
                ours.high >= theirs_then.low if metric in MORE_IS_BETTER else ours.low <= theirs_then.high
            )
            yield Verdict(f"{scenario}: {WORDS[metric]} {better} published {say(theirs_then)}", holds, say(ours))


def _by_rule(
    scenario: str, metric: str, published: float, ours: Interval | None, theirs: Interval, more: Interval | None
) -> Verdict:
    """Where the published figure is not met, the line says so, and why the two cannot be compared; and by how much runs
    of the same luck differ, which may be certain where intervals overlap."""
    met = ours is not None and ours.low <= published
    missed = (
        f"; published {published:g}, which is {'met' if met else 'NOT met'}: measured by a definition that was not "
        f"published, here it is {MEASURED_HERE[metric]}"
    )
    return Verdict(
        f"{scenario}: {WORDS[metric]} ≤ the same rule here, on the same seeds",
        ours is not None and ours.low <= theirs.high,
        f"{say(ours)} against {say(theirs)}, {say(more)} more by pairs{missed}",
        by_rule=not met,
    )


def counted(judged: Sequence[Verdict]) -> str:
    """How many claims hold, and of how many that is said by another measure than the published one."""
    held = [verdict for verdict in judged if verdict.holds]
    by_rule = sum(verdict.by_rule for verdict in held)
    more = f"; {by_rule} by the rule played here, not by the published figure" if by_rule else ""
    return f"{len(held)} of {len(judged)} claims hold{more}"


def _better(found: Summaries) -> Iterator[Verdict]:
    meanwhile = _of(found, "all-out", "failed_meanwhile")
    if meanwhile is not None:
        claim = f"all-out: failed launches inside the outage ≤ {OUTAGE_FAILED_MAX:g}"
        yield Verdict(claim, _least(meanwhile) <= OUTAGE_FAILED_MAX, say(meanwhile))
    failed, share = _of(found, "steady-30", "failed"), _of(found, "steady-30", "share_left")
    if failed is not None and share is not None:
        yield Verdict(
            f"steady-30: failed launches < {STEADY_FAILED:g} at a share ≥ {STEADY_SHARE_MIN}",
            _least(failed) < STEADY_FAILED and _most(share) >= STEADY_SHARE_MIN,
            f"{say(failed)} at {say(share)}",
        )
    if (scenario := ("one-out", OURS)) in found:
        recover = found[scenario]["recover_minutes"]
        claim = f"one-out: minutes to recover ≤ {RECOVER_MINUTES_MAX:g}"
        yield Verdict(claim, recover is not None and _least(recover) <= RECOVER_MINUTES_MAX, say(recover))
    ratio, theirs = _of(found, "low-rate", "ratio"), _of(found, "low-rate", "ratio", "autoscaler")
    if ratio is not None and theirs is not None:
        claim = f"low-rate: failed/ok < cluster-autoscaler's {say(theirs)}"
        yield Verdict(claim, _least(ratio) < _most(theirs), say(ratio))


def _bad_images(found: Summaries) -> Iterator[Verdict]:
    for scenario, policy in found:
        launches = _of(found, scenario, "on_bad_image")
        if policy == OURS and scenario.startswith("always-bad") and launches is not None:
            claim = f"{scenario}: launches on the bad image ≤ {BAD_LAUNCHES_MAX:g}"
            yield Verdict(claim, launches.high <= BAD_LAUNCHES_MAX, say(launches))


def _fair(found: Summaries) -> Iterator[Verdict]:
    unfairness = _of(found, "healthy", "unfairness")
    if unfairness is not None:
        claim = f"healthy: unfairness ≤ {UNFAIRNESS_MAX}"
        yield Verdict(claim, _least(unfairness) <= UNFAIRNESS_MAX, say(unfairness))
