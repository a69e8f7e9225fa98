"""Conformance checks of the provider scheduler by number (`make terraform-checks`): CHECK=n for one.

Prints a line per check with its tests and seconds, then the number that passed. Exits with 1 if a check fails or is not
there, and with 2 for a CHECK that is no number of one. A check that lacks programs is skipped, and says so.
"""

import os
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

FOLDER: Final = Path(__file__).parent
CHECKS: Final = 34
APPLIES: Final = "16"  # in each region of check 29, half a minute of two processors; fewer in `make test`
NUMBER: Final = re.compile(r"test_(\d\d)_(\w+)\.py")


class Results:
    """Plugin of pytest that adds up outcomes and seconds by check."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Counter[str]] = defaultdict(Counter)
        self.seconds: dict[int, float] = {}
        self.reasons: dict[int, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        number = number_of(Path(report.nodeid.partition("::")[0]))
        if number is None:
            return
        self.seconds[number] = self.seconds.get(number, 0.0) + report.duration
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[number][report.outcome] += 1
        if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
            self.reasons[number] = report.longrepr[2]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and (number := number_of(Path(report.nodeid))) is not None:
            self.outcomes[number]["failed"] += 1


def number_of(file: Path) -> int | None:
    """Number of the check that a file of tests belongs to."""
    found = NUMBER.fullmatch(file.name)
    return int(found[1]) if found else None


def files(folder: Path = FOLDER) -> dict[int, list[Path]]:
    """Files of each check that is there."""
    found: dict[int, list[Path]] = defaultdict(list)
    for file in sorted(folder.glob("test_*.py")):
        if (number := number_of(file)) is not None:
            found[number].append(file)
    return dict(found)


def line(number: int, paths: Sequence[Path], results: Results) -> str:
    """Line of one check."""
    counts = results.outcomes[number]
    names = ", ".join(dict.fromkeys(NUMBER.sub(r"\2", path.name).replace("_", " ") for path in paths))
    tests = ", ".join(f"{counts[kind]} {kind}" for kind in ("passed", "failed", "skipped") if counts[kind])
    reason = f": {results.reasons[number]}" if counts["skipped"] else ""
    return f"{number:3}  {tests or 'no tests'}, {results.seconds.get(number, 0.0):.1f} s  {names}{reason}"


def verdict(results: Results, wanted: Sequence[int]) -> tuple[str, int]:
    """Last line and exit code."""
    failed = [n for n in wanted if results.outcomes[n]["failed"] or not results.outcomes[n]]
    skipped = [n for n in wanted if n not in failed and not results.outcomes[n]["passed"]]
    parts = [f"{len(wanted) - len(failed) - len(skipped)} passed"]
    parts += [f"{len(failed)} failed ({', '.join(map(str, failed))})"] if failed else []
    parts += [f"{len(skipped)} skipped ({', '.join(map(str, skipped))})"] if skipped else []
    return ", ".join(parts), bool(failed)


def main(check: str) -> int:
    known = files()
    if check and not (check.isdecimal() and int(check) in range(1, CHECKS + 1)):
        print(f"CHECK={check}: expected a number from 1 to {CHECKS}", file=sys.stderr)
        return 2
    wanted = [int(check)] if check else list(range(1, CHECKS + 1))
    os.environ.setdefault("N", APPLIES)
    results = Results()
    paths = [str(path) for number in wanted for path in known.get(number, ())]
    if paths:
        pytest.main(["-q", "--no-header", "--tb=short", "--show-capture=no", *paths], plugins=[results])
    for number in wanted:
        print(line(number, known.get(number, ()), results))
    text, code = verdict(results, wanted)
    print(text)
    return code


if __name__ == "__main__":
    sys.exit(main(os.environ.get("CHECK", "")))
