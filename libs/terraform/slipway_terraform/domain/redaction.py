"""Redaction of a plugin's output: values of its configuration and environment, and what looks like a secret. Pure."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

GONE: Final = "…"
# Shorter values would make every line unreadable, and are no secrets.
SECRET_CHARACTERS_MIN: Final = 4
_SUSPECT: Final = (
    r"secret|token|passw|pwd|credential|signature|authorization|cookie|session|api.?key|access.?key|private"
)
_PATTERNS: Final = (
    (re.compile(r"://[^/\s@]+@"), f"://{GONE}@"),
    (re.compile(r"(?i)\b(bearer|basic)\s+\S+"), rf"\1 {GONE}"),
    (
        re.compile(
            rf"(?i)((?<![\w.-])(?>[\w.-]*?(?:{_SUSPECT})[\w.-]*)[\"']?\s*[:=]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&]+)"
        ),
        rf"\1{GONE}",
    ),
    (re.compile(r"\b(?:AKIA|ASIA|ghp_|xox[a-z]-|AIza)\w+"), GONE),
)


def secrets_of(*values: Any) -> tuple[str, ...]:
    """Texts to remove: every string in these values, and each line of those with several. Longest first, so that no
    part of one is left."""
    found = {line.strip() for text in _strings(values) for line in (text, *text.splitlines())}
    return tuple(
        sorted((text for text in found if len(text) >= SECRET_CHARACTERS_MIN), key=lambda each: (-len(each), each))
    )


def redacted(line: str, secrets: Iterable[str]) -> str:
    """A printable line without those secrets and without what looks like one."""
    for secret in secrets:
        line = line.replace(secret, GONE)
    for pattern, instead in _PATTERNS:
        line = pattern.sub(instead, line)
    return "".join(character if character.isprintable() else " " for character in line)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, Sequence):
        for each in value:
            yield from _strings(each)
