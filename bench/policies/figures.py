"""Figures of a run. This module is their only definition."""

from collections.abc import Sequence

import msgspec

from bench.policies.scenario import Scenario
from bench.policies.simulator import Run

DETECTED = 0.25  # of the fair share
RECOVERED = 0.8
NEW_MINUTES = 15.0


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one run; None where a figure does not apply to the scenario.

    `failed` launches were refused or never registered, `accepted` ones were not refused, `registered` ones served a
    task; `failed_meanwhile` counts failures between the first fault's start and the last one's end. `detect_minutes`:
    from the first fault's start to the end of the first minute in which its configs got below a quarter of their fair
    share of tries; `recover_minutes`: from its end to the end of the first minute in which they got 80 % of it.
    `share_left` is what they got while the faults lasted, of all tries. `unfairness` is the difference between the
    largest and the smallest share of tries in an hour, each relative to its fair share and in parts of all, in the
    mean over the hours. `jain` is Jain's index of accepted launches relative to fair shares. `on_bad_image` launches
    were accepted with an image that was bad at that time, and never registered. Waits are until a machine registers, in
    seconds; `wait_new` is the mean over the tasks that arrive in the first 15 minutes of the newest image, those that
    still wait at the end with their wait so far. `surge` counts tries at the first fault's configs in the minute after
    its end; `peak` is the most failures in one minute.
    """

    accepted: int
    failed: int
    registered: int
    failed_meanwhile: int | None
    detect_minutes: float | None
    recover_minutes: float | None
    share_left: float | None
    unfairness: float
    jain: float
    on_bad_image: int
    wait_mean: float
    wait_p95: float
    peak: int
    surge: int | None
    wait_new: float | None = None  # absent from older results

    @property
    def ratio(self) -> float:
        """Failed launches per one that registered."""
        return self.failed / self.registered if self.registered else float(self.failed)


def figures(run: Run) -> Figures:
    """Compute all figures of a run."""
    scenario, shares = run.conditions.scenario, run.conditions.shares
    ticks, per_minute = scenario.ticks, scenario.ticks_per_minute
    tries = [[yes + no for yes, no in zip(*pair, strict=True)] for pair in zip(run.accepted, run.refused, strict=True)]
    meanwhile = detect = recover = left = surge = None
    if scenario.faults:
        first = scenario.faults[0]
        begin, end = (_tick(minute, scenario) for minute in (first.begin_minute, first.end_minute))
        last = max(_tick(fault.end_minute, scenario) for fault in scenario.faults)
        meanwhile = sum(run.failing[begin:last])
        of_faulty = [sum(tries[config][tick] for config in first.configs) for tick in range(ticks)]
        of_all = [sum(column) for column in zip(*tries, strict=True)]
        left = _part(sum(of_faulty[begin:end]), sum(of_all[begin:end]))
        fair = sum(shares[config] for config in first.configs)
        surge = sum(of_faulty[end : end + per_minute]) if end < ticks else None
        if len(first.configs) < run.conditions.configs:
            both = list(zip(_minutes(of_faulty, per_minute), _minutes(of_all, per_minute), strict=True))
            detect = _first([faulty < DETECTED * fair * every for faulty, every in both], begin, per_minute)
            passed = [0 < RECOVERED * fair * every <= faulty for faulty, every in both]
            recover = _first(passed, end, per_minute) if end < ticks else None
    waits = sorted(run.waits)
    totals = [sum(row) / share for row, share in zip(run.accepted, shares, strict=True)]
    return Figures(
        accepted=sum(map(sum, run.accepted)),
        failed=sum(run.failing),
        registered=run.registered,
        failed_meanwhile=meanwhile,
        detect_minutes=_rounded(detect),
        recover_minutes=_rounded(recover),
        share_left=_rounded(left),
        unfairness=_significant(_unfairness(tries, shares, 60 * per_minute)),
        jain=_significant(_part(sum(totals) ** 2, len(totals) * sum(total**2 for total in totals))),
        on_bad_image=run.on_bad_image,
        wait_mean=_significant(_part(run.waiting_seconds, run.arrived)),
        wait_p95=_significant(waits[int(0.95 * len(waits))] if waits else 0.0),
        peak=max(sum(run.failing[tick : tick + per_minute]) for tick in range(0, ticks, per_minute)),
        surge=surge,
        wait_new=_rounded(_wait_new(run)),
    )


def _wait_new(run: Run) -> float | None:
    """Mean wait of the tasks of the 15 minutes since the newest image. Tasks are served in the order of arrival."""
    scenario = run.conditions.scenario
    begin = max(revision.since for revision in run.conditions.revisions)
    end = min(scenario.ticks, begin + round(NEW_MINUTES * scenario.ticks_per_minute))
    first, last = sum(run.coming[:begin]), sum(run.coming[:end])
    waits = run.waits[first:last]
    arrived = [tick for tick in range(begin, end) for _ in range(run.coming[tick])]
    waits += [(scenario.ticks - tick) * scenario.tick_seconds for tick in arrived[len(waits) :]]
    return _part(sum(waits), len(waits)) if waits else None


def _tick(minute: float | None, scenario: Scenario) -> int:
    return scenario.ticks if minute is None else min(scenario.ticks, round(minute * scenario.ticks_per_minute))


def _minutes(counts: Sequence[int], per_minute: int) -> list[int]:
    """Sums of a count over the minutes that end with each tick."""
    return [sum(counts[max(0, tick + 1 - per_minute) : tick + 1]) for tick in range(len(counts))]


def _first(passed: Sequence[bool], begin: int, per_minute: int) -> float | None:
    """Minutes from the start of a tick to the end of the first one that passed."""
    place = next((place for place in range(begin, len(passed)) if passed[place]), None)
    return None if place is None else (place + 1 - begin) / per_minute


def _unfairness(tries: Sequence[Sequence[int]], shares: Sequence[float], hour: int) -> float:
    found = []
    for begin in range(0, len(tries[0]), hour):
        sums = [sum(row[begin : begin + hour]) for row in tries]
        if every := sum(sums):
            relative = [count / every / share / len(shares) for count, share in zip(sums, shares, strict=True)]
            found.append(max(relative) - min(relative))
    return sum(found) / len(found) if found else 0.0


def _part(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _significant(value: float) -> float:
    return float(f"{value:.6g}")


def _rounded(value: float | None) -> float | None:
    return None if value is None else _significant(value)
