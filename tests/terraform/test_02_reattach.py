"""Check 2: the reattach JSON of a handshake, exactly."""

import json
from pathlib import Path

from slipway_terraform.domain.handshake import Address, parse
from slipway_terraform.domain.reattach import Reattach, reattach_json
from tests.support.plugins import plugin, plugins_in, shared, soon


def test_json_of_a_line() -> None:
    address = parse("1|5|unix|/tmp/plugin146194426|grpc|\n")
    assert address == Address("/tmp/plugin146194426", 5)
    assert parse("1|6|unix|/tmp/plugin1|grpc||true") == Address("/tmp/plugin1", 6)
    assert parse("2026-01-01 starting") is None
    text = reattach_json({"registry.terraform.io/hashicorp/aws": Reattach(address, 42)})
    assert text == (
        '{"registry.terraform.io/hashicorp/aws":{"Protocol":"grpc","ProtocolVersion":5,"Pid":42,"Test":true,'
        '"Addr":{"Network":"unix","String":"/tmp/plugin146194426"}}}'
    )


async def test_json_of_a_process(sockets: Path) -> None:
    async with (
        shared(sockets) as scheduler,
        await scheduler.acquire([plugin()], owner="one", deadline=soon()) as lease,
    ):
        (pid,) = plugins_in(sockets)
        (socket,) = sockets.glob("*/*/plugin*")
        assert json.loads(lease.env["TF_REATTACH_PROVIDERS"]) == {
            "registry.example/tests/plugin": {
                "Protocol": "grpc",
                "ProtocolVersion": 5,
                "Pid": pid,
                "Test": True,
                "Addr": {"Network": "unix", "String": str(socket)},
            }
        }
        assert socket.parent.stat().st_mode & 0o777 == 0o700
