"""Check 24: an exit before the handshake is an error, also with code 0."""

from pathlib import Path

import pytest

from slipway_terraform.domain.errors import ProviderStartError
from tests.support.plugins import plugin, shared, soon


@pytest.mark.parametrize("code", [0, 1, 3])
async def test_exit(sockets: Path, code: int) -> None:
    async with shared(sockets) as scheduler:
        spec = plugin(f"exit={code}", "say=cannot find region mars", configuration={"secret_key": "mars"})
        with pytest.raises(ProviderStartError, match=f"exited with {code} .* before its handshake") as caught:
            await scheduler.acquire([spec], owner="one", deadline=soon())
        assert caught.value.exit_code == code
        assert caught.value.stderr == "cannot find region …"
        assert "mars" not in str(caught.value)
