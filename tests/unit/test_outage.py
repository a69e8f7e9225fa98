"""Log of an outage of the database: which errors belong to it, and its two lines."""

import asyncpg
import pytest
from structlog.testing import capture_logs

from slipway_common.database import outage as module
from slipway_common.database.outage import LOG, DatabaseUnavailable, Outage, warn

BEGINS = [
    DatabaseUnavailable("refused"),
    asyncpg.TooManyConnectionsError("too many clients"),
    asyncpg.AdminShutdownError("terminating connection"),
    asyncpg.CrashShutdownError("terminating connection"),
    asyncpg.CannotConnectNowError("the database system is starting up"),
    asyncpg.ConnectionDoesNotExistError("connection was closed"),
]
OTHERS = [
    asyncpg.QueryCanceledError("statement timeout"),
    asyncpg.LockNotAvailableError("lock timeout"),
    asyncpg.DeadlockDetectedError("deadlock"),
    asyncpg.InsufficientPrivilegeError("permission denied for table outbox"),
    OSError("of a provider"),
    TimeoutError(),
]


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Outage:
    monkeypatch.setattr(module, "OF_THIS_PROCESS", made := Outage())
    return made


@pytest.mark.parametrize("error", BEGINS, ids=lambda error: type(error).__name__)
def test_a_lost_or_refused_connection_is_an_outage_of_two_lines(outage: Outage, error: Exception) -> None:
    """Failures meanwhile are counted, also those that the driver raises for a closed connection."""
    with capture_logs() as lines:
        for failure in (error, asyncpg.InterfaceError("connection is closed"), error):
            warn(LOG, "loop step failed, retrying", failure, loop="plan")
        outage.end()
        outage.end()
    began, ended = lines
    assert (began["log_level"], began["error"]) == ("warning", repr(error))
    assert began["event"].startswith("no connection to the database, retrying")
    assert (ended["event"], ended["failures"]) == ("connected to the database again", 3)


@pytest.mark.parametrize("error", [*OTHERS, asyncpg.InterfaceError("another operation is in progress")], ids=repr)
def test_other_expected_errors_have_a_line_each(outage: Outage, error: Exception) -> None:
    with capture_logs() as lines:
        for _ in range(2):
            warn(LOG, "loop step failed, retrying", error, loop="plan")
        outage.end()
    assert [(line["event"], line["loop"], line["error"]) for line in lines] == [
        ("loop step failed, retrying", "plan", repr(error))
    ] * 2
