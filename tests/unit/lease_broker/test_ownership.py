"""Ownership: callers that may act on what another one acquired."""

import pytest

from slipway_lease_broker.domain.ownership import may_act


@pytest.mark.parametrize(
    ("owner", "caller", "admin", "expected"),
    [
        ("ann", "ann", False, True),
        ("ann", "bob", False, False),
        ("ann", "bob", True, True),
        ("", "bob", False, False),  # without an owner it belongs to nobody
        ("", "bob", True, True),
    ],
)
def test_may_act(owner: str, caller: str, admin: bool, expected: bool) -> None:
    assert may_act(owner, caller, admin=admin) is expected
