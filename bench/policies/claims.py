"""Claims about the results and their verdicts.

Claims about one rule are judged by means, or by confidence intervals below five runs. Where two rules are compared on
the same seeds, their means are.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import floor, log10
from typing import Final

import msgspec

from bench.policies.earlier import BEFORE
from bench.policies.families import DEMO, IMAGES, MOSTLY, ROLL_OUT, THIRD, family_of
from bench.policies.intervals import Interval, as_of
from bench.policies.published import RECOMMENDED, RUNS
from bench.policies.results import Summary

OURS: Final = "slipway"
ENOUGH: Final = 5
RATIO_MAX: Final = 0.0164
WAIT_MAX: Final = {"oracle": 1.03, BEFORE: 1.005}  # times the wait of these
OUTAGE_FAILED_MAX: Final = 120.0
STEADY_FAILED: Final = 209.0
STEADY_SHARE_MIN: Final = 0.05
RECOVER_MINUTES_MAX: Final = 5.0
BAD_LAUNCHES_MAX: Final = 25.0
UNFAIRNESS_MAX: Final = 0.03
WAIT_NEW_MAX: Final = {"": 1.15, "burst": 1.25, "alone": 1.55}  # times the wait without windows
OF_RULE_MAX: Final = {"failed": 0.6, "wait_mean": 1.1}  # in an outage of a zone, times those of RFC 191's rule
FAILED_MAX: Final = {THIRD: 1.1, MOSTLY: 2.5}  # times those by the rules of `before`
# Published figures whose definition was not published, with the definition used here. They are judged against the same
# rule, simulated here on the same seeds.
MEASURED_HERE: Final = {
    "detect_minutes": "the end of the first minute below a quarter of the fair share",
    "recover_minutes": "the end of the first minute at 80 % of the fair share",
}
MORE_IS_BETTER: Final = ("share_left",)
LABELS: Final = {
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
    """One claim, True if it holds. `by_rule`: it holds against the rule simulated here, not the published figure."""

    claim: str
    holds: bool
    found: str
    by_rule: bool = False

    def __str__(self) -> str:
        label = "FALSE" if not self.holds else "by the rule simulated here" if self.by_rule else "true "
        return f"{label} {self.claim}: {self.found}"


Summaries = Mapping[tuple[str, str], Summary]


def verdicts(found: Summaries) -> list[Verdict]:
    """Verdicts of all claims whose scenarios were run."""
    return [
        *_headline(found),
        *_against_published(found),
        *_better(found),
        *_bad_images(found),
        *_fair(found),
        *_new_images(found),
        *_partly_bad(found),
        *_demo(found),
    ]


def text(value: Interval | None) -> str:
    """A mean with its uncertainty, rounded to two digits of the latter."""
    if value is None:
        return "–"
    if value.half == 0:
        return f"{value.mean:.4g}"
    decimals = max(0, 1 - floor(log10(value.half)))  # two digits of the uncertainty
    return f"{value.mean:.{decimals}f} ± {value.half:.{decimals}f}"


def _least(value: Interval) -> float:
    return value.mean if value.count >= ENOUGH else value.low


def _most(value: Interval) -> float:
    return value.mean if value.count >= ENOUGH else value.high


def _of(found: Summaries, scenario: str, metric: str, policy: str = OURS) -> Interval | None:
    return found.get((scenario, policy), {}).get(metric)


def _headline(found: Summaries) -> Iterator[Verdict]:
    ratio, wait = _of(found, "real", "ratio"), _of(found, "real", "wait_mean")
    for policy, most in WAIT_MAX.items():
        theirs = _of(found, "real", "wait_mean", policy)
        if ratio is not None and wait is not None and theirs is not None:
            yield Verdict(
                f"real: failed/ok ≤ {RATIO_MAX} at a mean wait ≤ {most} × {policy}",
                ratio.mean <= RATIO_MAX and wait.mean <= most * theirs.mean,
                f"{text(ratio)} at {text(wait)} s, {wait.mean / theirs.mean:.4f} × {text(theirs)} s",
            )


def _against_published(found: Summaries) -> Iterator[Verdict]:
    """Verdicts against published figures. Overlapping confidence intervals count as equal.

    Published figures have no intervals: theirs are those of four runs of the same rule, simulated here. Figures in
    MEASURED_HERE are judged against that rule itself.
    """
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
            yield Verdict(f"{scenario}: {LABELS[metric]} {better} published {text(theirs_then)}", holds, text(ours))


def _by_rule(
    scenario: str, metric: str, published: float, ours: Interval | None, theirs: Interval, more: Interval | None
) -> Verdict:
    """Verdict against the rule simulated here.

    Its text contains the mean difference of runs on the same seed, which may be significant where intervals overlap,
    and says if the published figure is met and why the two are not comparable.
    """
    met = ours is not None and ours.low <= published
    missed = (
        f"; published {published:g}, which is {'met' if met else 'NOT met'}: measured by a definition that was not "
        f"published, here it is {MEASURED_HERE[metric]}"
    )
    return Verdict(
        f"{scenario}: {LABELS[metric]} ≤ the same rule here, on the same seeds",
        ours is not None and ours.low <= theirs.high,
        f"{text(ours)} against {text(theirs)}, {text(more)} more by pairs{missed}",
        by_rule=not met,
    )


def counted(judged: Sequence[Verdict]) -> str:
    """Text of the numbers of claims that hold, and of those that hold by another measure than the published one."""
    held = [verdict for verdict in judged if verdict.holds]
    by_rule = sum(verdict.by_rule for verdict in held)
    more = f"; {by_rule} by the rule simulated here, not by the published figure" if by_rule else ""
    return f"{len(held)} of {len(judged)} claims hold{more}"


def _better(found: Summaries) -> Iterator[Verdict]:
    meanwhile = _of(found, "all-out", "failed_meanwhile")
    if meanwhile is not None:
        claim = f"all-out: failed launches inside the outage ≤ {OUTAGE_FAILED_MAX:g}"
        yield Verdict(claim, _least(meanwhile) <= OUTAGE_FAILED_MAX, text(meanwhile))
    failed, share = _of(found, "steady-30", "failed"), _of(found, "steady-30", "share_left")
    if failed is not None and share is not None:
        yield Verdict(
            f"steady-30: failed launches < {STEADY_FAILED:g} at a share ≥ {STEADY_SHARE_MIN}",
            _least(failed) < STEADY_FAILED and _most(share) >= STEADY_SHARE_MIN,
            f"{text(failed)} at {text(share)}",
        )
    if (scenario := ("one-out", OURS)) in found:
        recover = found[scenario]["recover_minutes"]
        claim = f"one-out: minutes to recover ≤ {RECOVER_MINUTES_MAX:g}"
        yield Verdict(claim, recover is not None and _least(recover) <= RECOVER_MINUTES_MAX, text(recover))
    ratio, theirs = _of(found, "low-rate", "ratio"), _of(found, "low-rate", "ratio", "autoscaler")
    if ratio is not None and theirs is not None:
        claim = f"low-rate: failed/ok < cluster-autoscaler's {text(theirs)}"
        yield Verdict(claim, _least(ratio) < _most(theirs), text(ratio))


def _bad_images(found: Summaries) -> Iterator[Verdict]:
    for scenario, policy in found:
        launches = _of(found, scenario, "on_bad_image")
        if policy == OURS and scenario.startswith(("always-bad", f"{ROLL_OUT}-")) and launches is not None:
            claim = f"{scenario}: launches on the bad image ≤ {BAD_LAUNCHES_MAX:g}"
            yield Verdict(claim, launches.high <= BAD_LAUNCHES_MAX, text(launches))


def _fair(found: Summaries) -> Iterator[Verdict]:
    unfairness = _of(found, "healthy", "unfairness")
    if unfairness is not None:
        claim = f"healthy: unfairness ≤ {UNFAIRNESS_MAX}"
        yield Verdict(claim, _least(unfairness) <= UNFAIRNESS_MAX, text(unfairness))


def _new_images(found: Summaries) -> Iterator[Verdict]:
    """Verdicts on the wait for a good new image, against the same rules without windows on the same seeds."""
    for scenario, policy in found:
        if policy != OURS or family_of(scenario) != IMAGES:
            continue
        ours, free = _of(found, scenario, "wait_new"), _of(found, scenario, "wait_new", "no-windows")
        if ours is not None and free is not None:
            most = next(most for name, most in reversed(WAIT_NEW_MAX.items()) if scenario.endswith(name))
            yield Verdict(
                f"{scenario}: mean wait s of its tasks ≤ {most} × without windows",
                ours.mean <= most * free.mean,
                f"{text(ours)} against {text(free)}, {ours.mean / free.mean:.3f} ×",
            )


def _partly_bad(found: Summaries) -> Iterator[Verdict]:
    """Verdicts on images of which a part of the boots fails, against the rules of an earlier commit on the same seeds.

    Where the smaller part fails, failures per success and the wait may not be worse; overlapping confidence intervals
    count as equal.
    """
    for scenario, policy in found:
        family = family_of(scenario)
        if policy != OURS or family not in FAILED_MAX or (scenario, BEFORE) not in found:
            continue
        for metric in ("failed", "ratio", "wait_mean") if family == THIRD else ("failed",):
            ours, theirs = _of(found, scenario, metric), _of(found, scenario, metric, BEFORE)
            if ours is not None and theirs is not None:
                most = FAILED_MAX[family]
                is_count = metric == "failed"
                yield Verdict(
                    f"{scenario}: {LABELS[metric]} {f'≤ {most:g} ×' if is_count else 'no worse than'} {BEFORE}",
                    ours.mean <= most * theirs.mean if is_count else ours.low <= theirs.high,
                    f"{text(ours)} against {text(theirs)}, {ours.mean / max(theirs.mean, 1e-9):.3f} ×",
                )


def _demo(found: Summaries) -> Iterator[Verdict]:
    """Verdicts on an outage of a zone, against RFC 191's rule on the same seeds."""
    for scenario, policy in found:
        if policy != OURS or family_of(scenario) != DEMO:
            continue
        for metric, most in OF_RULE_MAX.items():
            ours, theirs = _of(found, scenario, metric), _of(found, scenario, metric, "rfc191")
            if ours is not None and theirs is not None:
                yield Verdict(
                    f"{scenario}: {LABELS[metric]} ≤ {most:g} × RFC 191's rule",
                    ours.mean <= most * theirs.mean,
                    f"{text(ours)} against {text(theirs)}, {ours.mean / max(theirs.mean, 1e-9):.3f} ×",
                )
