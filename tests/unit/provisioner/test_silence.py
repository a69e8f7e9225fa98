"""Accounts whose workers are silent together: the limit, and its alert."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_common.events.alert import AlertRaised, AlertResolved
from slipway_provisioner.domain.silence import Silence, alert


def silence(registered: int, silent: int, *, kept: bool = False) -> Silence:
    return Silence(account_id="sim-a", registered=registered, silent=silent, kept=kept)


@pytest.mark.parametrize(
    ("registered", "silent", "implausible"),
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
def test_more_than_a_fifth_and_more_than_ten(registered: int, silent: int, implausible: bool) -> None:
    assert silence(registered, silent).implausible is implausible


@given(st.integers(0, 500), st.integers(0, 500))
def test_a_larger_account_is_never_less_plausible(silent: int, others: int) -> None:
    """With more workers in contact, the same silence is at most as implausible; a small one never is."""
    account = silence(silent + others, silent)
    assert silence(silent + others + 1, silent).implausible <= account.implausible
    assert silent > 10 or not account.implausible


def test_the_alert_names_the_command() -> None:
    raised = alert(silence(40, 12))
    assert isinstance(raised, AlertRaised)
    assert raised.summary == "12 of 40 registered workers of sim-a are silent"
    assert raised.command.startswith("slipway account confirm-unresponsive sim-a")
    resolved = alert(silence(40, 0, kept=True))
    assert isinstance(resolved, AlertResolved)
    assert resolved.dedup_key == raised.dedup_key
