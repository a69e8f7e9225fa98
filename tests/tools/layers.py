"""Runs the layers of the test suite, all of them even if one fails, and prints how long each took.

`python -m tests.tools.layers [LAYER…]`: the core layers; ALL=1 the long ones too; SINCE=commit the core layers and the
long ones that the changes since a commit ask for; FAST=1 those of the inner loop. Two layers run at a time, of which at
most one is made of many processes: such a layer measures what it tests by the clock, and shares the second core with a
layer of one process only. A layer's output is printed in one piece when it ends.

A core layer that takes longer than a quarter above its budget fails, unless other programs used the processors, or the
machine was slower during that layer than where the budgets were measured: there is no factor by which starts of
processes, commits and pure Python slow down alike.
"""

import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

from tests.layers import CORE, LONG, PYTEST, Layer, asked_for

NO_TESTS_COLLECTED: Final = 5
AT_A_TIME: Final = 2
LINES_REPEATED: Final = 15
OVER: Final = 1.25
"""Part of its budget above which a layer fails."""
QUIET: Final = 0.1
"""Part of the processors that other programs may use while layers are judged by their budgets."""
SLOWER: Final = 1.1
"""Mean time of the yardstick during a layer, as a multiple of its time where the budgets were measured, above which the
layer is not judged."""
YARDSTICK_NUMBERS: Final = 500_000
YARDSTICK_SECONDS: Final = 0.03
"""Processor time of the yardstick where the budgets were measured."""
YARDSTICK_EVERY_SECONDS: Final = 2.0
LAYERS: Final = CORE | LONG
ARGUMENTS_OF_OTHERS: Final = (
    "SEED",
    "SEEDS",
    "N",
    "FULL",
    "MUTANT",
    "ONLY",
    "FAST",
    "ALL",
    "SINCE",
    "LAYERS",
    "MAKEFLAGS",
    "MFLAGS",
)


class End(NamedTuple):
    """How a layer ended: "ok", "FAILED", "NO TESTS" or "SLOW"; its time in seconds; its output; how long a yardstick
    took meanwhile, as a multiple of its time where the budgets were measured."""

    name: str
    verdict: str
    seconds: float
    output: bytes
    slowness: float = 1.0

    def line(self) -> str:
        budget = LAYERS[self.name].budget_seconds
        slower = f", on a machine {self.slowness:.2f} × as slow" if self.slowness > SLOWER else ""
        over = f" (budget {budget:g} s{slower})" if self.seconds > budget else ""
        return f"  {self.name:<20}{self.seconds:6.1f} s  {self.verdict}{over}"

    def last_lines(self) -> list[str]:
        return self.output.decode(errors="replace").splitlines()[-LINES_REPEATED:]


class Yardstick:
    """Processor time of a fixed piece of work, again and again while layers run: the host of a virtual machine may slow
    it down by half for seconds or minutes."""

    def __init__(self) -> None:
        self._taken: list[tuple[float, float]] = []
        threading.Thread(target=self._measure, daemon=True).start()

    def _measure(self) -> None:
        while True:
            began = time.thread_time()
            sum(n * n for n in range(YARDSTICK_NUMBERS))
            self._taken.append((time.monotonic(), time.thread_time() - began))
            time.sleep(YARDSTICK_EVERY_SECONDS)

    def slowness_since(self, begin: float) -> float:
        """Mean since a time of `time.monotonic`, as a multiple of what it is where the budgets were measured."""
        return fmean([taken for at, taken in self._taken if at >= begin] or [YARDSTICK_SECONDS]) / YARDSTICK_SECONDS


def run(name: str, yardstick: Yardstick) -> End:
    """Run one layer to its end."""
    layer, begin = LAYERS[name], time.monotonic()
    environment = {key: value for key, value in os.environ.items() if key not in ARGUMENTS_OF_OTHERS}
    with tempfile.TemporaryFile() as output:
        code = subprocess.run(layer.command, check=False, stdout=output, stderr=output, env=environment).returncode
        output.seek(0)
        text = output.read()
    empty = code == NO_TESTS_COLLECTED and layer.command[: len(PYTEST)] == PYTEST
    verdict = "NO TESTS" if empty else "ok" if code == 0 else "FAILED"
    return End(name, verdict, time.monotonic() - begin, text, yardstick.slowness_since(begin))


