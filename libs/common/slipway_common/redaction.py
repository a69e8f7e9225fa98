"""Words of others, fit for an event, an alert or a log: one short line without what looks like a secret. Pure.

It errs on the side of leaving out: a request id is lost with a token, since nobody can tell them apart.
"""

import re
from typing import Final

CHARACTERS_MAX: Final = 200
GONE: Final = "…"

# In this order: the first takes what it recognises by its name, the last whatever is long and looks drawn by chance.
_PATTERNS: Final = (
    (re.compile(r"://[^/\s@]+@"), f"://{GONE}@"),  # credentials in an address
    (re.compile(r"(?<=[^\s?])\?\S+"), f"?{GONE}"),  # the query of an address: signed ones are keys by themselves
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
    """At most so many characters of `text`, on one line."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text[: 20 * characters_max]).split())
    for pattern, instead in _PATTERNS:
        line = pattern.sub(instead, line)
    return line if len(line) <= characters_max else line[: characters_max - 1] + GONE
