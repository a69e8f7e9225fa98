"""Check 5: a plugin that prints no handshake is a time-out, and does not stay."""

from pathlib import Path

import pytest

from slipway_terraform.domain.errors import HandshakeTimeout
from tests.support.plugins import assert_nothing_left, plugin, shared, soon


@pytest.mark.parametrize("faults", [("print=hello|world", "say=token=4711"), ("silent",), ("deaf", "silent")])
async def test_no_handshake(sockets: Path, faults: tuple[str, ...]) -> None:
    seconds = 2.0 if "say=token=4711" in faults else 0.5  # so that the plugin has its time to speak
    async with shared(sockets, start_seconds=seconds) as scheduler:
        with pytest.raises(HandshakeTimeout, match=rf"no handshake within {seconds:g} s") as caught:
            await scheduler.acquire([plugin(*faults)], owner="one", deadline=soon())
        assert caught.value.retryable
        assert caught.value.stderr == ("token=…" if seconds == 2.0 else "")
        assert_nothing_left_but_folder(sockets)


def assert_nothing_left_but_folder(sockets: Path) -> None:
    """Before the scheduler is closed only its own empty folder is there."""
    (folder,) = sockets.iterdir()
    assert_nothing_left(folder)
