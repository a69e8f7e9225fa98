"""New images in the simulator: changes at an instant, roll-outs by production code, partly bad images, and the families
of scenarios that are judged against the same rules without windows and against an earlier commit."""

import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from bench.policies import cells, earlier
from bench.policies.__main__ import Selection, compare, main
from bench.policies.cells import NO_WINDOWS, POLICIES, Cell
from bench.policies.claims import Verdict, verdicts
from bench.policies.conditions import Conditions, arrivals, conditions
from bench.policies.families import FAMILIES, IMAGES, MOSTLY, ROLL_OUT, THIRD, Sizes, family_of
from bench.policies.figures import Figures, figures
from bench.policies.policy import Policy
from bench.policies.results import summaries
from bench.policies.scenario import Fault, ImageChange, Push, Scenario, checked
from bench.policies.simulator import Run, simulate
from bench.policies.slipway import Slipway, View
from slipway_api.events.scopes import image_key
from tests.support.figures import PLAIN

ROOT = Path(__file__).parents[3]
NEW_IMAGE = replace(PLAIN, failed=100, registered=100, on_bad_image=20, wait_new=100.0)


def rolled_out(hours: float = 1.5, **change: float) -> Scenario:
    """Two configs with one image, which get another one after half an hour."""
    return checked(
        Scenario(
            name="rolled-out",
            hours=hours,
            configs=2,
            background=0.0,
            image="shared",
            boot_seconds=60.0,
            image_changes=(ImageChange(minute=30, configs=(0, 1), **change),),
        )
    )


class Recorded(Policy):
    """Policy that tries one config per task, and records the boots of its machines by the time of the try."""

    def __init__(self) -> None:
        self.boots: list[tuple[float, float]] = []
        self.failed: list[float] = []

    def choose(self, now: float, tries: int) -> Sequence[int]:
        return [0] * tries

    def registered(self, now: float, config: int, worker: int, boot_seconds: float) -> None:
        self.boots.append((now - boot_seconds, boot_seconds))

    def unregistered(self, now: float, config: int, worker: int) -> None:
        self.failed.append(now)


class Watched(Slipway):
    """Slipway that records the time and the revision of each launch."""

    def __init__(self, conditions: Conditions, rng: Random) -> None:
        super().__init__(conditions, rng)
        self.launched: list[tuple[float, int]] = []

    def _plan(self, view: View, now: float, tries: int) -> list[int]:
        found = super()._plan(view, now, tries)
        self.launched += [(now, place) for place in found]
        return found


def watched(scenario: Scenario) -> tuple[Watched, Run]:
    faced = conditions(scenario)
    policy = Watched(faced, Random("policy/1"))
    return policy, simulate(faced, policy, 1)


