"""Run mutmut in a staged tree, without mutants of texts: `python -P mutmut_run.py RESULTS PROCESSES [MUTANT …]`, in the
folder of the stage.

RESULTS is a JSON file: a list of {name, status, diff} of every mutant; only survivors have a diff.
"""

import json
import os
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, cast

import pytest
from _pytest.config import _prepareconfig
from hypothesis import HealthCheck, Phase, settings
from mutmut.configuration import config
from mutmut.mutation import mutators
from mutmut.state import state
from mutmut.workers import isolation

# A sentence that reads otherwise breaks no decision. The list is changed in place, since others have it by name.
OF_TEXTS = {
    mutators.operator_string,
    mutators.operator_symmetric_string_methods_swap,
    mutators.operator_unsymmetrical_string_methods_swap,
}
operators = cast(list[Any], mutators.mutation_operators)
operators[:] = [each for each in operators if each[1] not in OF_TEXTS]

# A mutant is killed by any example, so that none is made smaller; and fewer are tried than by `make test`, since those
# that live meet them all: what is killed here is a lower bound.
settings.register_profile(
    "mutation",
    phases=(Phase.explicit, Phase.generate),
    max_examples=25,
    stateful_step_count=25,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class Collected:
    """The tests of the stage, collected once: to start pytest and to collect takes longer than most of them."""

    def __init__(self) -> None:
        stage, selection = Path.cwd(), config().pytest_add_cli_args_test_selection
        os.chdir("mutants")
        self._nowhere = Path(os.devnull).open("w")  # noqa: SIM115, as pytest prints there in each child
        with redirect_stdout(self._nowhere):
            options = _prepareconfig(["--rootdir=.", "--tb=native", "--capture=no", "-x", "-q", *selection])
            self._session = pytest.Session.from_config(options)
            options._do_configure()
            options.hook.pytest_sessionstart(session=self._session)
            options.hook.pytest_collection(session=self._session)
        os.chdir(stage)
        self._items = {item.nodeid: item for item in self._session.items}

    def run_all(self) -> int:
        """Run all tests in a child, in the order in which mutants meet them; 1 if one fails."""
        tests = sorted(self._items, key=lambda test: state().duration_by_test[test])
        return isolation.run_in_fork(self.run_tests, mutant_name=None, tests=tests)

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        """Run some tests in this process, which ends after that; 1 if one fails."""
        os.chdir("mutants")
        self._session.items = [self._items[test] for test in tests]
        try:
            self._session.config.hook.pytest_runtestloop(session=self._session)
        except BaseException:  # the first failure, or a mutant that ends the process
            return 1
        return int(self._session.testsfailed > 0)


class Runner(isolation.ForkRunner):
    """Runs each mutant in a fork of the process that has collected the tests."""

    def run_clean_tests(self, tests: Iterable[str]) -> int:
        self._collected = Collected()
        self.test_runner = cast(Any, self._collected)
        return self._collected.run_all()

    def run_forced_fail(self) -> int:
        return self._collected.run_all()


def results() -> list[dict[str, str]]:
    """Every mutant of the stage as it ended."""
    from mutmut.mutation.data import SourceFileMutationData
    from mutmut.mutation.diff_apply import get_diff_for_mutant
    from mutmut.stats import status_by_exit_code
    from mutmut.utils.file_utils import walk_mutatable_files

    ended = []
    for path in walk_mutatable_files():
        data = SourceFileMutationData(path=path)
        data.load()
        for name, code in data.exit_code_by_key.items():
            status = status_by_exit_code[code]
            diff = get_diff_for_mutant(name, path=path) if status == "survived" else ""
            ended.append({"name": name, "status": status, "diff": diff})
    return ended


if __name__ == "__main__":
    from mutmut.__main__ import cli

    output, processes, *mutants = sys.argv[1:]
    cast(Any, isolation).ForkRunner = Runner
    try:
        cli(["run", "--max-children", processes, *mutants], standalone_mode=False)
    finally:
        Path(output).write_text(json.dumps(results()))
