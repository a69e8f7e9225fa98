"""What a host remembers between processes: the pace, starts to be charged, the lease of the attempt before."""

import os
from pathlib import Path

import pytest

from slipway_client.leases import pace
from slipway_client.leases.state import ATTEMPT_KEPT_SECONDS, Spooled, State, folder
from slipway_client.leases.terms import Start, parse_handle
from slipway_common.events.lease import ReplacedLease

URL = "http://broker:7303"
POOL = {"id": "aws-ci", "limit": 2, "hold_seconds": 100.0, "waiting": 0}


def started(name: str, at: str, pool: str = "aws-ci", result: str = "") -> Spooled:
    start = Start(request_id=name, operation="install", units=1, started_at=at)
    return Spooled(lease_pool_id=pool, start=start, result=result)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def state(tmp_path: Path, said: list[str]) -> State:
    return State(tmp_path, URL, said.append)


def test_the_next_process_takes_the_next_place(tmp_path: Path, state: State) -> None:
    state.learn("aws-ci", pace.seen(POOL, None))
    first = state.slot("aws-ci", 1, 1200.0, 0.0)
    second = State(tmp_path, URL, print).slot("aws-ci", 1, 1200.0, 0.0)
    assert first == 0.0
    assert second == pytest.approx(50.0, abs=5.0)


def test_what_one_broker_says_is_not_another_s(tmp_path: Path, state: State) -> None:
    state.learn("aws-ci", pace.seen(POOL, None))
    assert State(tmp_path, "http://other:7303", print).pace("aws-ci") is None


def test_starts_are_told_once_the_oldest_first(tmp_path: Path, state: State) -> None:
    later, earlier = started("b/../x", "2026-01-01T12:00:01+00:00"), started("a", "2026-01-01T12:00:00+00:00", "quay")
    for entry in (later, earlier, earlier):
        state.spool(entry)
    other = State(tmp_path, URL, print)
    assert other.spooled() == [earlier, later]
    other.told(later)
    assert state.spooled() == [earlier]


def test_an_end_is_told_of_a_start_that_was_told(tmp_path: Path, state: State) -> None:
    """Who told of the start did not know of it."""
    running, ended = (started("a", "2026-01-01T12:00:00+00:00", result=result) for result in ("", "done"))
    state.spool(running)
    state.spool(ended)
    other = State(tmp_path, URL, print)
    other.told(running)
    assert state.spooled() == [ended]
    other.told(ended)
    assert state.spooled() == []


def test_an_attempt_finds_the_lease_before_it(state: State) -> None:
    assert state.attempted("job") is None
    state.attempt("job", ReplacedLease(lease_id="l-1", fencing_token=7))
    assert state.attempted("job") == ReplacedLease(lease_id="l-1", fencing_token=7)
    state.forget_attempts("job")
    assert state.attempted("job") is None


def test_jobs_that_try_no_more_are_forgotten(tmp_path: Path, state: State) -> None:
    state.attempt("old", ReplacedLease(lease_id="l-1", fencing_token=7))
    (file,) = tmp_path.rglob("attempts/*")
    os.utime(file, (0, file.stat().st_mtime - ATTEMPT_KEPT_SECONDS - 60))
    state.attempt("new", ReplacedLease(lease_id="l-2", fencing_token=8))
    assert (state.attempted("old"), bool(state.attempted("new"))) == (None, True)


def test_a_folder_that_cannot_be_written_costs_no_start(tmp_path: Path, said: list[str]) -> None:
    """What it would have held is kept by this process, and what to do is said once."""
    (tmp_path / "leases").write_text("a file")
    state = State(tmp_path, URL, said.append)
    assert state.slot("aws-ci", 1, 100.0, 0.25) == pytest.approx(25.0, abs=1.0)
    entry = started("a", "2026-01-01T12:00:00+00:00")
    state.spool(entry)
    assert state.spooled() == [entry]
    state.told(entry)
    assert state.spooled() == []
    assert len(said) == 1
    assert "SLIPWAY_STATE_DIR" in said[0]


def test_a_file_of_another_version_is_none(tmp_path: Path, state: State) -> None:
    state.learn("aws-ci", pace.seen(POOL, None))
    (file,) = (path for path in tmp_path.rglob("pace/*") if not path.suffix)
    file.write_text('{"limit": 3}')
    assert state.pace("aws-ci") is None


def test_where_the_files_are() -> None:
    assert folder({"SLIPWAY_STATE_DIR": "/x"}) == Path("/x")
    assert folder({"XDG_STATE_HOME": "/y", "HOME": "/h"}) == Path("/y/slipway")
    assert folder({"HOME": "/h"}) == Path("/h/.local/state/slipway")


def test_a_handle_is_read_as_it_is_printed() -> None:
    assert parse_handle("01981c6e-8f7a:7") == ReplacedLease(lease_id="01981c6e-8f7a", fencing_token=7)
    for wrong in ("", ":7", "l-1", "l-1:", "l-1:x", "l-1:-1", "l-1:٣"):
        with pytest.raises(ValueError, match="is not LEASE_ID:FENCING_TOKEN"):
            parse_handle(wrong)
