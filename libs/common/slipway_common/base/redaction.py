"""Redaction of external text for events, alerts and logs: one short line without likely secrets. Pure.

When in doubt text is removed: a request id is redacted too, since it looks like a token.
"""

import re
from typing import Final

CHARACTERS_MAX: Final = 200
GONE: Final = "…"

# Applied in this order: first secrets recognised by a name, last any long random-looking text.
_PATTERNS: Final = (
    (re.compile(r"://[^/\s@]+@"), f"://{GONE}@"),  # credentials in a URL
    (re.compile(r"(?<=[^\s?])\?\S+"), f"?{GONE}"),  # the query of a URL, which may be a signature
    (re.compile(r"(?i)\b(bearer|basic)\s+\S+"), rf"\1 {GONE}"),
    (
        re.compile(
            r"(?i)([\w.-]*(?:secret|token|passw|pwd|credential|signature|authorization|cookie|session|api.?key"
            r"|access.?key|private.?key)[\w.-]*[\"']?\s*[:=]\s*)(\"[^\"]*\"|'[^']*'|[^\s,;&]+)"
        ),
        rf"\1{GONE}",
    ),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"), GONE),
    (re.compile(r"\b(?:AKIA|ASIA|ghp_|xox[a-z]-|AIza)\w+"), GONE),
    (re.compile(r"(?=[\w+/=.-]*[0-9])(?=[\w+/=.-]*[A-Za-z])[\w+/=.-]{32,}"), GONE),
)


def redacted(text: str, characters_max: int = CHARACTERS_MAX) -> str:
    """Redact `text` and shorten it to one line of at most `characters_max` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 20 * characters_max]).split())
    for pattern, instead in _PATTERNS:
        line = pattern.sub(instead, line)
    return line if len(line) <= characters_max else line[: characters_max - 1] + GONE