def test_boots_take_the_time_of_the_image_of_their_try() -> None:
    policy = Recorded()
    run = simulate(conditions(rolled_out(boot_seconds=600.0)), policy, 1)
    old = [seconds for at, seconds in policy.boots if at < 1800]
    new = [seconds for at, seconds in policy.boots if at >= 1800]
    assert sorted(old)[len(old) // 2] == pytest.approx(60, rel=0.1)
    assert sorted(new)[len(new) // 2] == pytest.approx(600, rel=0.1)
    assert run.unregistered == 0


def test_an_image_is_bad_from_its_change_on_and_not_before() -> None:
    policy = Recorded()
    run = simulate(conditions(rolled_out(unregistered=1.0)), policy, 1)
    tries = sum(map(sum, run.accepted))
    assert {at for at, _ in policy.boots} == {at for at, _ in policy.boots if at < 1800}
    assert run.on_bad_image == tries - run.registered == run.unregistered + run.booting > 100
    assert min(policy.failed) >= 1800 + 900


def test_a_part_of_the_boots_fails_by_the_probability_of_a_fault_or_of_a_change() -> None:
    fault = Fault(kind="unregistered", configs=(0,), probability=0.3, scope="image")
    scenario = Scenario(name="third", hours=3.0, configs=1, background=0.0, faults=(fault,))
    for faced in (scenario, replace(rolled_out(3.0, unregistered=0.3), configs=2)):
        run = simulate(conditions(faced), Recorded(), 1)
        since = 180 if faced.image_changes else 0
        tries = sum(sum(row[since:]) for row in run.accepted)
        assert run.on_bad_image / tries == pytest.approx(0.3, abs=0.02)


def test_a_push_adds_its_tasks_at_its_instant_for_every_policy() -> None:
    plain = Scenario(name="x", hours=0.5)
    pushed = checked(replace(plain, pushes=(Push(minute=10, tasks=100), Push(minute=29.99, tasks=7))))
    more = [
        (tick, after - before)
        for tick, (before, after) in enumerate(
            zip(arrivals(conditions(plain), 1), arrivals(conditions(pushed), 1), strict=True)
        )
        if after != before
    ]
    assert more == [(60, 100), (179, 7)]


def test_the_old_revision_launches_what_the_new_one_may_not_until_that_one_is_proven() -> None:
    """Production code takes the steps; a good roll-out lets no task wait for its proof."""
    policy, run = watched(replace(rolled_out(), boot_seconds=150.0))
    new = {2, 3}
    after = [(at, place) for at, place in policy.launched if at >= 1800]
    assert not new & {place for at, place in policy.launched if at < 1800}
    early = {place for at, place in after if at < 2000}
    assert new < early, "the old one takes what the new one may not while that one proves itself"
    assert {place for at, place in after if at > 2700} == new, "the old one drains"
    _, without = watched(replace(run.conditions.scenario, image_changes=()))
    assert figures(run).wait_new == pytest.approx(figures(without).wait_mean, rel=0.1)


def test_the_old_revision_keeps_the_demand_if_the_new_image_is_bad() -> None:
    policy, run = watched(rolled_out(unregistered=1.0))
    late = Counter(place for at, place in policy.launched if at > 3600)
    assert sum(late[place] for place in (0, 1)) > 20 * sum(late[place] for place in (2, 3)) > 0
    assert run.waiting < 100


def test_starts_and_failures_of_the_old_and_the_new_image_are_counted_apart() -> None:
    faced = conditions(rolled_out(boot_seconds=600.0, unregistered=1.0))
    levels: dict[str, set[int]] = {}

    class Counted(Slipway):
        def _plan(self, view: View, now: float, tries: int) -> list[int]:
            for shared in self._shared(view):
                if shared.stage == "boot":
                    of_image = [
                        counts.launching + counts.booting
                        for counts, config in zip(self.counts, self.configs, strict=True)
                        if image_key(config.image_revision) == shared.key
                    ]
                    assert shared.in_flight == sum(of_image)
                    levels.setdefault(shared.key.id, set()).add(shared.in_flight)
            return super()._plan(view, now, tries)

    simulate(faced, Counted(faced, Random("policy/1")), 1)
    assert set(levels) == {"image", "image@2"}
    assert max(levels["image@2"]) < max(levels["image"]), "a bad image never gets as many starts as the good one has"


def test_without_windows_a_burst_is_launched_at_once() -> None:
    pushes = (Push(minute=1, tasks=100),)
    scenario = Scenario(name="x", hours=0.2, background=0.0, image="shared", launches_per_minute=0, pushes=pushes)
    faced = conditions(scenario)
    first = {}
    for policy in (NO_WINDOWS, "slipway"):
        run = simulate(faced, POLICIES[policy](faced, Random("policy/1")), 1)
        first[policy] = sum(row[6] for row in run.accepted)
    assert first[NO_WINDOWS] == 100
    assert first["slipway"] < 20


def test_the_wait_for_a_new_image_is_that_of_the_tasks_which_arrive_in_its_first_quarter_of_an_hour() -> None:
    scenario = rolled_out(0.9)
    coming = [0] * scenario.ticks
    coming[170], coming[180], coming[200], coming[269], coming[270] = 1, 2, 1, 1, 1
    run = Run(
        conditions=conditions(scenario),
        seed=1,
        accepted=[[1] * scenario.ticks] * 2,
        refused=[[0] * scenario.ticks] * 2,
        failing=[0] * scenario.ticks,
        coming=coming,
        waits=[5.0, 100.0, 200.0, 300.0],
    )
    assert figures(run).wait_new == (100 + 200 + 300 + (scenario.ticks * 10 - 2690)) / 4
    run.waits += [400.0, 1.0]
    assert figures(run).wait_new == (100 + 200 + 300 + 400) / 4


def test_families_take_boot_times_demand_and_burst() -> None:
    sizes = Sizes(boots=(45.0, 300.0), rate=12.0, burst=60)
    names = {name: [scenario.name for scenario in family.scenarios(sizes)] for name, family in FAMILIES.items()}
    assert names[IMAGES][:3] == ["new-image-cold-45s", "new-image-cold-45s-burst", "new-image-cold-45s-alone"]
    assert len(names[IMAGES]) == 10
    assert names[ROLL_OUT] == [f"{ROLL_OUT}-{boot}s{many}" for boot in (45, 300) for many in ("", "-3r")]
    for name, family in FAMILIES.items():
        for scenario in family.scenarios(sizes):
            assert family_of(scenario.name) == name
            assert scenario.launches_per_minute == (0 if scenario.name.endswith("-alone") else 12)
            assert [push.tasks for push in scenario.pushes[:1]] in ([], [60])
            assert {scenario.boot_seconds} <= {45, 300}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"BOOTS": "20,x"}, "BOOTS=x: must be a number from 1 to 86400 (seconds)"),
        ({"BOOTS": "0"}, "BOOTS=0: must be"),
        ({"RATE": "0"}, "RATE=0: must be a number from 0.001 to 10000 (launches per minute)"),
        ({"BURST": "1.5"}, "BURST=1.5: must be a whole number from 1 to 10000"),
        ({"SEED": "0"}, "SEED=0: must be a whole number from 1 to 100000"),
        ({"SCENARIO": "always-bad", "BOOTS": "20"}, "BOOTS, RATE and BURST: only for a family; SCENARIO=new-image |"),
        ({"BEFORE": "no-such-commit"}, "BEFORE=no-such-commit:"),
    ],
)
def test_bad_sizes_exit_with_2(given: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main({"SCENARIO": THIRD, "SEEDS": "1"} | given) == 2
    assert words in capsys.readouterr().err


def test_before_is_computed_with_the_packages_of_its_tree(tmp_path: Path) -> None:
    """The same tree gives the same digits, a changed coefficient other ones; scenarios stay those of this tree."""
    tree = tmp_path / "tree"
    for kind in ("libs", "services"):
        shutil.copytree(ROOT / kind, tree / kind, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    (scenario,) = FAMILIES[THIRD].scenarios(Sizes(boots=(30.0,)))
    cell = Cell(replace(scenario, hours=0.5), earlier.BEFORE, 3)
    here = cells.compute(cell, None)
    assert list(cells.computed([cell], None, tree)) == [(cell, here)]
    file = tree / "services/weight-calculator/slipway_weight_calculator/domain/policy.py"
    before = file.read_text()
    file.write_text(before.replace("boot_window: float = 1000.0", "boot_window: float = 3.0"))
    assert file.read_text() != before
    ((_, there),) = cells.computed([cell], None, tree)
    assert there.registered < here.registered


def test_before_is_computed_with_the_rules_of_its_commit() -> None:
    """The default commit, whose packages have fewer names than those of this tree."""
    if subprocess.run(["git", "cat-file", "-e", earlier.COMMIT], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("the repository has no history")
    (scenario,) = FAMILIES[THIRD].scenarios(Sizes(boots=(30.0,)))
    cell = Cell(replace(scenario, hours=0.5), earlier.BEFORE, 3)
    ((_, figures),) = cells.compute_all([cell], None)
    assert figures.registered > 0


def judged(scenario: str, **policies: Figures) -> list[Verdict]:
    (found,) = [one for family in FAMILIES.values() for one in family.scenarios(Sizes()) if one.name == scenario]
    runs = {
        Cell(found, policy.replace("_", "-"), seed): figures for policy, figures in policies.items() for seed in (1, 2)
    }
    return verdicts(summaries(runs, 1))


@pytest.mark.parametrize(
    ("scenario", "most"),
    [("new-image-cold-20s", 115), ("new-image-roll-out-480s-burst", 125), ("new-image-cold-90s-alone", 155)],
)
def test_a_new_image_is_judged_by_the_wait_without_windows(scenario: str, most: int) -> None:
    for wait, holds in ((most - 1, True), (most + 1, False)):
        (verdict,) = judged(scenario, slipway=replace(NEW_IMAGE, wait_new=wait), no_windows=NEW_IMAGE)
        assert (verdict.holds, f"≤ {most / 100:g} × without windows" in verdict.claim) == (holds, True)
    assert judged(scenario, slipway=NEW_IMAGE) == []


def test_a_bad_roll_out_is_judged_by_its_machines() -> None:
    for machines, holds in ((25, True), (26, False)):
        (verdict,) = judged("bad-roll-out-480s-3r", slipway=replace(NEW_IMAGE, on_bad_image=machines), before=NEW_IMAGE)
        assert verdict.holds is holds


def test_a_partly_bad_image_is_judged_by_the_rules_before() -> None:
    for failed, holds in ((250, True), (251, False)):
        (verdict,) = judged("mostly-bad-90s", slipway=replace(NEW_IMAGE, failed=failed), before=NEW_IMAGE)
        assert verdict.holds is holds

    def of_third(**changes: float) -> list[bool]:
        return [
            verdict.holds
            for verdict in judged("third-bad-90s", slipway=replace(NEW_IMAGE, **changes), before=NEW_IMAGE)
        ]

    assert of_third(failed=110, registered=110) == [True, True, True]
    assert of_third(failed=111, registered=111) == [False, True, True]
    assert of_third(registered=99) == [True, False, True]
    assert of_third(wait_mean=100.5) == [True, True, False]


def test_a_family_is_run_with_its_policies_and_a_false_claim_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    (scenario, *_) = FAMILIES[IMAGES].scenarios(Sizes(boots=(30.0,), rate=6.0))
    short = replace(scenario, hours=0.3)
    assert compare(Selection(scenarios=[short], seeds=1, of_family=True), None, None) == 0
    assert "1 of 1 claims hold" in capsys.readouterr().out
    slow = replace(short, name=f"{MOSTLY}-30s")
    assert Selection(scenarios=[slow], seeds=1).policies_of(slow) == (earlier.BEFORE, "slipway")
