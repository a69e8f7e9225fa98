"""Rows of mutants.toml match the code, a broken copy is what its commands import, and only an assertion is proof."""

import asyncio
import os
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.tools.mutants import LISTED, ROOT, Mutant, chosen, copied, environment, rows_of, survives

ROWS = rows_of()
COUNTED = ("Invariants", "Rules", "Decision tables")
RED = "FAILED tests/x.py::test_a - assert 1 == 2\n1 failed"


@pytest.mark.parametrize("mutant", ROWS.values(), ids=list(ROWS))
def test_every_row_is_fresh(mutant: Mutant) -> None:
    """Its line occurs once, breaking it changes it, and its test exists: a function, or a case of a state machine."""
    source = (ROOT / mutant.file).read_text()
    assert mutant.broken(source) != source
    file, *names = mutant.test.split("::")
    tests = (ROOT / file).read_text()
    for name in names:
        assert f"def {name.partition('[')[0]}(" in tests or f"\n{name} = " in tests


def test_every_mutant_has_a_claim_of_its_own() -> None:
    assert Counter(mutant.claim for mutant in ROWS.values()).most_common(1)[0][1] == 1
    assert [file for file in ROOT.glob("tests/**/mutants.toml") if file != ROOT / LISTED] == []


def listed() -> dict[str, dict[str, list[str]]]:
    """Names of mutants by the number of an invariant or rule, or the first cell of its line, of each section of
    docs/invariants.md."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in (ROOT / "docs" / "invariants.md").read_text().splitlines():
        if line.startswith("## "):
            lines = sections[line[3:]] = {}
        elif line.startswith("| ") and not line.endswith("| mutants |"):
            first, *_, last = line.strip("| ").split(" | ")
            assert first not in lines
            lines[first] = re.findall(r"`([^`]+)`", last)
    return sections


def test_every_invariant_and_rule_has_a_mutant_and_every_mutant_is_one_of_them() -> None:
    """Few of them: a row that proves no invariant costs an edit at each change of its line."""
    sections = listed()
    names = [name for lines in sections.values() for mutants in lines.values() for name in mutants]
    assert [line for lines in sections.values() for line, mutants in lines.items() if not mutants] == []
    assert [*sections["Invariants"]] == [str(number) for number in range(1, 12)]
    assert (sorted(names), Counter(names).most_common(1)[0][1]) == (sorted(ROWS), 1)
    counted = sum(map(len, (mutants for name in COUNTED for mutants in sections[name].values())))
    assert counted <= 150


def test_commands_name_mutants_that_exist() -> None:
    texts = [file.read_text() for file in (ROOT / "Makefile", *sorted(ROOT.glob("docs/guides/*.md")))]
    lists = [found for text in texts for found in re.findall(r"MUTANT=((?:`?[a-z][a-z0-9-]*`?(?:, | or )?)+)", text)]
    named = {name for found in lists for name in re.findall(r"[a-z][a-z0-9-]*", found)} - {"or", "name"}
    assert {"commands-unlocked", "margin", "usage-not-read-again"} <= named <= set(ROWS)


#           exit code, output                                              proves the claim
ENDS = [
    (1, RED, True),
    (1, "FAILED tests/x.py::test_a[a - b] - AssertionError: not within 20 s", True),
    (1, "FAILED tests/x.py::test_a - Failed: DID NOT RAISE <class 'Fenced'>", True),
    (0, "1 passed", False),
    (None, RED, False),
    (1, "FAILED tests/x.py::test_a - NameError: name 'x' is not defined", False),
    (1, "ERROR tests/x.py::test_a - assert 1 == 2", False),  # a fixture, not the claim
    (2, f"{RED}\nInterrupted", False),
    (4, "ERROR: not found: tests/x.py::test_a", False),
    (-9, "", False),
]


@pytest.mark.parametrize(("code", "output", "proves"), ENDS)
def test_only_a_failed_assertion_proves(code: int | None, output: str, proves: bool) -> None:
    """A crash, a time-out or an import error would let a claim look guarded that is not."""
    assert (survives(code, output) == "") is proves


def test_a_test_that_is_skipped_is_said_to_be() -> None:
    assert survives(0, "s  [100%]\n1 skipped in 0.31s\n") == "its test was skipped"
    assert survives(0, "s.  [100%]\n1 passed, 1 skipped in 0.31s\n") == "its test stays green"


async def test_children_of_a_broken_copy_import_the_copy(tmp_path: Path) -> None:
    """Also those that a child starts: the copy comes before the installed packages, which are the unbroken tree."""
    packages = [f"slipway_{name}" for name in ("common", "client", "local", "provisioner", "simulator")]
    packages += ["slipway_weight_calculator", "slipway_lease_broker", "tests"]
    say = f"import {', '.join(packages)}\nprint(*[m.__path__[0] for m in ({', '.join(packages)})], sep='\\n')"
    again = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {say!r}]))"
    mutant = next(iter(ROWS.values()))
    async with copied(mutant) as copy:
        assert (copy / mutant.file).read_text() == mutant.broken((ROOT / mutant.file).read_text())
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", again, env=environment(copy, os.environ), cwd=copy, stdout=asyncio.subprocess.PIPE
        )
        printed, _ = await child.communicate()
        assert child.returncode == 0
        assert [line for line in printed.decode().splitlines() if not Path(line).is_relative_to(copy)] == []
        assert len(printed.splitlines()) == len(packages)
    assert not copy.exists()


def test_names_and_groups_choose() -> None:
    """Unknown ones are refused with similar ones, and unknown groups with what there is."""
    assert [mutant.name for mutant in chosen(ROWS, ["no-lookup"], fast=False)] == ["no-lookup"]
    assert {mutant.group for mutant in chosen(ROWS, ["ONLY=leases"], fast=False)} == {"leases"}
    assert all(mutant.fast for mutant in chosen(ROWS, [], fast=True))
    with pytest.raises(LookupError, match=r"no mutant no-lookups; did you mean .*no-lookup"):
        chosen(ROWS, ["no-lookups"], fast=False)
    with pytest.raises(LookupError, match=r"no group nothing; there is .*consume"):
        chosen(ROWS, ["ONLY=nothing"], fast=False)
