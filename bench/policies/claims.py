"""What the table has to show. Each claim is judged from the figures, and says them: by means, or of fewer than five
runs by their intervals."""

from collections.abc import Iterator, Mapping
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
# Which published figures depend on a definition that was not published: judged against the same rule, played here.
MEASURED_HERE: Final = ("detect_minutes", "recover_minutes")
MORE_IS_BETTER: Final = ("share_left",)
WORDS: Final = {
    "failed": "failed launches", "detect_minutes": "minutes to detect", "recover_minutes": "minutes to recover",
    "share_left": "share left", "unfairness": "unfairness", "on_bad_image": "launches on the bad image",
    "wait_mean": "mean wait s", "ratio": "failed/ok", "peak": "failures in a minute",
}  # fmt: skip


class Verdict(msgspec.Struct, frozen=True):
    claim: str
    holds: bool
    found: str

    def __str__(self) -> str:
        return f"{'true ' if self.holds else 'FALSE'} {self.claim}: {self.found}"


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
    of the same rule, played here, would have it."""
    for scenario, published in RECOMMENDED.items():
        for metric in published.__struct_fields__:
            wanted: float | None = getattr(published, metric)
            ours = _of(found, scenario, metric)
            if wanted is None or (scenario, OURS) not in found:
                continue
            theirs = _of(found, scenario, metric, "recommended")
            theirs_then = as_of(wanted, RUNS, theirs)
            against, most = f"published {say(theirs_then)}", theirs_then.high
            if metric in MEASURED_HERE:
                if theirs is None:
                    continue
                against, most = f"the same rule here {say(theirs)}, published {wanted:g}", max(wanted, theirs.high)
            better = "≥" if metric in MORE_IS_BETTER else "≤"
            holds = ours is not None and (
                ours.high >= theirs_then.low if metric in MORE_IS_BETTER else ours.low <= most
            )
            yield Verdict(f"{scenario}: {WORDS[metric]} {better} {against}", holds, say(ours))


def _better(found: Summaries) -> Iterator[Verdict]:
    meanwhile = _of(found, "all-out", "failed_meanwhile")
    if meanwhile is not None:
        claim = f"all-out: failed launches inside the outage ≤ {OUTAGE_FAILED_MAX:g}"
        yield Verdict(claim, _least(meanwhile) <= OUTAGE_FAILED_MAX, say(meanwhile))
    failed, share = _of(found, "steady-30", "failed"), _of(found, "steady-30", "share_left")
    if failed is not None and share is not None:
        yield Verdict(
            f"steady-30: failed launches < {STEADY_FAILED:g} at a share ≥ {STEADY_SHARE_MIN}",
            _least(failed) < STEADY_FAILED and _most(share) >= STEADY_SHARE_MIN, f"{say(failed)} at {say(share)}",
        )  # fmt: skip
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
