"""`make policies`: launch policies compared on a virtual clock, with the same scenarios and seeds.

Arguments are read from the environment:

    (none)                             a short form: a few scenarios, 2 seeds
    ONLY=all-out,slipway               only these scenarios and policies
    SCENARIO=FILE                      a scenario file (format: scenario.py), or the name of a built-in one
    DEMAND=FILE AVAILABILITY=FOLDER    real traces [default: a synthetic pair]
    SEEDS=3                            runs of each scenario and policy
    CALIBRATE=1                        check that the simulator reproduces published figures
    FULL=1                             all scenarios and policies, 20 seeds
    FULL=1 KEEP=1                      the same; writes bench/results/policies.{json,md} and charts
    CELL=all-out/slipway/7             recompute one run and compare with bench/results/policies.json
"""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench import committed
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

CHARTS: Final = ("policies-shares.png", "policies-failures.png", "policies-ratios.png")
FILES: Final = ("policies.json", "policies.md", *CHARTS)
COMMITTED: Final = f"{committed.NAME}/{FILES[0]}"
SHORT: Final = ("healthy", "one-out", "all-out", "steady-30", "bad-image", "always-bad-nine")
SHORT_SEEDS, FULL_SEEDS = 2, 20
DRAWN: Final = ("rfc191", "ttl", "autoscaler", "thompson", "recommended", "slipway")


