"""TF_REATTACH_PROVIDERS: the JSON by which the CLI uses running plugins instead of its own. Pure."""

from collections.abc import Mapping
from typing import Final

import msgspec

from slipway_terraform.domain.handshake import Address

VARIABLE: Final = "TF_REATTACH_PROVIDERS"


class Reattach(msgspec.Struct, frozen=True):
    """A running plugin."""

    address: Address
    pid: int


def reattach_json(plugins: Mapping[str, Reattach]) -> str:
    """Value of TF_REATTACH_PROVIDERS for plugins by fully qualified source.

    `Test` is true, since the CLI shuts down the plugin at its end otherwise, and waits for its pid for ever.
    """
    return msgspec.json.encode(
        {
            source: {
                "Protocol": "grpc",
                "ProtocolVersion": plugin.address.protocol,
                "Pid": plugin.pid,
                "Test": True,
                "Addr": {"Network": "unix", "String": plugin.address.path},
            }
            for source, plugin in sorted(plugins.items())
        }
    ).decode()
