"""Redaction of known secrets: values of sensitive settings never leave this package in a message. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from slipway_terraform.domain.specs import ProviderSpec

GONE: Final = "REDACTED"
CHARACTERS_MIN: Final = 4
"""Shorter values are not redacted: they would blot out ordinary words, and protect nothing."""
CHARACTERS_MAX: Final = 2_000
_SUSPECT: Final = re.compile(r"secret|token|passw|pwd|credential|api.?key|access.?key|private.?key", re.IGNORECASE)
# Shapes that are secrets in any text: credentials in a URL, and keys of AWS.
_SHAPES: Final = ((re.compile(r"://[^/\s@]+@"), f"://{GONE}@"), (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{8,}"), GONE))


def secrets_of(specs: Iterable[ProviderSpec], named: Iterable[str] = ()) -> tuple[str, ...]:
    """Secrets of these providers, by the names of their settings, and those `named` by the caller; longest first."""
    found = set(named)
    for spec in specs:
        found.update(_secrets(spec.configuration, sensitive=False))
        found.update(value for name, value in spec.environment.items() if _SUSPECT.search(name))
    return tuple(sorted((text for text in found if len(text) >= CHARACTERS_MIN), key=lambda text: (-len(text), text)))


def redacted(text: str, secrets: Iterable[str], characters_max: int = CHARACTERS_MAX) -> str:
    """Text without these secrets, cut to its last `characters_max` characters. `secrets` are longest first."""
    for secret in secrets:
        text = text.replace(secret, GONE)
    for pattern, instead in _SHAPES:
        text = pattern.sub(instead, text)
    return text if len(text) <= characters_max else f"…{text[1 - characters_max :]}"


def _secrets(value: Any, *, sensitive: bool) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, each in value.items():
            yield from _secrets(each, sensitive=sensitive or _SUSPECT.search(str(name)) is not None)
    elif isinstance(value, str):
        if sensitive:
            yield value
    elif isinstance(value, Sequence):
        for each in value:
            yield from _secrets(each, sensitive=sensitive)
