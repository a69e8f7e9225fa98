"""Fixtures of the scheduler's checks."""

from collections.abc import Iterator

import pytest

from tests.support.terraform_runs import Place, new_place


@pytest.fixture
def place() -> Iterator[Place]:
    """A ledger, its provider in a mirror, and room for modules and runs. Skips the test without Terraform."""
    with new_place() as opened:
        yield opened