def run_all(names: Sequence[str]) -> list[End]:
    """Run layers two at a time, as `startable` says; print each when it ends."""
    waiting, ends, yardstick = list(names), [], Yardstick()
    with ThreadPoolExecutor(AT_A_TIME) as lanes:
        running: dict[Future[End], str] = {}
        while waiting or running:
            while len(running) < AT_A_TIME and (name := startable(waiting, list(running.values()))):
                waiting.remove(name)
                running[lanes.submit(run, name, yardstick)] = name
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                del running[future]
                end = future.result()
                ends.append(end)
                print(f"── {end.name} ──\n{end.output.decode(errors='replace')}{end.line()}", flush=True)
    return ends


def startable(waiting: Sequence[str], running: Sequence[str], layers: Mapping[str, Layer] = LAYERS) -> str | None:
    """Next layer to begin beside those that run; None if none may."""
    if any(layers[name].alone for name in running):
        return None
    many = any(layers[name].many for name in running)
    wanted = [name for name in waiting if not (many and layers[name].many) and not (running and layers[name].alone)]
    # A layer of many processes comes first: while one runs, the other lane goes on with those of one process.
    return next((name for name in wanted if layers[name].many), wanted[0] if wanted else None)


def judged(ends: Sequence[End], foreign: float) -> list[End]:
    """The ends, with core layers far over their budgets as SLOW; none where others used the processors, nor one during
    which the machine was slower."""
    if foreign > QUIET:
        return list(ends)
    return [
        end._replace(verdict="SLOW")
        if end.verdict == "ok"
        and end.name in CORE
        and end.slowness <= SLOWER
        and end.seconds > OVER * CORE[end.name].budget_seconds
        else end
        for end in ends
    ]


class Processors:
    """Time of the processors that others use, from now on."""

    def __init__(self) -> None:
        self._began, self._busy, self._ours = time.monotonic(), *_used()

    def foreign(self) -> float:
        """Part of the processors that was used by others than our descendants, or taken by the host. Descendants that
        were not waited for count as others."""
        busy, ours = _used()
        seconds = (time.monotonic() - self._began) * (os.cpu_count() or 1)
        return max(0.0, (busy - self._busy) - (ours - self._ours)) / seconds


def _used() -> tuple[float, float]:
    """Seconds that the processors were busy, and those of our descendants."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (sum(fields) - idle) / os.sysconf("SC_CLK_TCK"), children.ru_utime + children.ru_stime


def chosen(names: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Layers to run. Exits for names that are none."""
    if unknown := set(names) - set(LAYERS):
        sys.exit(f"no such layer: {', '.join(sorted(unknown))}; there are {', '.join(LAYERS)}")
    if _is_set(environment, "FAST"):
        if left_out := {name for name in names if not LAYERS[name].fast}:
            sys.exit(f"no fast layer: {', '.join(sorted(left_out))}; run it without FAST=1")
        return [name for name, layer in CORE.items() if layer.fast and (name in names or not names)]
    if names:
        return [name for name in LAYERS if name in names]
    if since := environment.get("SINCE"):
        return asked_for(_changed_since(since))
    return list(LAYERS if _is_set(environment, "ALL") else CORE)


def _is_set(environment: Mapping[str, str], name: str) -> bool:
    return environment.get(name, "0") not in ("", "0")


def _changed_since(commit: str) -> list[str]:
    """Files that differ from a commit, and new ones."""
    commands = (("git", "diff", "--name-only", commit), ("git", "ls-files", "--others", "--exclude-standard"))
    found = [subprocess.run(command, check=False, capture_output=True, text=True) for command in commands]
    if problem := next((one.stderr for one in found if one.returncode), ""):
        sys.exit(f"SINCE={commit}: {problem.strip()}")
    return [path for one in found for path in one.stdout.splitlines()]


def main(names: Sequence[str]) -> int:
    begin, wanted = time.monotonic(), chosen(names, os.environ)
    processors = Processors()
    ends = run_all(wanted)
    foreign = processors.foreign()
    ends = judged(ends, foreign)
    failed = any(end.verdict != "ok" for end in ends)
    for end in ends:
        if end.verdict not in {"ok", "SLOW"}:  # otherwise the failure is hundreds of lines above the end
            print(f"── end of {end.name} ──", *end.last_lines(), sep="\n")
    print("── summary ──", *(end.line() for end in sorted(ends, key=lambda end: wanted.index(end.name))), sep="\n")
    if foreign > QUIET:
        print(f"  others used {foreign:.0%} of the processors: no layer is judged by its budget")
    print(f"  {'total':<20}{time.monotonic() - begin:6.1f} s  {'FAILED' if failed else 'ok'}")
    return 1 if failed else 0


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[2])
    sys.exit(main(sys.argv[1:]))
