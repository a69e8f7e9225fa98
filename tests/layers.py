"""Run the layers of the test suite one after another, all of them even if one fails, and say how long each took."""

import os
import subprocess
import sys
import time
from pathlib import Path

PYTEST = [sys.executable, "-m", "pytest", "-q"]
NO_TESTS_COLLECTED = 5

# Budgets in seconds; going over one is said, not punished: machines differ.
LAYERS = {
    "check": (["make", "--no-print-directory", "check"], 60),
    "unit": ([*PYTEST, "tests/unit"], 30),
    "contract": ([*PYTEST, "tests/contract"], 40),
    "interleaving": ([*PYTEST, "tests/interleaving"], 30),
    "simulation": ([*PYTEST, "tests/simulation"], 50),
    "integration": ([*PYTEST, "tests/integration"], 90),
    "e2e": ([*PYTEST, "tests/e2e"], 120),
    "house": (["make", "--no-print-directory", "compose-check"], 60),
    "readme": (["make", "--no-print-directory", "readme"], 60),
    "mutants": ([sys.executable, "-m", "tests.mutants", "check", "--fast"], 40),
}


def run(name: str) -> tuple[str, str]:
    """Run one layer; its verdict and a line for the summary."""
    command, budget_seconds = LAYERS[name]
    print(f"── {name} ──", flush=True)
    begin = time.monotonic()
    code = subprocess.run(command, check=False).returncode
    seconds = time.monotonic() - begin
    verdict = "NO TESTS" if code == NO_TESTS_COLLECTED and "pytest" in command else "ok" if code == 0 else "FAILED"
    over = f" (budget {budget_seconds} s)" if seconds > budget_seconds else ""
    return verdict, f"  {name:<14}{seconds:6.1f} s  {verdict}{over}"


def main(names: list[str]) -> int:
    if unknown := set(names) - set(LAYERS):
        sys.exit(f"no such layer: {', '.join(sorted(unknown))}; there are {', '.join(LAYERS)}")
    begin = time.monotonic()
    outcomes = [run(name) for name in names or LAYERS]
    failed = [verdict for verdict, _ in outcomes if verdict != "ok"]
    print("── summary ──", *(line for _, line in outcomes), sep="\n")
    print(f"  {'total':<14}{time.monotonic() - begin:6.1f} s  {'FAILED' if failed else 'ok'}")
    return 1 if failed else 0


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[1])
    sys.exit(main(sys.argv[1:]))
