"""Lapsed locks of workspaces, as one replica sees them."""

from datetime import UTC, datetime, timedelta

from slipway_provisioner.domain.workspace_locks import GAP_SECONDS_MAX, LOST_SECONDS, LapsedLocks, Lock

AT = datetime(2026, 1, 1, tzinfo=UTC)
LOCK = Lock("w", 1, AT)


def test_a_lock_that_is_not_renewed_is_lost() -> None:
    locks = LapsedLocks()
    assert locks.seen([], at=900.0) == []
    for second in range(int(LOST_SECONDS)):
        assert locks.seen([LOCK], at=1000.0 + second) == []
    assert locks.seen([LOCK], at=1000.0 + LOST_SECONDS) == [LOCK]


def test_a_renewed_lock_and_that_of_a_successor_are_others() -> None:
    for other in (Lock("w", 1, AT + timedelta(seconds=1)), Lock("w", 2, AT)):
        locks = LapsedLocks()
        for second in range(int(LOST_SECONDS)):
            locks.seen([LOCK], at=second)
        assert locks.seen([other], at=LOST_SECONDS) == []


def test_a_lock_that_was_renewed_meanwhile_begins_anew() -> None:
    locks = LapsedLocks()
    for second in range(int(LOST_SECONDS)):
        locks.seen([LOCK], at=second)
    locks.seen([], at=LOST_SECONDS)
    assert locks.seen([LOCK], at=LOST_SECONDS + 1) == []


def test_time_in_which_the_database_did_not_answer_counts_little() -> None:
    """Nor could the run renew its lock then."""
    locks = LapsedLocks()
    assert locks.seen([LOCK], at=0.0) == []
    assert locks.seen([LOCK], at=1200.0) == []
    assert locks.seen([LOCK], at=1200.0 + LOST_SECONDS - GAP_SECONDS_MAX - 1) == []
    for step in range(1, int(LOST_SECONDS / GAP_SECONDS_MAX)):
        found = locks.seen([LOCK], at=1300.0 + step * GAP_SECONDS_MAX)
    assert found == [LOCK]
