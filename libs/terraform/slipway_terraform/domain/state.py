"""State files: outputs, and resources of provider configurations that the root module does not have. Pure."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from slipway_terraform.domain.errors import SpecInvalid
from slipway_terraform.domain.root import MODULE

_ROOT_PROVIDER: Final = re.compile(r'provider\["[^"]+"\]')
"""A provider's configuration in the root module, without an alias."""


def is_state(content: bytes) -> bool:
    """True for a whole state file: a truncated one is not JSON."""
    try:
        return bool(_decoded(content))
    except SpecInvalid:
        return False


def outputs(state: bytes | None) -> Mapping[str, Any]:
    """Outputs of the user's module; empty without a state. Raises SpecInvalid for content that is not a state."""
    found = _decoded(state).get("outputs", {}).get(MODULE, {}).get("value")
    return found if isinstance(found, dict) else {}


def foreign_providers(state: bytes | None) -> tuple[str, ...]:
    """Provider configurations in a state other than those of the generated root module."""
    used = {str(resource.get("provider", "")) for resource in _decoded(state).get("resources", ())}
    return tuple(sorted(each for each in used if not _ROOT_PROVIDER.fullmatch(each)))


def _decoded(state: bytes | None) -> dict[str, Any]:
    if not state:
        return {}
    try:
        return msgspec.json.decode(state, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise SpecInvalid(f"the state is not a Terraform state file: {error}") from error