class BadArgument(Exception):
    """An invalid argument; the message names the allowed values."""


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Scenarios, policies and number of seeds selected by the arguments."""

    scenarios: Sequence[Scenario]
    policies: Sequence[str]
    seeds: int


def main(environment: Mapping[str, str], folder: Path = committed.FOLDER) -> int:
    """Run by the arguments in `environment`; CELL is compared with the results in `folder`."""
    try:
        if name := environment.get("CELL"):
            cell = _cell(name)
            return again(cell, _traces(environment) if needs_traces(cell.scenario) else None, folder)
        selection = _selection(environment)
        if environment.get("CALIBRATE"):
            return _calibrate(_traces(environment), selection.seeds)
        given = _used(environment, selection.scenarios)
        target = committed.folder_to_write(environment, *FILES, folder=folder) if environment.get("FULL") else None
        return compare(selection, given, target)
    except (BadArgument, BadScenario, BadTrace) as error:
        print(f"policies: {error}", file=sys.stderr)
        return 2


def _traces(environment: Mapping[str, str]) -> Traces:
    """Traces given by DEMAND and AVAILABILITY; synthetic ones, with a notice, in place of missing ones."""
    demand, folder = environment.get("DEMAND"), environment.get("AVAILABILITY")
    missing = [name for name, value in (("DEMAND=FILE", demand), ("AVAILABILITY=FOLDER", folder)) if not value]
    if missing:
        print(f"{' and '.join(missing)} not given: using synthetic traces", flush=True)
    arrivals = traces.demand(Path(demand)) if demand else synthetic.arrivals()
    zones, gap_seconds = traces.availability(Path(folder)) if folder else (synthetic.zones(), synthetic.GAP_SECONDS)
    of = f"{Path(demand).name if demand else 'synthetic demand'}, {len(zones)} {'' if folder else 'synthetic '}zones"
    return Traces(arrivals=arrivals, zones=zones, gap_seconds=gap_seconds, of=of)


def _used(environment: Mapping[str, str], scenarios: Sequence[Scenario]) -> Traces | None:
    """Traces needed by the scenarios. Given ones are read in any case, so that errors show before anything runs."""
    named = [name for name in ("DEMAND", "AVAILABILITY") if environment.get(name)]
    needed = any(map(needs_traces, scenarios))
    given = _traces(environment) if needed or named else None
    if needed:
        return given
    if named:
        print(f"{' and '.join(named)}: not used, since no selected scenario needs traces; ONLY=real does", flush=True)
    return None


def _selection(environment: Mapping[str, str]) -> Selection:
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
                f"ONLY={unknown[0]}: no such scenario or policy; available: {', '.join((*BUILT_IN, *POLICIES))}"
            )
        scenarios = [known[name] for name in names if name in known] or scenarios
        policies = [name for name in POLICIES if name in names] or policies
    return Selection(scenarios=scenarios, policies=policies, seeds=_seeds(environment, is_full=is_full))


def _seeds(environment: Mapping[str, str], *, is_full: bool) -> int:
    text = environment.get("SEEDS") or str(FULL_SEEDS if is_full else SHORT_SEEDS)
    if not text.isdigit() or not 1 <= int(text) <= 1000:
        raise BadArgument(f"SEEDS={text}: must be a number from 1 to 1000")
    return int(text)


def _calibrate(given: Traces, seeds: int) -> int:
    print(f"{given.of}; {seeds} seeds, {len(given.offsets())} offsets", flush=True)
    within = []
    for is_within, line in calibrate(given, seeds):
        within.append(is_within)
        print(line, flush=True)
    print("calibrated" if all(within) else f"not calibrated: {within.count(False)} of {len(within)} differ")
    return 0 if all(within) else 1


def compare(selection: Selection, given: Traces | None, folder: Path | None) -> int:
    """Run all cells, print tables and claims, write results to `folder`; return 1 if a claim is false."""
    offsets = len(given.offsets()) if given is not None else 1
    cells = plan(selection.scenarios, selection.policies, selection.seeds, offsets)
    of = f"; {given.of}" if given is not None else ""
    scenarios = "1 scenario" if len(selection.scenarios) == 1 else f"{len(selection.scenarios)} scenarios"
    policies = "1 policy" if len(selection.policies) == 1 else f"{len(selection.policies)} policies"
    print(f"{scenarios} × {policies}, {len(cells)} runs{of}", flush=True)
    found: dict[Cell, Figures] = {}
    for cell, figures in compute_all(cells, given):
        found[cell] = figures
        if len(found) % 100 == 0:
            print(f"  {len(found)} of {len(cells)} runs", flush=True)
    sums = results.summaries(found, offsets)
    judged = verdicts({key: summary for key, summary in sums.items() if _is_claimed(selection, key[0], given)})
    text = _text(selection, sums, judged)
    print("\n".join(text))
    if folder is not None and given is not None:
        _write(selection, found, sums, text, given, folder)
    wrong = sum(not verdict.holds for verdict in judged)
    print(f"\n{counted(judged)}" if judged else "\nno claims about these runs")
    return 1 if wrong else 0


def _is_claimed(selection: Selection, name: str, given: Traces | None) -> bool:
    """True if claims apply to a scenario: it is built in, and its traces, if any, are the published ones."""
    scenario = next(scenario for scenario in selection.scenarios if scenario.name == name)
    known = given is not None and results.digest(given) == PUBLISHED_TRACES
    return scenario == BUILT_IN.get(name) and (known or not needs_traces(scenario))


def _text(selection: Selection, sums: Summaries, judged: Sequence[Verdict]) -> list[str]:
    lines = ["", *overview(selection.scenarios, selection.policies, sums), "", LEGEND]
    for scenario in selection.scenarios:
        about = ["", scenario.about] if scenario.about else []
        lines += ["", f"## {scenario.name}", *about, "", *detail(scenario, selection.policies, sums)]
    if judged:
        lines += ["", "## Claims", "", *(f"- {verdict}" for verdict in judged)]
    return lines


def _write(
    selection: Selection,
    found: Mapping[Cell, Figures],
    sums: Summaries,
    text: Sequence[str],
    given: Traces,
    folder: Path,
) -> None:
    command = "make policies FULL=1 KEEP=1" + ("" if "synthetic" in given.of else " DEMAND=FILE AVAILABILITY=FOLDER")
    folder.mkdir(exist_ok=True)
    results.write(
        folder / "policies.json",
        Results(
            command=command,
            on={"python": platform.python_version(), "seeds": selection.seeds},
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
        f"`{command}`: {selection.seeds} seeds, {given.of}, {len(given.offsets())} offsets. The figures of every run",
        "are in `policies.json`; `make policies CELL=all-out/slipway/7` recomputes one of them.",
        "",
        "![shares](policies-shares.png)",
        "![failures](policies-failures.png)",
        "![failed/ok](policies-ratios.png)",
    ]
    (folder / "policies.md").write_text("\n".join([*head, *text]) + "\n")
    drawn = [policy for policy in DRAWN if policy in selection.policies]
    for name, draw in (("one-out", plots.shares), ("all-out", plots.failures)):
        if any(scenario.name == name for scenario in selection.scenarios):
            file = folder / f"policies-{draw.__name__}.png"
            draw(file, {policy: run(Cell(BUILT_IN[name], policy, 1), given) for policy in drawn})
    if ("real", OURS) in sums:
        plots.ratios(folder / "policies-ratios.png", sums, selection.policies)


def _cell(name: str) -> Cell:
    parts = name.split("/")
    if len(parts) != 3 or parts[0] not in BUILT_IN or parts[1] not in POLICIES or not parts[2].isdigit():
        raise BadArgument(f"CELL={name}: must be scenario/policy/seed, such as all-out/slipway/7")
    return Cell(BUILT_IN[parts[0]], parts[1], int(parts[2]))


def again(cell: Cell, given: Traces | None, folder: Path) -> int:
    """Recompute one cell and compare it with the committed results; return 1 if it differs."""
    try:
        saved = results.read(folder / "policies.json")
    except (OSError, msgspec.DecodeError) as error:
        raise BadArgument(
            f"{COMMITTED}: {getattr(error, 'strerror', error)}; make policies FULL=1 KEEP=1 writes it"
        ) from error
    if cell.name not in saved.cells:
        raise BadArgument(f"CELL={cell.name}: {COMMITTED} has no such run")
    if given is not None and saved.digest != results.digest(given):
        raise BadArgument(
            f"CELL={cell.name}: computed from {saved.traces}; give these traces as DEMAND and AVAILABILITY"
        )
    then, now = saved.figures(cell.name), compute(cell, given)
    differing = [field for field in results.FIELDS if getattr(then, field) != getattr(now, field)]
    for field in results.FIELDS:
        mark = f"   committed: {getattr(then, field)}" if field in differing else ""
        print(f"{field:<18} {getattr(now, field)}{mark}")
    print(f"differs from {COMMITTED} in {', '.join(differing)}" if differing else f"equal to {COMMITTED}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
