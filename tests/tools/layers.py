"""Runs the layers of the test suite, all of them even if one fails, and prints how long each took.

`python tests/tools/layers.py [LAYER…]`; FAST=1 leaves out those that start whole systems. Two layers run at a time, of
which at most one is made of many processes: such a layer measures what it tests by the clock and shares the second core
only with a layer of one process. A layer's output is printed in one piece when it ends.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

PYTEST = (sys.executable, "-m", "pytest", "-q")
MAKE = ("make", "--no-print-directory")
NO_TESTS_COLLECTED = 5
AT_A_TIME = 2
LINES_REPEATED = 15


class Layer(NamedTuple):
    """One layer: its command, its budget in seconds on two processors beside another layer, and what it is made of.

    A layer over its budget is reported and does not fail: machines differ. `many`: it starts many processes.
    `fast`: it belongs to the inner loop.
    """

    command: Sequence[str]
    budget_seconds: float
    many: bool = False
    fast: bool = False


# In the order in which they are begun: the longest first, so that both lanes end together.
LAYERS = {
    "e2e": Layer((*PYTEST, "tests/e2e"), 240, many=True),
    "integration": Layer((*PYTEST, "tests/integration"), 400),
    "contract": Layer((*PYTEST, "tests/contract"), 310, fast=True),
    "readme": Layer((*MAKE, "readme"), 70, many=True),
    "unit": Layer((*PYTEST, "tests/unit"), 200, fast=True),
    "requirements": Layer((*PYTEST, "tests/requirements"), 70, many=True),
    "mutants": Layer((sys.executable, "-m", "tests.tools.mutants", "check", "--fast"), 250),
    "house": Layer((*MAKE, "compose-check"), 60, many=True),
    "check": Layer((*MAKE, "check"), 60, fast=True),
    "interleaving": Layer((*PYTEST, "tests/interleaving"), 90, fast=True),
    "histories": Layer((*MAKE, "histories", "N=5"), 40, many=True),
    "simulation": Layer((*PYTEST, "tests/simulation"), 40, fast=True),
    "terraform": Layer((*PYTEST, "tests/terraform"), 200, many=True),
}
ARGUMENTS_OF_OTHERS = ("SEED", "SEEDS", "N", "FULL", "MUTANT", "ONLY", "FAST", "LAYERS", "MAKEFLAGS", "MFLAGS")


class End(NamedTuple):
    """How a layer ended: "ok", "FAILED" or "NO TESTS"; its time in seconds; its output."""

    name: str
    verdict: str
    seconds: float
    output: bytes

    def line(self) -> str:
        budget = LAYERS[self.name].budget_seconds
        over = f" (budget {budget:g} s)" if self.seconds > budget else ""
        return f"  {self.name:<14}{self.seconds:6.1f} s  {self.verdict}{over}"

    def last_lines(self) -> list[str]:
        return self.output.decode(errors="replace").splitlines()[-LINES_REPEATED:]


def run(name: str) -> End:
    """Run one layer to its end."""
    layer, begin = LAYERS[name], time.monotonic()
    environment = {key: value for key, value in os.environ.items() if key not in ARGUMENTS_OF_OTHERS}
    with tempfile.TemporaryFile() as output:
        code = subprocess.run(layer.command, check=False, stdout=output, stderr=output, env=environment).returncode
        output.seek(0)
        text = output.read()
    empty = code == NO_TESTS_COLLECTED and "pytest" in layer.command
    verdict = "NO TESTS" if empty else "ok" if code == 0 else "FAILED"
    return End(name, verdict, time.monotonic() - begin, text)


def run_all(names: Sequence[str]) -> list[End]:
    """Run layers two at a time, at most one of many processes; print each when it ends."""
    waiting, ends = list(names), []
    with ThreadPoolExecutor(AT_A_TIME) as lanes:
        running: dict[Future[End], str] = {}
        while waiting or running:
            while len(running) < AT_A_TIME and (name := startable(waiting, list(running.values()))):
                waiting.remove(name)
                running[lanes.submit(run, name)] = name
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                del running[future]
                end = future.result()
                ends.append(end)
                print(f"── {end.name} ──\n{end.output.decode(errors='replace')}{end.line()}", flush=True)
    return ends


def startable(waiting: Sequence[str], running: Sequence[str]) -> str | None:
    """Next layer to begin beside those that run; None if none may."""
    many = any(LAYERS[name].many for name in running)
    wanted = [name for name in waiting if not (many and LAYERS[name].many)]
    # A layer of many processes comes first: while one runs, the other lane goes on with those of one process.
    return next((name for name in wanted if LAYERS[name].many), wanted[0] if wanted else None)


def main(names: Sequence[str], *, fast: bool) -> int:
    if unknown := set(names) - set(LAYERS):
        sys.exit(f"no such layer: {', '.join(sorted(unknown))}; there are {', '.join(LAYERS)}")
    begin = time.monotonic()
    wanted = [name for name, layer in LAYERS.items() if (name in names or not names) and (layer.fast or not fast)]
    if left_out := set(names) - set(wanted):
        sys.exit(f"no fast layer: {', '.join(sorted(left_out))}; run it without FAST=1")
    ends = run_all(wanted)
    failed = any(end.verdict != "ok" for end in ends)
    for end in ends:
        if end.verdict != "ok":  # otherwise the failure is hundreds of lines above the end
            print(f"── end of {end.name} ──", *end.last_lines(), sep="\n")
    print("── summary ──", *(end.line() for end in sorted(ends, key=lambda end: wanted.index(end.name))), sep="\n")
    print(f"  {'total':<14}{time.monotonic() - begin:6.1f} s  {'FAILED' if failed else 'ok'}")
    return 1 if failed else 0


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[2])
    sys.exit(main(sys.argv[1:], fast=os.environ.get("FAST", "0") not in ("", "0")))
