"""`make policies SCENARIO=demo`: Slipway's cores and RFC 191's rule in the cloud of `make demo`, on a virtual clock.

Both have the tasks and faults of the demo and obey its lease limits, pacing and maxima; what the demo's processes add
is left out. Arguments are read from the environment, as by the demo:

    SEEDS=3 SEED=1             number of runs, and the first seed
    DURATION=3m                real time of a demo at 20 × speed: 3 minutes are an hour of demand
    FAULTS=zone-b:25%-50%      faults of the cloud (`make demo FAULTS=help` lists them)
    DEMAND=FILE                a recorded queue in place of the demo's demand
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from random import Random
from statistics import fmean
from typing import Final

import msgspec

from bench.policies.claims import Verdict, counted
from bench.policies.table import markdown
from slipway_common.declaration.models import Declaration
from slipway_common.declaration.parsing import load
from slipway_common.declaration.scaling import scaled
from slipway_local.demo.program import DECLARATIONS, Arguments, parse_arguments, scenario
from slipway_local.demo.replay.comparison import limits
from slipway_local.demo.replay.cores import Slipway
from slipway_local.demo.replay.error_rates import Rfc191
from slipway_local.demo.replay.run import Rule, play
from slipway_local.demo.replay.waste import Waste, waste
from slipway_simulator import demand
from slipway_simulator.facts import Fact, ScenarioLoaded, TaskArrived
from slipway_simulator.notation import BadFault
from slipway_simulator.queue import Queue
from slipway_simulator.scenario import Scenario

NAME: Final = "demo"
PROCESSES: Final = 2
GIVEN: Final = ("DURATION", "FAULTS", "DEMAND")
OTHERS: Final = ("BOOTS", "RATE", "BURST", "ONLY", "BEFORE", "AVAILABILITY", "SPEED", "PROVIDER")
SEEDS_MAX: Final = 1000
BEGIN: Final = 1_767_225_600.0  # epoch seconds
WAIT_MAX, WASTE_MAX = 1.1, 0.6  # times those of RFC 191's rule
RULES: Final[Mapping[str, type[Rule]]] = {"slipway": Slipway, "rfc191": Rfc191}


class BadDemo(Exception):
    """An invalid argument; the message names the allowed values."""


class Pair(msgspec.Struct, frozen=True):
    """Both rules on one seed."""

    seed: int
    ours: Waste
    theirs: Waste


def main(environment: Mapping[str, str]) -> int:
    """Run by the arguments in `environment`, print both rules and the claims; return 1 if a claim is false."""
    arguments = _arguments(environment)
    first, limited = arguments[0], limits(_declared(arguments[0]), arguments[0].speed)
    runs = "1 run" if len(arguments) == 1 else f"{len(arguments)} runs"
    print(
        f"{runs} of {first.product_seconds / 60:g} min of demand. Both rules obey the same limits:\n{limited}",
        flush=True,
    )
    found = pairs(arguments)
    judged = verdicts(found)
    print("\n".join(["", *table(found), "", "## Claims", "", *(f"- {verdict}" for verdict in judged)]))
    print(f"\n{counted(judged)}")
    return 0 if all(verdict.holds for verdict in judged) else 1


def pairs(arguments: Sequence[Arguments]) -> list[Pair]:
    """Both rules under each of these arguments."""
    cells = [(each, name) for each in arguments for name in RULES]
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as executor:
        found = dict(zip(cells, executor.map(compute, *zip(*cells, strict=True)), strict=True))
    return [Pair(each.seed, found[each, "slipway"], found[each, "rfc191"]) for each in arguments]


def compute(arguments: Arguments, rule: str) -> Waste:
    """Waste and wait of one rule in the demo with these arguments."""
    until = BEGIN + arguments.duration_seconds
    return waste(play(outside(arguments), _declared(arguments), RULES[rule](), until=until), until=until)


def outside(arguments: Arguments) -> Iterator[Fact]:
    """Scenario, faults and tasks of the demo: the facts that no rule causes."""
    loaded = ScenarioLoaded(at=BEGIN, scenario=msgspec.convert(scenario(arguments), Scenario))
    yield loaded
    queue = Queue()
    queue.fold(loaded)
    arriving = [
        (BEGIN + offset / source.speed, source_id, length / source.speed)
        for source_id, source in queue.sources.items()
        # Drawn as the simulator draws them.
        for offset, length in demand.arrivals(source.demand, Random(f"{arguments.seed}/{source_id}"))
    ]
    for number, (at, source_id, seconds) in enumerate(sorted(arriving, key=lambda task: task[0]), start=1):
        pool_id = queue.sources[source_id].pool_id
        yield TaskArrived(
            at=at, task_id=f"{pool_id}-{number}", pool_id=pool_id, source_id=source_id, duration_seconds=seconds
        )


def table(found: Sequence[Pair]) -> list[str]:
    """One line per seed and rule, and the means."""
    rows = [["seed", "rule", "failed", "unused", "launches", "waste", "wait s"]]
    for pair in found:
        for rule, of in (("slipway", pair.ours), ("rfc191", pair.theirs)):
            counts = (of.failed, of.unused, of.launches)
            rows.append([str(pair.seed), rule, *map(str, counts), f"{of.share:.2%}", f"{of.waited_seconds:.0f}"])
    return markdown(rows)


def verdicts(found: Sequence[Pair]) -> list[Verdict]:
    """Verdicts of the claims, by the means of the seeds."""
    return [
        _verdict("wait", WAIT_MAX, [p.ours.waited_seconds for p in found], [p.theirs.waited_seconds for p in found], 1),
        _verdict("waste", WASTE_MAX, [p.ours.share for p in found], [p.theirs.share for p in found], 100),
    ]


def _verdict(name: str, most: float, ours: Sequence[float], theirs: Sequence[float], scale: float) -> Verdict:
    unit = "%" if scale == 100 else " s"
    mean, of_rule = fmean(ours), fmean(theirs)
    times = f"{mean / of_rule:.3f} ×" if of_rule else "no multiple"
    return Verdict(
        f"demo: {name} ≤ {most:g} × that of RFC 191's rule",
        mean <= most * of_rule,
        f"{times}, {mean * scale:.4g}{unit} against {of_rule * scale:.4g}{unit}",
    )


def _arguments(environment: Mapping[str, str]) -> list[Arguments]:
    """Arguments of the demos to replay, one per seed. Raises BadDemo."""
    if others := [name for name in OTHERS if environment.get(name)]:
        raise BadDemo(f"{', '.join(others)}: not with SCENARIO={NAME}, which takes SEEDS, SEED, {', '.join(GIVEN)}")
    seeds, first = environment.get("SEEDS") or "3", environment.get("SEED") or "1"
    if not seeds.isdigit() or not 1 <= int(seeds) <= SEEDS_MAX:
        raise BadDemo(f"SEEDS={seeds}: must be a whole number from 1 to {SEEDS_MAX}")
    if not first.isdigit():
        raise BadDemo(f"SEED={first}: must be a whole number, the first seed")
    given = {name: environment[name] for name in GIVEN if environment.get(name)}
    try:
        found = [parse_arguments(given | {"SEED": str(int(first) + number)}) for number in range(int(seeds))]
    except (ValueError, BadFault) as error:
        raise BadDemo(str(error)) from error
    if not found[0].duration_seconds:
        raise BadDemo("DURATION=0: a run without end has no comparison; expected a duration such as 45s, 3m or 1h")
    return found


def _declared(arguments: Arguments) -> Declaration:
    return scaled(load(DECLARATIONS[arguments.provider].read_text()), arguments.speed)
