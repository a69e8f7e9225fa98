"""`make policies`: launch policies compared on a virtual clock, with the same scenarios and seeds.

Arguments are read from the environment:

    (none)                             a short form: a few scenarios, 2 seeds
    ONLY=all-out,slipway               only these scenarios and policies
    SCENARIO=FILE                      a scenario file (format: scenario.py), or the name of a built-in one or a family
    SCENARIO=demo                      an outage as in `make demo`, under RFC 191's rule and under Slipway
    DEMAND=FILE AVAILABILITY=FOLDER    real traces [default: a synthetic pair]
    SEEDS=3 SEED=1                     runs of each scenario and policy [default: 3 of a family], and the first seed
    BOOTS=20,90,480 RATE=24 BURST=100  median boots in seconds, launches per minute and burst of a family's scenarios
    BEFORE=COMMIT                      commit whose rules are the policy `before` [default: the last one with steps]
    CALIBRATE=1                        check that the simulator reproduces published figures
    FULL=1                             all scenarios and policies, 20 seeds
    FULL=1 KEEP=1                      the same; writes bench/results/policies.{json,md}
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
from bench.policies import earlier, results, synthetic, traces
from bench.policies.calibrate import calibrate
from bench.policies.cells import COMPARED, POLICIES, Cell, compute_all, needs_traces, plan
from bench.policies.claims import Summaries, Verdict, counted, verdicts
from bench.policies.earlier import UnknownCommit
from bench.policies.families import FAMILIES, Sizes, family_of
from bench.policies.figures import Figures
from bench.policies.published import TRACES as PUBLISHED_TRACES
from bench.policies.results import Results
from bench.policies.scenario import (
    BOOT_SECONDS_MAX,
    BOOT_SECONDS_MIN,
    BUILT_IN,
    PUSH_MAX,
    RATE_MAX,
    BadScenario,
    Scenario,
    read,
)
from bench.policies.table import LEGEND, detail, overview, variants
from bench.policies.traces import BadTrace, Traces

FILES: Final = ("policies.json", "policies.md")
COMMITTED: Final = f"{committed.NAME}/{FILES[0]}"
SHORT: Final = ("healthy", "one-out", "all-out", "steady-30", "bad-image", "always-bad-nine")
SHORT_SEEDS, FAMILY_SEEDS, FULL_SEEDS = 2, 3, 20
FRACTIONS: Final = {"BOOTS": "seconds", "RATE": "launches per minute"}
REAL: Final = "real"  # compared with an earlier commit too


class BadArgument(Exception):
    """An invalid argument; the message names the allowed values."""


KNOWN: Final = BUILT_IN | {
    scenario.name: scenario for family in FAMILIES.values() for scenario in family.scenarios(Sizes())
}
"""Scenarios by name, with those of the families by default sizes."""
FULL: Final = [name for name in KNOWN if not (family := family_of(name)) or FAMILIES[family].in_full]


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Scenarios, policies and seeds selected by the arguments; without `policies` each scenario has its own.

    `of_family`: the scenarios are those of a family, perhaps by other sizes than the default.
    """

    scenarios: Sequence[Scenario]
    policies: Sequence[str] = ()
    seeds: int
    first_seed: int = 1
    commit: str = earlier.COMMIT
    of_family: bool = False

    def policies_of(self, scenario: Scenario) -> Sequence[str]:
        """Policies that a scenario is run with."""
        family = family_of(scenario.name)
        before = (earlier.BEFORE,) if scenario.name == REAL else ()
        return self.policies or (FAMILIES[family].policies if family else (*COMPARED, *before))


