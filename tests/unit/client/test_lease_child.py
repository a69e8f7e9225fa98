"""Signals that are forwarded to a leased command."""

import os
import signal

import pytest

from slipway_client.leases.child import FORWARDED, FROM_TERMINAL, Child
from slipway_common.base.process.groups import Group
from tests.support.linux import needs_linux

pytestmark = needs_linux


@pytest.mark.parametrize("signum", sorted(FROM_TERMINAL))
async def test_signals_of_the_terminal_are_not_forwarded(signum: signal.Signals) -> None:
    """The terminal has sent it to the command already; any other signal is forwarded."""
    child = Child(Group.start(["sleep", "60"], os.environ, leads=False), on_terminal=True)
    child.forward(signum)
    child.forward(signal.SIGTERM)
    assert await child.wait() == -signal.SIGTERM


@pytest.mark.parametrize("signum", FORWARDED)
async def test_away_from_a_terminal_every_signal_is(signum: signal.Signals) -> None:
    """It is sent to the whole group, also to children of the command that would remain otherwise."""
    child = Child.start(["sh", "-c", "sleep 60 & wait"], {"PATH": "/usr/bin:/bin"}, None)
    child.forward(signum)
    assert await child.wait() == -signum
    child.send(signal.SIGKILL)  # its PID is not reused yet, so no other process is signalled
