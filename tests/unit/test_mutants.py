"""Rows of mutants.toml match the code, a broken copy is what its commands import, and only an assertion is proof."""

import asyncio
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.tools.mutants import ROOT, Mutant, chosen, copied, environment, rows_of, survives

ROWS = rows_of()
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


def test_every_mutant_has_a_name_and_a_claim_of_its_own() -> None:
    text = "".join(file.read_text() for file in ROOT.glob("tests/*/mutants.toml"))
    assert len(ROWS) == text.count("[[mutant]]") >= 280
    assert Counter(mutant.claim for mutant in ROWS.values()).most_common(1)[0][1] == 1


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
    with pytest.raises(LookupError, match=r"no group nothing; there is .*common"):
        chosen(ROWS, ["ONLY=nothing"], fast=False)
