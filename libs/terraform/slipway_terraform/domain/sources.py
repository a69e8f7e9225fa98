"""Source addresses of providers, which must be equal in the root module and in the reattach JSON. Pure."""

from typing import Final

from slipway_terraform.domain.errors import SpecInvalid
from slipway_terraform.domain.tools import Kind

DEFAULT_HOSTS: Final = {Kind.TERRAFORM: "registry.terraform.io", Kind.TOFU: "registry.opentofu.org"}
"""Host of a source without one, which differs by tool."""
DEFAULT_NAMESPACE: Final = "hashicorp"


def qualified(source: str, kind: Kind) -> str:
    """Address with host, namespace and type, as this tool resolves a source of a module. Raises SpecInvalid."""
    parts = source.split("/")
    if not 1 <= len(parts) <= 3 or not all(parts):
        raise SpecInvalid(f"provider source {source!r} is not [HOST/]NAMESPACE/TYPE")
    if len(parts) == 1:
        parts.insert(0, DEFAULT_NAMESPACE)
    if len(parts) == 2:
        parts.insert(0, DEFAULT_HOSTS[kind])
    return "/".join(parts)


def local_name(source: str) -> str:
    """Name of the provider in the generated root module: the type of its source."""
    if source.count("/") != 2:
        raise SpecInvalid(f"provider source {source!r} is not fully qualified; write HOST/NAMESPACE/TYPE")
    return source.rsplit("/", 1)[1]
