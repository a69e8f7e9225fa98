"""Redaction of external text: one short line without likely secrets, written to rows, events and logs. Pure.

Text of providers, machines, monitors and of errors is redacted where it enters: afterwards it is part of sentences with
names and ids, which look like tokens. When in doubt text is removed: a request id is redacted too. Ids of our own stay:
no secret of Slipway is a UUID, and clouds give out random ones (version 4), while ours begin with a time (version 7).
So do event types and topics, which say what a record was meant to be.
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
# No pattern may try the same characters again from each of them: texts are as long as foreign writers like, and 20,000
# characters would take a minute. Hence atomic groups, and beginnings that are looked for before a word only.
_NAME: Final = rf"(?>[\w.-]*?{_SUSPECT}[\w.-]*)"
_VALUE: Final = r"\"[^\"]*\"|'[^']*'|[^\s,;&]+"
# Applied in this order: secrets recognised by a name come first; any long random-looking text is removed last.
_PATTERNS: Final = (
    (re.compile(r"://[^/\s@]+@"), f"://{GONE}@"),  # credentials in a URL
    (re.compile(r"(?<=[^\s?])\?\S+"), f"?{GONE}"),  # the query of a URL, which may be a signature
    (re.compile(r"(?i)\b(bearer|basic)\s+\S+"), rf"\1 {GONE}"),
    (
        # After a path, a colon and a blank begin a message: cannot read /etc/passwd: permission denied.
        re.compile(rf"(?i)((?<![/\w.-]){_NAME}[\"']?\s*[:=]\s*|(?<=/){_NAME}(?:\s*=\s*|:(?=\S)))({_VALUE})"),
        rf"\1{GONE}",
    ),
    (re.compile(r"(?<![\w.+-])[\w.+-]++@[\w-]+(?:\.[\w-]+)+\b"), GONE),
    (re.compile(r"\b(?:AKIA|ASIA|ghp_|xox[a-z]-|AIza)\w+|\bslipway-(?:worker|lease)-[\w.-]+"), GONE),
)
_LONG: Final = re.compile(r"[\w+/=.-]{32,}")
_DIGIT, _LETTER = re.compile("[0-9]"), re.compile("[A-Za-z]")
_OURS: Final = re.compile(
    r"(?<![\w+=-])((?:io\.)?slipway(?:\.[a-z_-]{1,40}){1,3}\.v[0-9]"
    r"|[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12})(?![\w+=-])"
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
    # Every second part is an id, an event type or a topic.
    parts = enumerate(_OURS.split(line))
    return "".join(part if place % 2 else _LONG.sub(_without_random, part) for place, part in parts)


def _without_random(long: re.Match[str]) -> str:
    """A long text, unless it looks random."""
    return GONE if _DIGIT.search(long[0]) and _LETTER.search(long[0]) else long[0]
