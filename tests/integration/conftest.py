"""A weight-calculator with three declared zones."""

from collections.abc import AsyncIterator

import pytest

from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.calculators import ZONES
from tests.support.weight_calculator import Calculator, calculator_on, declared, replayed


@pytest.fixture
async def calculator(postgres: EmbeddedPostgres) -> AsyncIterator[Calculator]:
    """Three declared zones of one pool, published."""
    async with calculator_on(postgres) as calculator:
        await calculator.consume(*map(declared, ZONES))
        await calculator.publish()
        yield calculator
        assert replayed(await calculator.journal(), calculator.records) == await calculator.stored(), (
            "a replay of the journal differs"
        )
