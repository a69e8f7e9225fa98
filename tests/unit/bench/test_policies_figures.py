"""Figures of hand-made runs, intervals, pooling, verdicts and result files."""

from pathlib import Path
from statistics import stdev

import pytest
from msgspec.structs import replace

from bench.policies import results
from bench.policies.__main__ import Selection, compare, main
from bench.policies.cells import OURS, Cell, compute, plan
from bench.policies.claims import Verdict, counted, text, verdicts
from bench.policies.conditions import conditions
from bench.policies.families import FAMILIES, Sizes
from bench.policies.figures import figures
from bench.policies.intervals import Interval, interval
from bench.policies.results import Results, summaries
from bench.policies.scenario import BUILT_IN, Fault, Scenario
from bench.policies.simulator import Run
from bench.policies.table import VARIANTS, detail, overview, variants
from tests.support.figures import PLAIN

OUTAGE = Scenario(
    name="outage", hours=0.5, configs=2, faults=(Fault(kind="refused", configs=(0,), begin_minute=10, end_minute=20),)
)


def made(accepted: list[list[int]], refused: list[list[int]]) -> Run:
    failing = [sum(column) for column in zip(*refused, strict=True)]
    run = Run(
        conditions=conditions(OUTAGE),
        seed=1,
        accepted=accepted,
        refused=refused,
        failing=failing,
        coming=[0] * 180,
        waits=[],
    )
    run.arrived, run.registered, run.waiting_seconds = 100, sum(map(sum, accepted)), 2500.0
    run.waits = [float(wait) for wait in range(1, 101)]
    return run


def test_detection_and_recovery_are_minutes_of_tries_against_the_fair_share() -> None:
    """Two tries a tick at each config; config 0 fails for 3 ticks, is left out, and returns after 5 min."""
    down, back = [60, 120], 150  # ticks
    tried = [2] * 63 + [0] * 87 + [2] * 30
    run = made(
        accepted=[[0 if down[0] <= tick < down[1] else count for tick, count in enumerate(tried)], [2] * 180],
        refused=[[count if down[0] <= tick < down[1] else 0 for tick, count in enumerate(tried)], [0] * 180],
    )
    found = figures(run)
    assert found.failed == found.failed_meanwhile == 6
    # 6 ticks hold 12 tries of config 1; below a quarter of the fair half: 1 of 8 tries, so at most 1 of config 0 … 0.
    assert found.detect_minutes == pytest.approx((63 + 6 - 60) / 6)
    # 80 % of a half: 4 of 10, that is 8 tries beside 12: after 4 ticks.
    assert found.recover_minutes == pytest.approx((back + 4 - down[1]) / 6)
    assert found.share_left == pytest.approx(6 / 126, rel=1e-5)
    assert found.surge == 0
    assert found.peak == 6
    assert (found.wait_mean, found.wait_p95) == (25.0, 96.0)


def test_what_never_recovers_has_no_recovery() -> None:
    run = made(accepted=[[2] * 60 + [0] * 120, [2] * 180], refused=[[0] * 180, [0] * 180])
    assert figures(run).recover_minutes is None


def test_unfairness_and_jain_are_relative_to_fair_shares() -> None:
    fair = made(accepted=[[1] * 180, [1] * 180], refused=[[0] * 180, [0] * 180])
    assert (figures(fair).unfairness, figures(fair).jain) == (0.0, 1.0)
    unfair = made(accepted=[[3] * 180, [1] * 180], refused=[[0] * 180, [0] * 180])
    assert figures(unfair).unfairness == 0.5
    assert figures(unfair).jain == pytest.approx(16 / 20)


def test_an_interval_is_students() -> None:
    values = [1.0, 2.0, 4.0, 7.0]
    found = interval([*values, None])
    assert found is not None
    assert (found.mean, found.count) == (3.5, 4)
    assert found.half == pytest.approx(3.182 * stdev(values) / 2)
    assert interval([None]) is None
    assert interval([5.0]) == Interval(5.0, 0.0, 1)
    wide = interval([0.0, 1.0] * 50)
    assert wide is not None
    assert wide.half == pytest.approx(1.96 * stdev([0.0, 1.0] * 50) / 10)


def test_an_interval_is_rounded_to_its_uncertainty() -> None:
    values = (None, Interval(3.0, 0.0, 1), Interval(1234.5, 56.7, 4), Interval(0.0216, 0.0004, 7))
    assert [text(value) for value in values] == ["–", "3", "1234 ± 57", "0.02160 ± 0.00040"]


