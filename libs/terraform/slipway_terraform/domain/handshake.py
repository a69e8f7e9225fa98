"""Handshake of go-plugin: the line in which a plugin prints its address. Pure.

Source: hashicorp/go-plugin, docs/internals.md: CORE|APP|NETWORK|ADDRESS|PROTOCOL|CERTIFICATE[|MULTIPLEXING].
"""

import re
from typing import Final

import msgspec

from slipway_terraform.domain.errors import ProviderIncompatible

COOKIE_NAME: Final = "TF_PLUGIN_MAGIC_COOKIE"
COOKIE: Final = "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2"
# Without it a plugin picks the lowest protocol that it speaks, which may be net/rpc.
VERSIONS_NAME: Final = "PLUGIN_PROTOCOL_VERSIONS"
VERSIONS: Final = (5, 6)
CORE: Final = "1"
_LINE: Final = re.compile(r"\d+\|\d+\|[a-z]+\|")
_REATTACH: Final = re.compile(r"TF_REATTACH_PROVIDERS='?(\{.*\})'?\s*$")


class Address(msgspec.Struct, frozen=True):
    """Unix socket of a plugin's gRPC server, and the protocol of Terraform it speaks."""

    path: str
    protocol: int


def parse(line: str) -> Address | None:
    """Address in a line of a plugin's output; None for any other line. Raises ProviderIncompatible."""
    if not _LINE.match(line):
        return None
    core, app, network, address, *rest = line.strip().split("|")
    protocol, certificate = (*rest, "", "")[:2]
    if core != CORE:
        raise ProviderIncompatible(
            f"the plugin speaks version {core} of go-plugin's handshake, not {CORE}; use a release of the provider for "
            "Terraform 0.12 or later"
        )
    if protocol != "grpc":
        raise ProviderIncompatible(
            f"the plugin speaks {protocol or 'netrpc'}, not gRPC, and cannot be shared; use a newer release of the "
            "provider, or the NoOp scheduler",
            reason="netrpc",
        )
    if certificate:
        raise ProviderIncompatible(
            "the plugin requires TLS and cannot be reattached; start it in debug mode, if it has one (mode=debug)",
            reason="tls",
        )
    if int(app) not in VERSIONS:
        raise ProviderIncompatible(
            f"the plugin speaks protocol {app} of Terraform; 5 and 6 can be shared: use another release"
        )
    return Address(_path(network, address), int(app))


def parse_debug(line: str) -> Address | None:
    """Address in a line of a plugin in debug mode; None for any other line. Raises ProviderIncompatible.

    The name of the provider in it does not matter. A missing or zero version means 5, as for Terraform.
    """
    if not (found := _REATTACH.search(line)):
        return None
    try:
        (entry,) = msgspec.json.decode(found[1], type=dict[str, _Reattach]).values()
    except (msgspec.MsgspecError, ValueError):
        raise ProviderIncompatible(
            "the plugin's debug mode printed no TF_REATTACH_PROVIDERS of one provider; use mode=cookie"
        ) from None
    version = entry.ProtocolVersion or VERSIONS[0]
    if entry.Protocol != "grpc":
        raise ProviderIncompatible(
            f"the plugin speaks {entry.Protocol}, not gRPC; use a newer release of the provider", reason="netrpc"
        )
    if version not in VERSIONS:
        raise ProviderIncompatible(
            f"the plugin speaks protocol {version} of Terraform; 5 and 6 can be shared: use another release"
        )
    return Address(_path(entry.Addr.Network, entry.Addr.String), version)


class _Addr(msgspec.Struct):
    Network: str
    String: str


class _Reattach(msgspec.Struct):
    Protocol: str
    Addr: _Addr
    ProtocolVersion: int = 0


def _path(network: str, address: str) -> str:
    """Path of a unix socket. Every local user could use a provider that listens on TCP, with its credentials."""
    if network != "unix":
        raise ProviderIncompatible(
            f"the plugin listens on {network} {address}, which has no protection; it must listen on a unix socket",
            reason="network",
        )
    return address
