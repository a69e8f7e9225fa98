"""Expected wait at a lease pool: properties, and the formula by examples."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_lease_broker.domain.eta import eta_seconds

units = st.integers(0, 10_000)
pools = st.fixed_dictionaries(
    {
        "limit_units": units,
        "held_units": units,
        "waiting_units": units,
        "granted_per_minute": units,
        "hold_seconds": st.floats(0.001, 86_400),
    }
)


@given(pools)
def test_a_free_unit_means_no_wait(pool: dict[str, Any]) -> None:
    """When no other request waits for it."""
    pool |= {"waiting_units": 0, "held_units": min(pool["held_units"], pool["limit_units"] - 1)}
    assert eta_seconds(**pool) == (0 if pool["limit_units"] else None)


@given(pools, st.integers(1, 100))
def test_more_units_ahead_never_shorten_the_wait(pool: dict[str, Any], more: int) -> None:
    """Held or queued; above the limit each one makes it longer."""
    eta = eta_seconds(**pool)
    for name in ("waiting_units", "held_units"):
        longer = eta_seconds(**pool | {name: pool[name] + more})
        if eta is None or longer is None:
            assert eta is longer is None
        else:
            assert longer > eta if eta > 0 else longer >= eta


@given(pools)
def test_a_limit_of_0_has_no_estimate(pool: dict[str, Any]) -> None:
    """With a limit of 0 the wait is unknown, and only then."""
    assert eta_seconds(**pool | {"limit_units": 0}) is None
    assert eta_seconds(**pool | {"limit_units": 1}) is not None


#   limit, held, waiting, granted per minute, hold, eta
EXAMPLES = [
    (5, 4, 0, 0, 1200, 0.0),
    (5, 5, 0, 0, 1200, 240.0),  # from the hold: one of five every 240 s
    (5, 5, 2, 0, 1200, 720.0),
    (5, 5, 2, 6, 1200, 30.0),  # from the rate: one every 10 s, and the request is third
    (5, 8, 0, 6, 1200, 40.0),  # after a lowered limit usage falls first
    (5, 3, 1, 0, 1200, 0.0),  # free units for all waiting requests: the next decision grants them
    (0, 0, 0, 0, 1200, None),
]


@pytest.mark.parametrize(("limit", "held", "waiting", "granted", "hold", "eta"), EXAMPLES)
def test_examples(limit: int, held: int, waiting: int, granted: int, hold: float, eta: float | None) -> None:
    """Units to be released ahead, divided by the rate of the last minute or else by that of the hold."""
    assert eta == eta_seconds(
        limit_units=limit, held_units=held, waiting_units=waiting, granted_per_minute=granted, hold_seconds=hold
    )
