"""Verdict on the growth of tables: by the ratio of their rows, or by the difference of small ones; on tables that stay
empty; and on the longest lock."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from bench.growth import coverage
from bench.growth.__main__ import EARLY, LATE, MONTHS, Found, chunks, claims, grows
from bench.growth.locks import ROWS, Locks, Wait, Watched
from slipway_common.database.retention import Bounded, Rule

QUIET = Watched(tries=1, waits=[])
WAITED = Watched(tries=2, waits=[Wait(1.0, 0.0)])
FILLED: Mapping[str, int] = {
    name: 0 if name in coverage.REASONS or isinstance(row, Bounded) else 7 for name, row in coverage.rules().items()
}
WRITTEN = dict.fromkeys(FILLED, 9)


def locks(**changes: Any) -> Locks:
    quiet = Locks(rows=ROWS, seconds=1.0, pool=QUIET, row=WAITED, commit_ms=1.0)
    return msgspec.structs.replace(quiet, **changes)


def false(found: Found, measured: Locks) -> list[str]:
    return [claim for claim, holds in claims(found, measured).items() if not holds]


@pytest.mark.parametrize(
    ("early", "late", "is_growing"),
    [(1000, 1050, False), (1000, 1051, True), (0, 50, False), (0, 51, True), (100, 150, False), (1000, 10, False)],
)
def test_a_table_grows_by_its_ratio_and_its_difference(early: int, late: int, *, is_growing: bool) -> None:
    assert grows(early, late) is is_growing


def test_claims_name_what_grows() -> None:
    early = {**FILLED, "a.bounded": 10, "a.growing": 10}
    (claim,) = false(Found({EARLY: early, LATE: {**early, "a.growing": 100}}, WRITTEN), locks())
    assert "a.growing" in claim
    assert "a.bounded" not in claim


def test_claims_name_tables_that_stay_empty() -> None:
    """A table that keeps its rows for days is empty in month 4, into another one nothing was ever written, and a third
    one has rows in spite of its reason."""
    kept, at_once, reasoned = "lease_broker.gangs", "provisioner.missing_instance", next(iter(coverage.REASONS))
    early = {**FILLED, kept: 0, at_once: 0, reasoned: 1}
    (claim,) = false(Found({EARLY: early, LATE: early}, {**WRITTEN, at_once: 0}), locks())
    assert claim.endswith(f"(not {kept}, {at_once}, {reasoned})")


@pytest.mark.parametrize(
    ("name", "written", "reason"),
    [
        ("provisioner.missing_instance", 1, "missing instances, deleted after a pass"),
        ("provisioner.missing_instance", 0, ""),
        ("lease_broker.gangs", 1, ""),
        ("lease_broker.reception", 0, "one row per partition"),
        ("provisioner.unreachable_machine", 1, "the account of the day"),
        ("provisioner.unreachable_machine", 0, ""),
    ],
)
def test_reason_of_an_empty_table(name: str, written: int, reason: str) -> None:
    found = coverage.empty({**WRITTEN, name: written}, {**FILLED, name: 0})[name]
    assert found.startswith(reason)
    assert bool(found) is bool(reason)


def test_claims_are_false_for_long_locks_and_a_backlog() -> None:
    """And for rows that nobody waited for, which measured nothing."""
    found = Found({EARLY: FILLED, LATE: FILLED}, WRITTEN)
    assert not false(found, locks(row=Watched(2, [Wait(250.0, 150.0), Wait(99.0, 0.0)])))
    assert len(false(found, locks(row=Watched(1, [Wait(250.0, 149.0)])))) == 1
    assert len(false(found, locks(pool=Watched(1, [Wait(1.0, 1.0)])))) == 1
    assert len(false(found, locks(rows=ROWS - 1))) == 1
    assert len(false(found, locks(row=QUIET))) == 1


def test_the_first_month_is_none_in_which_rows_are_kept_by_their_rule_and_still_grow() -> None:
    """Longer rules need a reason, since their rows grow beyond it."""
    rules = {name: rule.days for name, rule in coverage.rules().items() if isinstance(rule, Rule) and rule.days}
    assert {name for name, days in rules.items() if days > MONTHS[EARLY]} <= coverage.REASONS.keys()


def test_chunks_are_short_at_the_end_of_both_months() -> None:
    """And they cover each day once."""
    found = [*chunks(0, MONTHS[EARLY]), *chunks(MONTHS[EARLY], MONTHS[LATE])]
    assert [begin for begin, _ in found] == [0, *(end for _, end in found[:-1])]
    assert found[-1][1] == MONTHS[LATE]
    assert [end - begin for begin, end in found if end in MONTHS.values()] == [15, 15]
