"""Lapsed locks of workspaces, as one replica observes them."""

from datetime import UTC, datetime, timedelta

from slipway_provisioner.domain.workspace_locks import GAP_SECONDS_MAX, TAKEOVER_SECONDS, LapsedLocks, Lock

AT = datetime(2026, 1, 1, tzinfo=UTC)
LOCK = Lock("w", 1, AT)


def test_a_lock_that_is_not_renewed_is_taken_over() -> None:
    locks = LapsedLocks()
    assert locks.observe([], at=900.0) == []
    for second in range(int(TAKEOVER_SECONDS)):
        assert locks.observe([LOCK], at=1000.0 + second) == []
    assert locks.observe([LOCK], at=1000.0 + TAKEOVER_SECONDS) == [LOCK]


def test_a_renewal_or_a_new_holder_is_another_lock() -> None:
    for other in (Lock("w", 1, AT + timedelta(seconds=1)), Lock("w", 2, AT)):
        locks = LapsedLocks()
        for second in range(int(TAKEOVER_SECONDS)):
            locks.observe([LOCK], at=second)
        assert locks.observe([other], at=TAKEOVER_SECONDS) == []


def test_a_lock_that_was_renewed_meanwhile_begins_anew() -> None:
    locks = LapsedLocks()
    for second in range(int(TAKEOVER_SECONDS)):
        locks.observe([LOCK], at=second)
    locks.observe([], at=TAKEOVER_SECONDS)
    assert locks.observe([LOCK], at=TAKEOVER_SECONDS + 1) == []


def test_time_in_which_the_database_did_not_answer_counts_little() -> None:
    """The run could not renew its lock then either."""
    locks = LapsedLocks()
    assert locks.observe([LOCK], at=0.0) == []
    assert locks.observe([LOCK], at=1200.0) == []
    assert locks.observe([LOCK], at=1200.0 + TAKEOVER_SECONDS - GAP_SECONDS_MAX - 1) == []
    for step in range(1, int(TAKEOVER_SECONDS / GAP_SECONDS_MAX)):
        found = locks.observe([LOCK], at=1300.0 + step * GAP_SECONDS_MAX)
    assert found == [LOCK]
