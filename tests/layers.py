"""Run the layers of the test suite, all of them even if one fails, and say how long each took.

One after another, but for those that need no server: they take one processor, and run beside those that mostly wait.
"""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PYTEST = [sys.executable, "-m", "pytest", "-q"]
NO_TESTS_COLLECTED = 5

# Budgets in seconds on two processors; going over one is said, not punished: machines differ.
LAYERS = {
    "check": (["make", "--no-print-directory", "check"], 60),
    "unit": ([*PYTEST, "tests/unit"], 120),
    "contract": ([*PYTEST, "tests/contract"], 120),
    "interleaving": ([*PYTEST, "tests/interleaving"], 60),
    "simulation": ([*PYTEST, "tests/simulation"], 50),
    "integration": ([*PYTEST, "tests/integration"], 180),
    "e2e": ([*PYTEST, "tests/e2e"], 150),
    "house": (["make", "--no-print-directory", "compose-check"], 60),
    "readme": (["make", "--no-print-directory", "readme"], 60),
    "mutants": ([sys.executable, "-m", "tests.mutants", "check", "--fast"], 120),
}


PURE = ("check", "unit", "simulation")
WAITING = ("contract", "interleaving")


def run(name: str, *, quiet: bool = False) -> tuple[str, str]:
    """Run one layer; its verdict and a line for the summary. A quiet one's words come at its end, in one piece."""
    command, budget_seconds = LAYERS[name]
    if not quiet:
        print(f"── {name} ──", flush=True)
    begin = time.monotonic()
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE if quiet else None, stderr=subprocess.STDOUT if quiet else None
    )
    seconds = time.monotonic() - begin
    if quiet:
        print(f"── {name} ──\n{done.stdout.decode(errors='replace')}", end="", flush=True)
    code = done.returncode
    verdict = "NO TESTS" if code == NO_TESTS_COLLECTED and "pytest" in command else "ok" if code == 0 else "FAILED"
    over = f" (budget {budget_seconds} s)" if seconds > budget_seconds else ""
    return verdict, f"  {name:<14}{seconds:6.1f} s  {verdict}{over}"


def main(names: list[str]) -> int:
    if unknown := set(names) - set(LAYERS):
        sys.exit(f"no such layer: {', '.join(sorted(unknown))}; there are {', '.join(LAYERS)}")
    begin = time.monotonic()
    wanted = [name for name in LAYERS if name in names or not names]
    outcomes: dict[str, tuple[str, str]] = {}
    with ThreadPoolExecutor(max_workers=1) as aside:
        beside = (
            {}
            if set(wanted).isdisjoint(WAITING)
            else {name: aside.submit(run, name, quiet=True) for name in wanted if name in PURE}
        )
        outcomes |= {name: run(name) for name in wanted if name in WAITING}
        outcomes |= {name: layer.result() for name, layer in beside.items()}
    outcomes |= {name: run(name) for name in wanted if name not in outcomes}
    failed = [name for name, (verdict, _) in outcomes.items() if verdict != "ok"]
    print("── summary ──", *(outcomes[name][1] for name in wanted), sep="\n")
    print(f"  {'total':<14}{time.monotonic() - begin:6.1f} s  {'FAILED' if failed else 'ok'}")
    return 1 if failed else 0


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[1])
    sys.exit(main(sys.argv[1:]))
