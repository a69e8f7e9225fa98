"""Scaling of a declaration in time, for demos and tests that run faster than real time."""

from typing import Any

from slipway_common.declaration.models import Declaration
from slipway_common.declaration.parsing import parse


def scaled(declaration: Declaration, speed: float) -> Declaration:
    """Copy of a declaration with every duration, including those in settings, divided by `speed`."""
    return parse(divided(declaration.model_dump(mode="json"), speed))


def divided(value: Any, speed: float) -> Any:
    """Copy of a JSON value with every duration divided by `speed`."""
    if isinstance(value, list):
        return [divided(item, speed) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: inner / speed if _is_duration(name) and isinstance(inner, int | float) else divided(inner, speed)
        for name, inner in value.items()
    }


def _is_duration(name: str) -> bool:
    return name == "seconds" or name.endswith("_seconds")