def test_runs_at_different_offsets_count_together_as_one() -> None:
    real = BUILT_IN["real"]
    cells = plan([real, OUTAGE], ["slipway", "oracle"], 4, 3)
    assert [cell.seed for cell in cells if cell.scenario is real and cell.policy == "slipway"] == [1, 2, 3, 4, 5, 6]
    found = {cell: replace(PLAIN, failed=cell.seed * (cell.policy == "slipway"), peak=cell.seed) for cell in cells}
    sums = summaries(found, 3)
    ratio, peak = sums["real", "slipway"]["ratio"], sums["real", "slipway"]["peak"]
    assert ratio is not None
    assert peak is not None
    assert ratio.count == 2
    assert ratio.mean == pytest.approx((6 / 270 + 15 / 270) / 2)
    assert peak.mean == (3 + 6) / 2
    regret, failed = sums["real", "slipway"]["regret"], sums["outage", "slipway"]["failed"]
    assert regret is not None
    assert failed is not None
    assert regret.mean == 0
    assert failed.count == 4


def test_figures_without_registered_workers_are_missing() -> None:
    """Failures per registered worker and the 95th percentile of waits are missing; the mean wait counts all tasks."""
    none = replace(PLAIN, registered=0, wait_p95=0.0)
    summary = summaries({Cell(OUTAGE, "slipway", 1): none, Cell(OUTAGE, "slipway", 2): none}, 1)["outage", "slipway"]
    assert [text(summary[name]) for name in ("ratio", "wait_p95", "wait_mean")] == ["–", "–", "100"]
    some = summaries({Cell(OUTAGE, "slipway", 1): none, Cell(OUTAGE, "slipway", 2): PLAIN}, 1)["outage", "slipway"]
    assert [text(some[name]) for name in ("ratio", "wait_p95")] == ["0.03333", "150"]


def test_verdicts_contain_figures_and_match_published_ones_within_intervals() -> None:
    def judged(failed: list[int]) -> dict[str, bool]:
        found = {
            Cell(BUILT_IN["all-out"], "slipway", seed): replace(PLAIN, failed=count, failed_meanwhile=count)
            for seed, count in enumerate(failed, 1)
        }
        return {verdict.claim: verdict.holds for verdict in verdicts(summaries(found, 1))}

    reached, claim = "all-out: failed launches ≤ published 189", "all-out: failed launches inside the outage ≤ 120"
    assert judged([100, 110, 120]) == {reached: True, "all-out: mean wait s ≤ published 183": True, claim: True}
    assert judged([180, 190, 200])[reached]
    assert not judged([200, 201, 202])[reached]
    assert judged([120, 121, 122])[claim], "below five runs the interval counts"
    assert not judged([119, 120, 121, 122, 123])[claim]


def test_the_real_pair_is_judged_by_the_oracle_and_by_the_rules_before() -> None:
    """By means: within .0164 failures per success, 1.03 × the oracle's wait and 1.005 × that of before."""

    def judged(failed: int, wait: float) -> list[bool]:
        runs = {
            Cell(BUILT_IN["real"], policy, 1): replace(PLAIN, registered=10_000, failed=count, wait_mean=seconds)
            for policy, count, seconds in (("slipway", failed, wait), ("oracle", 0, 100.0), ("before", 200, 102.0))
        }
        return [verdict.holds for verdict in verdicts(summaries(runs, 1)) if "at a mean wait" in verdict.claim]

    assert judged(164, 102.5) == [True, True]
    assert judged(165, 102.5) == [False, False]
    assert judged(164, 102.6) == [True, False]
    assert judged(164, 103.1) == [False, False]


def test_the_demo_is_judged_by_the_rule_without_windows() -> None:
    """By means: one seed may exceed a bound that the mean keeps."""
    (scenario,) = FAMILIES["demo"].scenarios(Sizes())

    def judged(failed: list[int], waits: list[float]) -> list[bool]:
        runs = {
            Cell(scenario, policy, seed): replace(PLAIN, failed=count, wait_mean=wait)
            for policy, counts, seconds in (("slipway", failed, waits), ("rfc191", [10, 10], [100.0, 100.0]))
            for seed, (count, wait) in enumerate(zip(counts, seconds, strict=True), 1)
        }
        return [verdict.holds for verdict in verdicts(summaries(runs, 1))]

    assert judged([4, 7], [130.0, 90.0]) == [True, True]
    assert judged([0, 0], [90.0, 132.0]) == [True, False]
    assert judged([0, 13], [100.0, 100.0]) == [False, True]


def test_a_published_figure_has_the_interval_of_four_runs_of_its_rule() -> None:
    def verdict(failed: int, theirs: list[int]) -> Verdict:
        cells = [("slipway", 1, failed), *(("recommended", seed, count) for seed, count in enumerate(theirs, 1))]
        found = {
            Cell(BUILT_IN["quota-cap"], policy, seed): replace(PLAIN, failed=count) for policy, seed, count in cells
        }
        (verdict,) = [verdict for verdict in verdicts(summaries(found, 1)) if "failed launches" in verdict.claim]
        return verdict

    # Deviation 10: 219 ± 3.182 · 10 / √4 = 16 over four runs.
    assert [verdict(failed, [240, 250, 260]).holds for failed in (234, 236)] == [True, False]
    assert verdict(234, [240, 250, 260]).claim == "quota-cap: failed launches ≤ published 219 ± 16"
    assert not verdict(234, [250, 250]).holds


