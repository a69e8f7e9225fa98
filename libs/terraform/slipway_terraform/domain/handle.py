"""Handles: keyed hashes of everything that must be equal for two specifications to share a process. Pure.

Each scheduler draws a key of its own, so that no secret can be guessed by comparing hashes with a handle in a log.
"""

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, Final

from slipway_terraform.domain.errors import SpecInvalid
from slipway_terraform.domain.specs import ProviderSpec

SHOWN_CHARACTERS: Final = 12


def handle_of(spec: ProviderSpec, *, key: bytes) -> str:
    """Handle of a specification, in hex. Equal for equal specifications whatever the order of their keys; the path of
    the binary does not matter, since its digest does.

    Raises SpecInvalid for a configuration that is not JSON.
    """
    identity = {
        "source": spec.source,
        "version": spec.version,
        "digest": spec.digest,
        "arguments": spec.arguments,
        "mode": spec.mode,
        "configuration": spec.configuration,
        "environment": spec.environment,
        "tenant": spec.tenant,
    }
    try:
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_builtin)
    except (TypeError, ValueError) as error:
        raise SpecInvalid(f"the configuration of {spec.source} is not JSON: {error}; pass JSON types only") from None
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def handle_for(base: str, owner: str) -> str:
    """Handle of the processes that serve one owner only."""
    return f"{base}/{owner}"


def base_of(handle: str) -> str:
    """Handle without its owner: its failures to start concern every owner."""
    return handle.partition("/")[0]


def shown(handle: str) -> str:
    """First characters of a handle, for people."""
    return handle[:SHOWN_CHARACTERS]


def _builtin(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not a JSON type")
