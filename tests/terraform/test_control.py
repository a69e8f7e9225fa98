"""Calls to the gRPC services of plugins."""

import gc
import threading
from pathlib import Path

from slipway_terraform.domain.handshake import Address
from slipway_terraform.plugins import control


def pollers() -> set[int | None]:
    """Threads that poll for gRPC."""
    return {thread.ident for thread in threading.enumerate() if "_poll_wrapper" in thread.name}


async def test_grpc_is_not_shut_down_between_calls(tmp_path: Path) -> None:
    """One poller serves all calls of the process: a shutdown beside the end of a call can abort it."""
    nobody = Address(path=str(tmp_path / "nobody.sock"), protocol=5)
    assert not await control.check(nobody, 1.0)
    gc.collect()
    found = pollers()
    assert len(found) == 1
    await control.shut_down(nobody, 1.0)
    gc.collect()
    assert pollers() == found
