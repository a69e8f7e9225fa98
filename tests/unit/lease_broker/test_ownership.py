"""Ownership: callers that may act on what another one acquired, and the token that they need for a lease."""

import msgspec
import pytest

from slipway_lease_broker.domain.ownership import Denial, denied, may_act
from tests.unit.lease_broker.test_endings import LEASE


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


@pytest.mark.parametrize(
    ("token", "caller", "admin", "denial"),
    [
        (7, "ann", False, None),
        (7, "bob", True, None),
        (7, "bob", False, Denial.WRONG_OWNER),
        (6, "bob", False, Denial.WRONG_OWNER),  # no hint at the token of another
        (6, "ann", False, Denial.FENCED),
        (8, "ann", False, Denial.FENCED),
        (8, "bob", True, Denial.FENCED),
    ],
)
def test_a_lease_needs_its_owner_and_its_token(token: int, caller: str, admin: bool, denial: Denial | None) -> None:
    lease = msgspec.structs.replace(LEASE, owner="ann", fencing_token=7)
    assert denied(lease, token, caller, admin=admin) is denial
    assert denied(None, token, caller, admin=admin) is Denial.UNKNOWN_LEASE
