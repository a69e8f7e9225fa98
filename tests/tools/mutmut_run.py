"""Run mutmut in a staged tree, without mutants of texts: `python -P mutmut_run.py RESULTS PROCESSES [MUTANT …]`, in the
folder of the stage.

RESULTS is a JSON file: a list of {name, status, diff} of every mutant; only survivors have a diff. Once mutants have
run for `SECONDS`, no further one is tried. Tests that take longer than `QUICK` seconds are left out.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from functools import wraps
from math import ceil
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from _pytest.config import _prepareconfig
from hypothesis import HealthCheck, Phase, settings
from mutmut.configuration import config
from mutmut.mutation import mutators, trampoline
from mutmut.state import state
from mutmut.utils.format_utils import mangled_name_from_mutant_name
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


class Switch:
    """A function that has mutants. What its calls run is set once a process: mutmut asks the environment in each call,
    which takes longer than most functions."""

    every: ClassVar[list["Switch"]] = []

    def __init__(self, function: Callable[..., Any], mutants: Mapping[str, Callable[..., Any]]) -> None:
        self.original, self.mutants = function, mutants
        self.runs = self._recording
        self.every.append(self)

    def turn(self, mutant_name: str) -> None:
        """Run a mutant from now on, if it is of this function, else the original."""
        module, _, name = mutant_name.rpartition(".")
        mutant = self.mutants.get(name) if module == self.original.__module__ else None
        self.runs = self.original if mutant is None else getattr(mutant, "__func__", mutant)

    def _recording(self, *args: Any, **kwargs: Any) -> Any:
        name = mangled_name_from_mutant_name(self.mutants["_mutmut_orig"].__name__)
        state()._stats.add(f"{self.original.__module__}.{name}")
        return self.original(*args, **kwargs)


def switched(mutants: Mapping[str, Callable[..., Any]], is_classmethod: bool = False) -> Any:
    """What mutmut decorates a mutated function with, in place of its own."""

    def decorated(function: Callable[..., Any]) -> Any:
        switch = Switch(function, mutants)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return switch.runs(*args, **kwargs)

        return call

    return decorated


def forget_results() -> None:
    """Empty the caches of functions of the mutated package: the runs before have filled them, so that no mutant would
    be called again. Other packages keep theirs, of which one holds the metrics of the process."""
    package = str(config().source_paths[0])
    for name, module in [*sys.modules.items()]:
        for each in vars(module).values() if name.partition(".")[0] == package else ():
            if hasattr(each, "cache_clear"):
                each.cache_clear()


def quick(tests: Iterable[str]) -> list[str]:
    """The tests that take no longer than `QUICK` seconds."""
    most = float(os.environ.get("QUICK", "inf"))
    return [test for test in tests if state().duration_by_test[test] <= most]


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

    def run_tests(self, *, mutant_name: str, tests: Iterable[str] = ()) -> int:
        """Run a mutant in this process, which ends after that, by some tests or by all; 1 if one fails."""
        for switch in Switch.every:
            switch.turn(mutant_name)
        forget_results()
        os.chdir("mutants")
        fastest = sorted(quick(tests or self._items), key=state().duration_by_test.__getitem__)
        self._session.items = [self._items[test] for test in fastest]
        try:
            self._session.config.hook.pytest_runtestloop(session=self._session)
        except BaseException:  # the first failure, or a mutant that ends the process
            return 1
        return int(self._session.testsfailed > 0)


class Runner(isolation.ForkRunner):
    """Runs each mutant in a fork of the process that has collected the tests."""

    def run_clean_tests(self, tests: Iterable[str]) -> int:
        """Run all tests as those of a mutant are run, without one."""
        collected = Collected()
        self.test_runner = cast(Any, collected)
        return isolation.run_in_fork(collected.run_tests, mutant_name="")

    def startup(self) -> None:
        self._until = time.monotonic() + float(os.environ.get("SECONDS", "inf"))
        super().startup()

    def submit(self, mutant_name: str, tests: list[str], cpu_time_limit: int, estimated_time: float) -> None:
        """Run a mutant for as much processor time. Where others use the processors too, it waits for them most of the
        time, so that the limit of that is for one that waits forever."""
        if time.monotonic() > self._until:
            raise KeyboardInterrupt  # mutmut stops, and keeps what has ended
        seconds = sum(state().duration_by_test[test] for test in quick(tests))
        limit = ceil(cpu_time_limit * (seconds + 1) / (estimated_time + 1))
        super().submit(mutant_name, tests, limit, 100 + 50 * seconds)

    def run_forced_fail(self) -> int:
        """A mutant that its switch does not know would live, like one that no test notices."""
        known = {f"{switch.original.__module__}.{name}" for switch in Switch.every for name in switch.mutants}
        return int(all(f"{each}__mutmut_1" in known for each in state().tests_by_mangled_function_name))


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
    cast(Any, trampoline).wrap_in_trampoline = switched
    try:
        cli(["run", "--max-children", processes, *mutants], standalone_mode=False)
    finally:
        Path(output).write_text(json.dumps(results()))
