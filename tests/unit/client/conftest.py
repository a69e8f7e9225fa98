"""A lease-broker that answers from a table, and the environment of a command that uses it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.lease_answers import LeaseBroker


@pytest.fixture(scope="module")
def served_broker() -> "Iterator[tuple[LeaseBroker, str]]":
    from tests.support import lease_answers

    with lease_answers.served() as served:
        yield served


@pytest.fixture
def broker(served_broker: "tuple[LeaseBroker, str]") -> "LeaseBroker":
    served_broker[0].reset()
    return served_broker[0]


@pytest.fixture
def environment(served_broker: "tuple[LeaseBroker, str]", tmp_path: Path) -> dict[str, str]:
    packages = {name: value for name, value in os.environ.items() if name == "PYTHONPATH"}  # the code under test
    ours = {"SLIPWAY_LEASE_BROKER_URL": served_broker[1], "SLIPWAY_STATE_DIR": str(tmp_path), "SLIPWAY_TOKEN": "secret"}
    return packages | ours


@pytest.fixture
def options(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments of `lease()` for the broker of this test."""
    monkeypatch.setenv("SLIPWAY_STATE_DIR", environment["SLIPWAY_STATE_DIR"])
    monkeypatch.delenv("SLIPWAY_LEASE", raising=False)
    return {"url": environment["SLIPWAY_LEASE_BROKER_URL"], "token": "secret"}
