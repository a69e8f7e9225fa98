"""Some faults of `make terraform-faults`: one of each kind of outcome."""

import pytest

from tests.support.terraform import installed
from tests.terraform.faults import CASES, Case, play

QUICK = (
    "leaks memory",
    "hangs after a create",
    "crashes in configure",
    "crashes after a create",
    "error QuotaReached",
    "writes secrets to stderr",
)


@pytest.mark.parametrize("case", [case for case in CASES if case.name in QUICK], ids=lambda case: case.name)
async def test_fault(case: Case) -> None:
    installed()
    assert (await play(case)).problems(case) == []
