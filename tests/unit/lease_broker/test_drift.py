"""Counters of a lease pool that differ from its rows are repaired, and the history says what was wrong."""

import msgspec

from slipway_lease_broker.domain.drift import Counted, repaired
from slipway_lease_broker.domain.ledger import Entry
from tests.support.lease_rows import NOW, POOL

ROWS = Counted(held={"install": 2}, held_units=2, waiting_units=3, waiting_requests=1, waiting_by={"t": 1})
EXACT = msgspec.structs.replace(POOL, **msgspec.structs.asdict(ROWS))


def test_exact_counters_are_left() -> None:
    assert repaired(EXACT, ROWS, NOW) == (EXACT, None)


def test_wrong_counters_are_those_of_the_rows_afterwards() -> None:
    wrong = msgspec.structs.replace(EXACT, held_units=5, waiting_requests=0)
    assert repaired(wrong, ROWS, NOW) == (
        EXACT,
        Entry(
            lease_pool_id="p",
            at=NOW,
            kind="repaired",
            reason="held_units was 5, rows give 2; waiting_requests was 0, rows give 1",
        ),
    )


def test_each_counter_is_compared() -> None:
    for name, wrong in (
        ("held", {}),
        ("held_units", 1),
        ("waiting_units", 2),
        ("waiting_requests", 2),
        ("waiting_by", {}),
    ):
        pool, entry = repaired(msgspec.structs.replace(EXACT, **{name: wrong}), ROWS, NOW)
        assert pool == EXACT
        assert entry is not None
        assert entry.reason.startswith(f"{name} was ")
