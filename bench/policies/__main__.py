"""`make policies`: launch policies on a virtual clock, in the same scenarios and seeds.

Its arguments stand in the environment:

    (none)                             a short form: a few scenarios, 2 seeds
    ONLY=all-out,slipway               some scenarios, some policies
    SCENARIO=FILE                      one scenario of your own (scenario.py says how it is written), or a name
    DEMAND=FILE AVAILABILITY=FOLDER    real traces; without them a synthetic pair
    SEEDS=3                            runs of each
    CALIBRATE=1                        whether the simulator gives what is known of others' rules
    FULL=1                             everything; keeps bench/results/policies.{json,md} and pictures
    CELL=all-out/slipway/7             one run again, compared with bench/results/policies.json
"""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.policies import plots, results, synthetic, traces
from bench.policies.calibrate import calibrate
from bench.policies.cells import POLICIES, Cell, compute, compute_all, needs_traces, plan, run
from bench.policies.claims import OURS, Summaries, Verdict, counted, verdicts
from bench.policies.figures import Figures
from bench.policies.published import TRACES as PUBLISHED_TRACES
from bench.policies.results import Results
from bench.policies.scenario import BUILT_IN, BadScenario, Scenario, read
from bench.policies.table import LEGEND, detail, overview
from bench.policies.traces import BadTrace, Traces

FOLDER: Final = Path(__file__).parent.parent / "results"
KEPT: Final = "bench/results/policies.json"
SHORT: Final = ("healthy", "one-out", "all-out", "steady-30", "bad-image", "always-bad-nine")
SHORT_SEEDS, FULL_SEEDS = 2, 20
DRAWN: Final = ("rfc191", "ttl", "autoscaler", "thompson", "recommended", "slipway")


class BadArgument(Exception):
    """An argument that cannot be; the message says what may be written."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What the person asked for, apart from traces."""

    scenarios: Sequence[Scenario]
    policies: Sequence[str]
    seeds: int


def main(environment: Mapping[str, str], folder: Path = FOLDER) -> int:
    """`folder` keeps results."""
    try:
        if name := environment.get("CELL"):
            cell = _cell(name)
            return again(cell, _traces(environment) if needs_traces(cell.scenario) else None, folder)
        wish = _wish(environment)
        if environment.get("CALIBRATE"):
            return _calibrate(_traces(environment), wish.seeds)
        given = _used(environment, wish.scenarios)
        return compare(wish, given, folder if environment.get("FULL") else None)
    except (BadArgument, BadScenario, BadTrace) as error:
        print(f"policies: {error}", file=sys.stderr)
        return 2


def _traces(environment: Mapping[str, str]) -> Traces:
    """Those that were named; for those that were not, ours, and a word about it."""
    demand, folder = environment.get("DEMAND"), environment.get("AVAILABILITY")
    missing = [name for name, value in (("DEMAND=FILE", demand), ("AVAILABILITY=FOLDER", folder)) if not value]
    if missing:
        print(f"no {' and no '.join(missing)}: synthetic ones stand in", flush=True)
    arrivals = traces.demand(Path(demand)) if demand else synthetic.arrivals()
    zones, gap_seconds = traces.availability(Path(folder)) if folder else (synthetic.zones(), synthetic.GAP_SECONDS)
    of = f"{Path(demand).name if demand else 'synthetic demand'}, {len(zones)} {'' if folder else 'synthetic '}zones"
    return Traces(arrivals=arrivals, zones=zones, gap_seconds=gap_seconds, of=of)


def _used(environment: Mapping[str, str], scenarios: Sequence[Scenario]) -> Traces | None:
    """The traces that scenarios need. Named ones are read in any case: a mistake shows before anything runs."""
    named = [name for name in ("DEMAND", "AVAILABILITY") if environment.get(name)]
    needed = any(map(needs_traces, scenarios))
    given = _traces(environment) if needed or named else None
    if needed:
        return given
    if named:
        print(f"{' and '.join(named)}: no scenario here is of traces, so not used; ONLY=real plays them", flush=True)
    return None


def _wish(environment: Mapping[str, str]) -> Wish:
    is_full, path = bool(environment.get("FULL")), environment.get("SCENARIO")
    scenarios = [BUILT_IN[name] for name in (BUILT_IN if is_full else SHORT)]
    if path:
        scenarios = [BUILT_IN[path] if path in BUILT_IN and not Path(path).exists() else read(Path(path))]
        if environment.get("DEMAND") or environment.get("AVAILABILITY"):
            scenarios += [BUILT_IN["real"]] if scenarios[0].name != "real" else []
    policies = list(POLICIES)
    if names := [name for name in environment.get("ONLY", "").split(",") if name]:
        known = {scenario.name: scenario for scenario in scenarios} | BUILT_IN
        if unknown := [name for name in names if name not in known and name not in POLICIES]:
            raise BadArgument(
                f"ONLY={unknown[0]}: no such scenario or policy; there are {', '.join((*BUILT_IN, *POLICIES))}"
            )
        scenarios = [known[name] for name in names if name in known] or scenarios
        policies = [name for name in POLICIES if name in names] or policies
    return Wish(scenarios=scenarios, policies=policies, seeds=_seeds(environment, is_full=is_full))


def _seeds(environment: Mapping[str, str], *, is_full: bool) -> int:
    text = environment.get("SEEDS") or str(FULL_SEEDS if is_full else SHORT_SEEDS)
    if not text.isdigit() or not 1 <= int(text) <= 1000:
        raise BadArgument(f"SEEDS={text}: write a number from 1 to 1000")
    return int(text)


