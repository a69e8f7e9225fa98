"""Provider specifications: one plugin binary with one configuration."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec


class Mode(StrEnum):
    """Way to start a plugin."""

    COOKIE = "cookie"
    """By go-plugin's handshake: a magic cookie in its environment, one line on its standard output."""
    DEBUG = "debug"
    """By its debug mode, which prints TF_REATTACH_PROVIDERS: for plugins that require TLS in cookie mode."""


class ProviderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A provider as one configuration needs it.

    `source` is fully qualified ("registry.terraform.io/hashicorp/aws"). `binary` is the path of the plugin executable
    and `digest` its SHA-256 in hex, checked before a start. `environment` is all that the plugin gets beside what the
    handshake needs. Configurations of different tenants never share a process, even if they are equal.
    """

    source: str
    version: str
    binary: str
    digest: str
    arguments: tuple[str, ...] = ()
    mode: Mode = Mode.COOKIE
    configuration: Mapping[str, Any]
    environment: Mapping[str, str] = {}
    tenant: str = ""

    def __repr__(self) -> str:
        """Source and version: the configuration and the environment hold secrets."""
        return f"ProviderSpec(source={self.source!r}, version={self.version!r})"
