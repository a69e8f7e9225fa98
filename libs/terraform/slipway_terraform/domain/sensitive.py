"""Texts of runs for people, without the secrets of their providers. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from slipway_terraform.domain.redaction import SECRET_CHARACTERS_MIN, redacted
from slipway_terraform.domain.specs import ProviderSpec

CHARACTERS_MAX: Final = 2_000
READ_CHARACTERS_MAX: Final = 20 * CHARACTERS_MAX
"""Beginning of a text that is read at all. A secret that is cut there is far behind what is shown."""
_SUSPECT: Final = re.compile(r"secret|token|passw|pwd|credential|api.?key|access.?key|private.?key", re.IGNORECASE)


def secrets_of(specs: Iterable[ProviderSpec], named: Iterable[str] = ()) -> tuple[str, ...]:
    """Secrets of these providers, by the names of their settings, and those `named` by the caller; longest first.

    Other settings, such as a region, stay readable in messages.
    """
    found = set(named)
    for spec in specs:
        found.update(_secrets(spec.configuration, sensitive=False))
        found.update(value for name, value in spec.environment.items() if _SUSPECT.search(name))
    lines = {line.strip() for text in found for line in (text, *text.splitlines())}  # a text may show a part of a key
    long = (line for line in lines if len(line) >= SECRET_CHARACTERS_MIN)
    return tuple(sorted(long, key=lambda line: (-len(line), line)))


def message(text: str, secrets: Iterable[str], characters_max: int = CHARACTERS_MAX) -> str:
    """The beginning of a text on one line, without these secrets, which are longest first."""
    return redacted(text[:READ_CHARACTERS_MAX], secrets)[:characters_max]


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