def _calibrate(given: Traces, seeds: int) -> int:
    print(f"{given.of}; {seeds} seeds, {len(given.offsets())} offsets", flush=True)
    within = []
    for is_within, line in calibrate(given, seeds):
        within.append(is_within)
        print(line, flush=True)
    print("calibrated" if all(within) else f"not calibrated: {within.count(False)} of {len(within)} are off")
    return 0 if all(within) else 1


def compare(wish: Wish, given: Traces | None, folder: Path | None) -> int:
    """Run every cell, print the tables, judge the claims; keep them in a folder. 1 if a claim is false."""
    offsets = len(given.offsets()) if given is not None else 1
    cells = plan(wish.scenarios, wish.policies, wish.seeds, offsets)
    of = f"; {given.of}" if given is not None else ""
    scenarios = "1 scenario" if len(wish.scenarios) == 1 else f"{len(wish.scenarios)} scenarios"
    policies = "1 policy" if len(wish.policies) == 1 else f"{len(wish.policies)} policies"
    print(f"{scenarios} × {policies}, {len(cells)} runs{of}", flush=True)
    found: dict[Cell, Figures] = {}
    for cell, figures in compute_all(cells, given):
        found[cell] = figures
        if len(found) % 100 == 0:
            print(f"  {len(found)} of {len(cells)} runs", flush=True)
    sums = results.summaries(found, offsets)
    judged = verdicts({key: summary for key, summary in sums.items() if _is_claimed(wish, key[0], given)})
    text = _text(wish, sums, judged)
    print("\n".join(text))
    if folder is not None and given is not None:
        _keep(wish, found, sums, text, given, folder)
    wrong = sum(not verdict.holds for verdict in judged)
    print(f"\n{counted(judged)}" if judged else "\nno claims about these")
    return 1 if wrong else 0


def _is_claimed(wish: Wish, name: str, given: Traces | None) -> bool:
    """Claims are about our own scenarios, and of traces about the published ones; anything else is only told."""
    scenario = next(scenario for scenario in wish.scenarios if scenario.name == name)
    known = given is not None and results.digest(given) == PUBLISHED_TRACES
    return scenario == BUILT_IN.get(name) and (known or not needs_traces(scenario))


def _text(wish: Wish, sums: Summaries, judged: Sequence[Verdict]) -> list[str]:
    lines = ["", *overview(wish.scenarios, wish.policies, sums), "", LEGEND]
    for scenario in wish.scenarios:
        about = ["", scenario.about] if scenario.about else []
        lines += ["", f"## {scenario.name}", *about, "", *detail(scenario, wish.policies, sums)]
    if judged:
        lines += ["", "## Claims", "", *(f"- {verdict}" for verdict in judged)]
    return lines


def _keep(
    wish: Wish, found: Mapping[Cell, Figures], sums: Summaries, text: Sequence[str], given: Traces, folder: Path
) -> None:
    command = "make policies FULL=1" + ("" if "synthetic" in given.of else " DEMAND=FILE AVAILABILITY=FOLDER")
    folder.mkdir(exist_ok=True)
    results.write(
        folder / "policies.json",
        Results(
            command=command,
            on={"python": platform.python_version(), "seeds": wish.seeds},
            traces=given.of,
            digest=results.digest(given),
            offsets=len(given.offsets()),
            fields=results.FIELDS,
            cells={cell.name: results.row(figures) for cell, figures in found.items()},
        ),
    )
    head = [
        "# Launch policies",
        "",
        f"`{command}`: {wish.seeds} seeds, {given.of}, {len(given.offsets())} offsets. Every run's figures stand in",
        "`policies.json`; `make policies CELL=all-out/slipway/7` computes one of them again.",
        "",
        "![shares](policies-shares.png)",
        "![failures](policies-failures.png)",
        "![failed/ok](policies-ratios.png)",
    ]
    (folder / "policies.md").write_text("\n".join([*head, *text]) + "\n")
    drawn = [policy for policy in DRAWN if policy in wish.policies]
    for name, draw in (("one-out", plots.shares), ("all-out", plots.failures)):
        if any(scenario.name == name for scenario in wish.scenarios):
            file = folder / f"policies-{draw.__name__}.png"
            draw(file, {policy: run(Cell(BUILT_IN[name], policy, 1), given) for policy in drawn})
    if ("real", OURS) in sums:
        plots.ratios(folder / "policies-ratios.png", sums, wish.policies)


def _cell(name: str) -> Cell:
    parts = name.split("/")
    if len(parts) != 3 or parts[0] not in BUILT_IN or parts[1] not in POLICIES or not parts[2].isdigit():
        raise BadArgument(f"CELL={name}: write scenario/policy/seed, such as all-out/slipway/7")
    return Cell(BUILT_IN[parts[0]], parts[1], int(parts[2]))


def again(cell: Cell, given: Traces | None, folder: Path) -> int:
    """Compute one cell and compare it with the file; 1 if it differs."""
    try:
        kept = results.read(folder / "policies.json")
    except (OSError, msgspec.DecodeError) as error:
        raise BadArgument(f"{KEPT}: {getattr(error, 'strerror', error)}; make policies FULL=1 writes it") from error
    if cell.name not in kept.cells:
        raise BadArgument(f"CELL={cell.name}: {KEPT} has no such run")
    if given is not None and kept.digest != results.digest(given):
        raise BadArgument(f"CELL={cell.name}: kept from {kept.traces}; give these as DEMAND and AVAILABILITY")
    then, now = kept.figures(cell.name), compute(cell, given)
    differing = [field for field in results.FIELDS if getattr(then, field) != getattr(now, field)]
    for field in results.FIELDS:
        mark = f"   kept: {getattr(then, field)}" if field in differing else ""
        print(f"{field:<18} {getattr(now, field)}{mark}")
    print(f"differs from {KEPT} in {', '.join(differing)}" if differing else f"equal to {KEPT}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