def test_figures_of_unpublished_definition_are_judged_by_the_rule_simulated_here() -> None:
    """Line and count say that the published figure is not met, and the line has the paired difference."""

    def judged(ours: list[float], theirs: list[float]) -> list[Verdict]:
        found = {
            Cell(BUILT_IN["three-out"], policy, seed): replace(PLAIN, recover_minutes=minutes, detect_minutes=None)
            for policy, all_ in (("slipway", ours), ("recommended", theirs))
            for seed, minutes in enumerate(all_, 1)
        }
        return [verdict for verdict in verdicts(summaries(found, 1)) if "minutes to recover" in verdict.claim]

    (here,) = judged([3.1, 3.2, 3.3], [3.0, 3.3, 9.0])
    assert (here.holds, here.by_rule) == (True, True)
    assert str(here).startswith("by the rule simulated here three-out: minutes to recover ≤ the same rule here")
    assert "published 1.6, which is NOT met: measured by a definition that was not published" in here.found
    assert counted([here]) == "1 of 1 claims hold; 1 by the rule simulated here, not by the published figure"
    (met,) = judged([1.5, 1.5, 1.5], [1.5, 1.6, 1.7])
    assert (met.holds, met.by_rule, str(met)[:5]) == (True, False, "true ")
    assert counted([met]) == "1 of 1 claims hold"
    assert ", 0.5 more by pairs; " in judged([3.5, 9.5, 5.5], [3.0, 9.0, 5.0])[0].found
    (worse,) = judged([9.3, 9.4, 9.5], [3.0, 3.1, 3.2])
    assert (worse.holds, str(worse)[:5]) == (False, "FALSE")
    assert counted([worse]) == "0 of 1 claims hold"


def test_claims_are_about_our_own_scenarios_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """A scenario file may use a built-in name; claims do not apply to it."""
    ours, theirs = BUILT_IN["always-bad"], replace(BUILT_IN["always-bad"], hours=0.5)
    for scenario, line in ((ours, "2 of 2 claims hold"), (theirs, "no claims about these runs")):
        assert compare(Selection(scenarios=[scenario], policies=["slipway"], seeds=1), None, None) == 0
        assert line in capsys.readouterr().out


def test_a_bad_image_is_judged_by_the_upper_bound() -> None:
    found = {Cell(BUILT_IN["always-bad-nine-4d"], "slipway", 1): replace(PLAIN, on_bad_image=26)}
    assert [verdict.holds for verdict in verdicts(summaries(found, 1))] == [False]


def test_tables_have_a_line_per_scenario_and_per_policy() -> None:
    cells = plan([OUTAGE], ["slipway", "oracle"], 2, 1)
    sums = summaries(dict.fromkeys(cells, PLAIN), 1)
    lines = overview([OUTAGE], ["slipway", "oracle"], sums)
    assert len(lines) == 3
    assert lines[2].split() == ["|", "outage", "|", "failed", "|", "3", "|", "3", "|", "|"]
    assert len({len(line) for line in lines}) == 1
    assert [line.split()[1] for line in detail(OUTAGE, ["slipway", "oracle"], sums)[2:]] == ["slipway", "oracle"]


def test_every_variant_of_slipway_is_described_where_it_is_shown() -> None:
    assert set(VARIANTS) == set(OURS) - {"slipway"}
    assert variants(["rfc191", "slipway"]) == []
    assert variants(["before", "slipway"]) == ["", "Variants of `slipway`: `before`: the rules of an earlier commit."]


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    saved = Results(
        command="make policies FULL=1 KEEP=1",
        on={"python": "3"},
        traces="x",
        digest="y",
        offsets=3,
        fields=results.FIELDS,
        cells={"a/slipway/1": results.row(PLAIN), "a/slipway/2": results.row(PLAIN)},
    )
    results.write(tmp_path / "policies.json", saved)
    again = results.read(tmp_path / "policies.json")
    assert again.figures("a/slipway/2") == PLAIN
    assert again.cells == saved.cells
    assert sum("slipway/" in line for line in (tmp_path / "policies.json").read_text().splitlines()) == 2


def test_a_cell_is_computed_again_and_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = Cell(BUILT_IN["always-bad"], "recommended", 7)
    for changed, ends, words in ((0, 0, "equal to bench/results/policies.json"), (1, 1, "differs from")):
        found = compute(cell, None)
        saved = Results(
            command="x",
            on={},
            traces="x",
            digest="y",
            offsets=3,
            fields=results.FIELDS,
            cells={cell.name: results.row(replace(found, failed=found.failed + changed))},
        )
        results.write(tmp_path / "policies.json", saved)
        assert main({"CELL": cell.name}, tmp_path) == ends
        assert words in capsys.readouterr().out.splitlines()[-1]
    assert main({"CELL": "always-bad/recommended/8"}, tmp_path) == 2
    assert "has no such run" in capsys.readouterr().err
