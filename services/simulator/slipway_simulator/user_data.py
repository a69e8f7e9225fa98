"""User data of simulated machines. Pure."""

import json
from typing import Any


def found(text: str) -> dict[str, Any]:
    """JSON for the agent in user data, which may be a script or for cloud-init. Empty if there is none: such a machine
    never registers."""
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        try:
            value, _ = decoder.raw_decode(text, at)
        except ValueError:
            value = None
        if isinstance(value, dict) and "batch_id" in value:
            return value
        at = text.find("{", at + 1)
    return {}
