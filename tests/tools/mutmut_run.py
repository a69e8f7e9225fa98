"""Run mutmut in a staged tree, without mutants of texts: `python -P mutmut_run.py RESULTS`, in the folder of the stage.

RESULTS is a JSON file: a list of {name, status, diff} of every mutant; only survivors have a diff.
"""

import json
import sys
from pathlib import Path
from typing import Any, cast

from hypothesis import HealthCheck, Phase, settings
from mutmut.mutation import mutators

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
    from mutmut.workers.isolation import ForkRunner

    # They have just passed, without mutants, for the statistics; if they had not, that would have ended the run.
    ForkRunner.run_clean_tests = lambda self, tests: 0  # type: ignore[method-assign]
    try:
        cli(["run", "--max-children", "1"], standalone_mode=False)
    finally:
        Path(sys.argv[1]).write_text(json.dumps(results()))
