"""Which signals a leased command gets of those that its client gets."""

import asyncio
import signal

import pytest

from slipway_client.leases.child import FROM_TERMINAL, PASSED_ON, Child
from tests.linux import needs_linux

pytestmark = needs_linux


@pytest.mark.parametrize("signum", sorted(FROM_TERMINAL))
async def test_what_a_terminal_sends_to_all_is_not_passed_on(signum: signal.Signals) -> None:
    """The command has it already; any other signal it gets from us alone."""
    process = await asyncio.create_subprocess_exec("sleep", "60")
    child = Child(process, on_terminal=True)
    child.pass_on(signum)
    child.pass_on(signal.SIGTERM)
    assert await child.wait() == -signal.SIGTERM


@pytest.mark.parametrize("signum", PASSED_ON)
async def test_away_from_a_terminal_every_signal_is(signum: signal.Signals) -> None:
    """Also to what the command has started, which would be left alone otherwise."""
    child = await Child.start(["sh", "-c", "sleep 60 & wait"], {"PATH": "/usr/bin:/bin"}, None)
    child.pass_on(signum)
    assert await child.wait() == -signum
    child.send(signal.SIGKILL)  # nobody has its number yet, and nobody is to be hit
