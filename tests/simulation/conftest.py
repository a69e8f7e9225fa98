"""Summary of a simulation run: its seeds."""

import re

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seeds of all histories, and those that failed."""
    seeds: dict[int, bool] = {}  # seed → True if its history failed
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, []):
            if match := re.search(r"test_history\[(\d+)\]$", report.nodeid):
                seeds[int(match[1])] = seeds.get(int(match[1]), False) or outcome != "passed"
    if seeds:
        failed = " ".join(str(seed) for seed, bad in sorted(seeds.items()) if bad) or "none"
        count = f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''}"
        terminalreporter.write_line(f"{count}: {' '.join(map(str, sorted(seeds)))}; failed: {failed}")