def main(environment: Mapping[str, str], folder: Path = committed.FOLDER) -> int:
    """Run by the arguments in `environment`; CELL is compared with the results in `folder`."""
    try:
        commit = environment.get("BEFORE") or earlier.COMMIT
        if name := environment.get("CELL"):
            cell = _cell(name)
            return again(cell, _traces(environment) if needs_traces(cell.scenario) else None, folder, commit)
        selection = _selection(environment)
        if environment.get("CALIBRATE"):
            return _calibrate(_traces(environment), selection.seeds)
        given = _used(environment, selection.scenarios)
        target = committed.folder_to_write(environment, *FILES, folder=folder) if environment.get("FULL") else None
        return compare(selection, given, target)
    except (BadArgument, BadScenario, BadTrace, UnknownCommit) as error:
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
    sizes = _sizes(environment)
    scenarios = [KNOWN[name] for name in (FULL if is_full else SHORT)]
    if path:
        scenarios = _scenarios(path, sizes)
        if environment.get("DEMAND") or environment.get("AVAILABILITY"):
            scenarios += [BUILT_IN["real"]] if scenarios[0].name != "real" else []
    policies: list[str] = []
    if names := [name for name in environment.get("ONLY", "").split(",") if name]:
        known = {scenario.name: scenario for scenario in scenarios} | KNOWN
        if unknown := [name for name in names if name not in known and name not in POLICIES]:
            raise BadArgument(
                f"ONLY={unknown[0]}: no such scenario or policy; available: {', '.join((*KNOWN, *POLICIES))}"
            )
        scenarios = [known[name] for name in names if name in known] or scenarios
        policies = [name for name in POLICIES if name in names]
    in_family = bool(path) and path in FAMILIES and not Path(path).exists()
    if sizes != Sizes() and not in_family:
        raise BadArgument(f"BOOTS, RATE and BURST: only for a family; SCENARIO={' | '.join(FAMILIES)} selects one")
    of_families = all(family_of(scenario.name) for scenario in scenarios)
    seeds = FULL_SEEDS if is_full else FAMILY_SEEDS if of_families else SHORT_SEEDS
    return Selection(
        scenarios=scenarios,
        policies=policies,
        seeds=int(_number(environment, "SEEDS", seeds, 1, 1000)),
        first_seed=int(_number(environment, "SEED", 1, 1, 100_000)),
        commit=environment.get("BEFORE") or earlier.COMMIT,
        of_family=in_family,
    )


def _scenarios(path: str, sizes: Sizes) -> list[Scenario]:
    if not Path(path).exists():
        if path in FAMILIES:
            return FAMILIES[path].scenarios(sizes)
        if path in KNOWN:
            return [KNOWN[path]]
        available = ", ".join((*FAMILIES, *BUILT_IN))
        raise BadArgument(f"SCENARIO={path}: no such file, scenario or family; available: {available}")
    return [read(Path(path))]


def _sizes(environment: Mapping[str, str]) -> Sizes:
    default = Sizes()
    boots = [
        _number({"BOOTS": part}, "BOOTS", 0, BOOT_SECONDS_MIN, BOOT_SECONDS_MAX)
        for part in (environment.get("BOOTS") or "").split(",")
        if part
    ]
    return Sizes(
        boots=tuple(dict.fromkeys(boots)) or default.boots,
        rate=_number(environment, "RATE", default.rate, 0.001, RATE_MAX),
        burst=int(_number(environment, "BURST", default.burst, 1, PUSH_MAX)),
    )


