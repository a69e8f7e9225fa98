"""Redaction of external text: one short line without likely secrets, written to rows, events and logs. Pure.

Text of providers, machines, monitors and of errors is redacted where it enters: afterwards it is part of sentences with
names and ids, which look like tokens. When in doubt text is removed: a request id is redacted too.
"""

import re
from typing import Final

CHARACTERS_MAX: Final = 200
ERROR_CHARACTERS_MAX: Final = 500
GONE: Final = "…"
CODE: Final = ('  File "', "    ")
"""Beginnings of the lines of a traceback that show code."""

_SUSPECT: Final = (
    r"(?:secret|token|passw|pwd|credential|signature|authorization|cookie|session|api.?key|access.?key|private.?key)"
)
"""Part of a name that calls its value a secret."""
# Applied in this order: first secrets recognised by a name, last any long random-looking text.
_PATTERNS: Final = (
    (re.compile(r"://[^/\s@]+@"), f"://{GONE}@"),  # credentials in a URL
    (re.compile(r"(?<=[^\s?])\?\S+"), f"?{GONE}"),  # the query of a URL, which may be a signature
    (re.compile(r"(?i)\b(bearer|basic)\s+\S+"), rf"\1 {GONE}"),
    (
        re.compile(rf"(?i)([\w.-]*{_SUSPECT}[\w.-]*[\"']?\s*[:=]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&]+)"),
        rf"\1{GONE}",
    ),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"), GONE),
    (re.compile(r"\b(?:AKIA|ASIA|ghp_|xox[a-z]-|AIza)\w+"), GONE),
    (re.compile(r"(?=[\w+/=.-]*[0-9])(?=[\w+/=.-]*[A-Za-z])[\w+/=.-]{32,}"), GONE),
)
# Those that recognise a secret by a name or a fixed beginning.
_NAMED: Final = (_PATTERNS[0], *_PATTERNS[2:4], _PATTERNS[5])


def redacted(text: str, characters_max: int = CHARACTERS_MAX) -> str:
    """Redact `text` and shorten it to one line of at most `characters_max` characters."""
    line = _hidden(" ".join("".join(c if c.isprintable() else " " for c in text[: 20 * characters_max]).split()))
    return line if len(line) <= characters_max else line[: characters_max - 1] + GONE


def masked(text: str) -> str:
    """Text of our own for people, in its own lines, without the values that its names call secret. What only looks
    random stays."""
    for pattern, instead in _NAMED:
        text = pattern.sub(instead, text)
    return text


def names_secret(name: str) -> bool:
    """True if what has this name is likely to be a secret."""
    return re.search(_SUSPECT, name, re.IGNORECASE) is not None


def described(error: BaseException, characters_max: int = ERROR_CHARACTERS_MAX) -> str:
    """Type and redacted text of an error."""
    return redacted(f"{type(error).__name__}: {error}", characters_max)


def redacted_traceback(text: str) -> str:
    """A traceback with its messages redacted. Lines of code stay as they are, since they hold no values."""
    return "\n".join(line if line.startswith(CODE) else _hidden(line) for line in text.split("\n"))


def _hidden(line: str) -> str:
    for pattern, instead in _PATTERNS:
        line = pattern.sub(instead, line)
    return line
