"""Errors of PostgreSQL: those of the data, which a retry repeats, and those of the infrastructure."""

import asyncpg
import pytest

from slipway_common.database.postgres import is_infrastructure


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.ProgramLimitExceededError("index row size 8000 exceeds maximum 2704"),
        asyncpg.CharacterNotInRepertoireError("invalid byte sequence: 0x00"),
        asyncpg.UntranslatableCharacterError("unsupported Unicode escape sequence"),
        asyncpg.NumericValueOutOfRangeError("integer out of range"),
        asyncpg.NotNullViolationError("null value in column"),
        asyncpg.DataError("invalid input for query argument"),
    ],
    ids=lambda error: error.sqlstate,
)
def test_error_of_the_data(error: Exception) -> None:
    """The record that causes it becomes a dead letter: retried, it would stop its partition forever."""
    assert not is_infrastructure(error)


@pytest.mark.parametrize(
    "error",
    [
        asyncpg.DeadlockDetectedError("deadlock detected"),
        asyncpg.QueryCanceledError("statement timeout"),
        asyncpg.OutOfMemoryError("out of memory"),
        asyncpg.DiskFullError("could not extend file"),
        asyncpg.AdminShutdownError("terminating connection"),
    ],
    ids=lambda error: error.sqlstate,
)
def test_error_of_the_infrastructure(error: Exception) -> None:
    """A retry may succeed, so no record is blamed."""
    assert is_infrastructure(error)
