"""Verdict on the growth of tables: by the ratio of their rows, or by the difference of small ones."""

import pytest

from bench.growth.__main__ import claims, grows
from bench.growth.locks import ROWS, Locks


@pytest.mark.parametrize(
    ("early", "late", "is_growing"),
    [(1000, 1050, False), (1000, 1051, True), (0, 50, False), (0, 51, True), (100, 150, False), (1000, 10, False)],
)
def test_a_table_grows_by_its_ratio_and_its_difference(early: int, late: int, *, is_growing: bool) -> None:
    assert grows(early, late) is is_growing


def test_claims_name_what_grows() -> None:
    """And they are false for a lock that is too long, or a backlog that is left."""
    measured = Locks(rows=ROWS - 1, seconds=1, tries=1, waited=1, pool=0, row=100.1, commit=1)
    found = {2: {"a.bounded": 10, "a.growing": 10}, 12: {"a.bounded": 10, "a.growing": 100}}
    false = [claim for claim, holds in claims(found, measured).items() if not holds]
    assert len(false) == 3
    assert "a.growing" in false[0]
    assert "a.bounded" not in false[0]
    assert not [claim for claim, holds in claims({2: {}, 12: {}}, measured).items() if holds and "ms" in claim]
