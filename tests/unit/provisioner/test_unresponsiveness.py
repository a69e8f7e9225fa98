"""Accounts whose workers are unresponsive together: the limit, and its alert."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_provisioner.domain.unresponsiveness import Unresponsiveness, alert


def account(registered: int, without_contact: int, *, kept: bool = False) -> Unresponsiveness:
    return Unresponsiveness(account_id="sim-a", registered=registered, without_contact=without_contact, kept=kept)


@pytest.mark.parametrize(
    ("registered", "without_contact", "is_mass"),
    [
        (100, 20, False),
        (100, 21, True),
        (10, 10, False),
        (11, 11, True),
        (12, 10, False),
        (55, 11, False),
        (54, 11, True),
    ],
)
def test_more_than_a_fifth_and_more_than_ten(registered: int, without_contact: int, is_mass: bool) -> None:
    assert account(registered, without_contact).is_mass is is_mass


@given(st.integers(0, 500), st.integers(0, 500))
def test_a_larger_account_is_never_less_plausible(without_contact: int, others: int) -> None:
    """With more workers in contact, as many without it are at most as implausible; ten never are."""
    smaller, larger = (account(without_contact + others + more, without_contact) for more in (0, 1))
    assert larger.is_mass <= smaller.is_mass
    assert without_contact > 10 or not smaller.is_mass


def test_the_alert_and_its_resolution() -> None:
    """Both say all of it under one key: the resolution is read on its own."""
    texts: dict[str, str] = {
        "dedup_key": "provisioner/mass-unresponsiveness/sim-a",
        "subject_kind": "account",
        "subject_id": "sim-a",
        "kind": "mass-unresponsiveness",
        "effect": "they count as serving and are not replaced",
        "doing": "stops none of them before a person has confirmed that they are dead",
        "command": "slipway account confirm-unresponsive sim-a --reason …  # once they are known to be dead",
    }
    summary = "12 of 40 registered workers of sim-a are without contact"
    raised = alert(account(40, 12))
    assert isinstance(raised, AlertRaised)
    assert msgspec.to_builtins(raised).items() >= (texts | {"summary": summary}).items()
    resolved = alert(account(40, 0, kept=True))
    summary = "the workers of sim-a are in contact again, or were stopped"
    assert isinstance(resolved, AlertResolved)
    assert msgspec.to_builtins(resolved).items() >= (texts | {"summary": summary}).items()