def _number(environment: Mapping[str, str], name: str, default: float, least: float, most: float) -> float:
    """Argument within bounds; a default that is a whole number asks for one."""
    text = environment.get(name) or f"{default:g}"
    try:
        found = float(text) if name in FRACTIONS else float(int(text))
    except ValueError:
        found = float("nan")
    if not least <= found <= most:
        kind, unit = ("number", f" ({FRACTIONS[name]})") if name in FRACTIONS else ("whole number", "")
        raise BadArgument(f"{name}={text}: must be a {kind} from {least:g} to {most:g}{unit}")
    return found


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
    cells = [
        cell
        for scenario in selection.scenarios
        for cell in plan(
            [scenario], selection.policies_of(scenario), selection.seeds, offsets, first=selection.first_seed
        )
    ]
    of = f"; {given.of}" if given is not None else ""
    scenarios = "1 scenario" if len(selection.scenarios) == 1 else f"{len(selection.scenarios)} scenarios"
    names = list(dict.fromkeys(cell.policy for cell in cells))
    policies = "1 policy" if len(names) == 1 else f"{len(names)} policies"
    print(f"{scenarios} × {policies}, {len(cells)} runs{of}", flush=True)
    found: dict[Cell, Figures] = {}
    for cell, figures in compute_all(cells, given, selection.commit):
        found[cell] = figures
        if len(found) % 100 == 0:
            print(f"  {len(found)} of {len(cells)} runs", flush=True)
    sums = results.summaries(found, offsets)
    judged = verdicts({key: summary for key, summary in sums.items() if _is_claimed(selection, key[0], given)})
    text = _text(selection, sums, judged)
    print("\n".join(text))
    if folder is not None and given is not None:
        _write(selection, found, text, given, folder)
    wrong = sum(not verdict.holds for verdict in judged)
    print(f"\n{counted(judged)}" if judged else "\nno claims about these runs")
    return 1 if wrong else 0


def _is_claimed(selection: Selection, name: str, given: Traces | None) -> bool:
    """True if claims apply to a scenario: it is built in or of a family, and traces, if any, are the published ones."""
    scenario = next(scenario for scenario in selection.scenarios if scenario.name == name)
    known = given is not None and results.digest(given) == PUBLISHED_TRACES
    is_ours = selection.of_family or scenario == KNOWN.get(name)
    return is_ours and (known or not needs_traces(scenario))


def _text(selection: Selection, sums: Summaries, judged: Sequence[Verdict]) -> list[str]:
    policies = [policy for policy in POLICIES if any(policy == run_policy for _, run_policy in sums)]
    lines = ["", *overview(selection.scenarios, policies, sums), "", LEGEND, *variants(policies)]
    for scenario in selection.scenarios:
        about = ["", scenario.about] if scenario.about else []
        lines += ["", f"## {scenario.name}", *about, "", *detail(scenario, selection.policies_of(scenario), sums)]
    if judged:
        lines += ["", "## Claims", "", *(f"- {verdict}" for verdict in judged)]
    return lines


def _write(
    selection: Selection,
    found: Mapping[Cell, Figures],
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
    ]
    (folder / "policies.md").write_text("\n".join([*head, *text]) + "\n")


def _cell(name: str) -> Cell:
    parts = name.split("/")
    if len(parts) != 3 or parts[0] not in KNOWN or parts[1] not in POLICIES or not parts[2].isdigit():
        raise BadArgument(f"CELL={name}: must be scenario/policy/seed, such as all-out/slipway/7")
    return Cell(KNOWN[parts[0]], parts[1], int(parts[2]))


def again(cell: Cell, given: Traces | None, folder: Path, commit: str) -> int:
    """Recompute one cell and compare it with the committed results; return 1 if it differs."""
    try:
        saved = results.read(folder / "policies.json")
    except (OSError, msgspec.DecodeError) as error:
        raise BadArgument(
            f"{COMMITTED}: {getattr(error, 'strerror', error)}; make policies FULL=1 KEEP=1 writes it"
        ) from error
    if cell.name not in saved.cells:
        raise BadArgument(
            f"CELL={cell.name}: {COMMITTED} has no such run; SCENARIO={cell.scenario.name} ONLY={cell.policy} "
            f"SEED={cell.seed} SEEDS=1 computes it"
        )
    if given is not None and saved.digest != results.digest(given):
        raise BadArgument(
            f"CELL={cell.name}: computed from {saved.traces}; give these traces as DEMAND and AVAILABILITY"
        )
    then, ((_, now),) = saved.figures(cell.name), compute_all([cell], given, commit)
    differing = [field for field in saved.fields if getattr(then, field) != getattr(now, field)]
    for field in saved.fields:
        mark = f"   committed: {getattr(then, field)}" if field in differing else ""
        print(f"{field:<18} {getattr(now, field)}{mark}")
    print(f"differs from {COMMITTED} in {', '.join(differing)}" if differing else f"equal to {COMMITTED}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
