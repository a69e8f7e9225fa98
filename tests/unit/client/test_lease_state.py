"""State files of a host: pace, unleased starts, the lease of the previous attempt."""

import fcntl
import os
from datetime import datetime
from pathlib import Path

import pytest

from slipway_api.http.lease_broker import AcquireReplaces, UnleasedStart
from slipway_api.http.lease_pools import LeasePool
from slipway_client.leases import pace
from slipway_client.leases.state import ATTEMPT_KEPT_SECONDS, START_KEPT_SECONDS, Spooled, State, folder
from slipway_client.leases.terms import parse_handle
from tests.support.recorded import row

URL = "http://broker:7303"
POOL = {
    "id": "aws-ci",
    "limit": 2,
    "limit_in_force": 2,
    "hold_seconds": 100.0,
    "pacing_in_force": {"default": None, "operations": {}},
    "waiting": 0,
}


def started(name: str, at: str, pool: str = "aws-ci", result: str = "") -> Spooled:
    start = UnleasedStart(request_id=name, started_at=datetime.fromisoformat(at))
    return Spooled(lease_pool_id=pool, start=start, result=result)


@pytest.fixture
def logged() -> list[str]:
    return []


@pytest.fixture
def state(tmp_path: Path, logged: list[str]) -> State:
    return State(tmp_path, URL, logged.append)


def test_the_next_process_takes_the_next_place(tmp_path: Path, state: State) -> None:
    state.learn("aws-ci", pace.seen(row(LeasePool, POOL), "install", None))
    first = state.slot("aws-ci", 1, 1200.0, 0.0)
    second = State(tmp_path, URL, print).slot("aws-ci", 1, 1200.0, 0.0)
    assert first == 0.0
    assert second == pytest.approx(50.0, abs=5.0)


def test_each_broker_has_its_own_state(tmp_path: Path, state: State) -> None:
    state.learn("aws-ci", pace.seen(row(LeasePool, POOL), "install", None))
    assert State(tmp_path, "http://other:7303", print).pace("aws-ci") is None


def test_starts_are_reported_once_the_oldest_first(tmp_path: Path, state: State) -> None:
    later, earlier = started("b/../x", "2026-01-01T12:00:01+00:00"), started("a", "2026-01-01T12:00:00+00:00", "quay")
    for entry in (later, earlier, earlier):
        state.spool(entry)
    other = State(tmp_path, URL, print)
    assert other.spooled() == [earlier, later]
    other.reported(later)
    assert state.spooled() == [earlier]


def test_what_a_killed_process_has_not_finished_is_no_start(tmp_path: Path, state: State) -> None:
    """Its command never started: nothing would remove the file, and each process would report it again."""
    entry = started("a", "2026-01-01T12:00:00+00:00")
    state.spool(entry)
    (file,) = tmp_path.rglob("unleased/*")
    file.rename(file.with_name(f".{file.name}.4711"))
    assert state.spooled() == []
    assert state.record_uncharged(entry) == 1


def test_a_start_that_nobody_may_report_is_not_kept_for_ever(tmp_path: Path, state: State) -> None:
    """Each process would try again."""
    state.spool(started("old", "2026-01-01T12:00:00+00:00"))
    (file,) = tmp_path.rglob("unleased/*")
    os.utime(file, (0, file.stat().st_mtime - START_KEPT_SECONDS - 60))
    new = started("new", "2026-03-01T12:00:00+00:00")
    state.spool(new)
    assert state.spooled() == [new]


def test_the_result_of_a_reported_start_is_kept(tmp_path: Path, state: State) -> None:
    """The reporting process did not know the result."""
    running, ended = (started("a", "2026-01-01T12:00:00+00:00", result=result) for result in ("", "done"))
    state.spool(running)
    state.spool(ended)
    other = State(tmp_path, URL, print)
    other.reported(running)
    assert state.spooled() == [ended]
    other.reported(ended)
    assert state.spooled() == []


def test_an_attempt_finds_the_lease_before_it(state: State) -> None:
    assert state.attempted("job") is None
    state.attempt("job", AcquireReplaces(lease_id="l-1", fencing_token=7))
    assert state.attempted("job") == AcquireReplaces(lease_id="l-1", fencing_token=7)
    state.forget_attempts("job")
    assert state.attempted("job") is None


def test_jobs_that_try_no_more_are_forgotten(tmp_path: Path, state: State) -> None:
    state.attempt("old", AcquireReplaces(lease_id="l-1", fencing_token=7))
    (file,) = tmp_path.rglob("attempts/*")
    os.utime(file, (0, file.stat().st_mtime - ATTEMPT_KEPT_SECONDS - 60))
    state.attempt("new", AcquireReplaces(lease_id="l-2", fencing_token=8))
    assert (state.attempted("old"), bool(state.attempted("new"))) == (None, True)


def test_a_folder_that_cannot_be_written_costs_no_start(tmp_path: Path, logged: list[str]) -> None:
    """The process keeps the data in memory and logs the remedy once."""
    (tmp_path / "leases").write_text("a file")
    state = State(tmp_path, URL, logged.append)
    assert state.slot("aws-ci", 1, 100.0, 0.25) == pytest.approx(25.0, abs=1.0)
    entry = started("a", "2026-01-01T12:00:00+00:00")
    state.spool(entry)
    assert state.spooled() == [entry]
    state.reported(entry)
    assert state.spooled() == []
    assert len(logged) == 1
    assert "SLIPWAY_STATE_DIR" in logged[0]


def test_a_lock_that_is_not_given_back_costs_no_start(
    tmp_path: Path, state: State, logged: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder may be stopped, or the folder be on a server that does not answer."""
    monkeypatch.setattr("slipway_client.leases.state.LOCK_SECONDS", 0.0)
    state.learn("aws-ci", pace.seen(row(LeasePool, POOL), "install", None))
    (lock,) = tmp_path.rglob("pace/*.lock")
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert state.slot("aws-ci", 1, 100.0, 0.25) == pytest.approx(25.0, abs=1.0)
    assert "SLIPWAY_STATE_DIR" in logged[0]


def test_a_file_of_another_version_is_none(tmp_path: Path, state: State) -> None:
    state.learn("aws-ci", pace.seen(row(LeasePool, POOL), "install", None))
    (file,) = (path for path in tmp_path.rglob("pace/*") if not path.suffix)
    file.write_text('{"limit": 3}')
    assert state.pace("aws-ci") is None


def test_where_the_files_are() -> None:
    assert folder({"SLIPWAY_STATE_DIR": "/x"}) == Path("/x")
    assert folder({"XDG_STATE_HOME": "/y", "HOME": "/h"}) == Path("/y/slipway")
    assert folder({"HOME": "/h"}) == Path("/h/.local/state/slipway")


def test_a_handle_is_read_as_it_is_printed() -> None:
    assert parse_handle("01981c6e-8f7a:7") == AcquireReplaces(lease_id="01981c6e-8f7a", fencing_token=7)
    for wrong in ("", ":7", "l-1", "l-1:", "l-1:x", "l-1:-1", "l-1:٣"):
        with pytest.raises(ValueError, match="is not LEASE_ID:FENCING_TOKEN"):
            parse_handle(wrong)
