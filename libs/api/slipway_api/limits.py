"""Limits of text from outside: stated here, and applied by the event types, the HTTP APIs and the Boskos API alike.

PostgreSQL stores no NUL and no unpaired surrogate, and a row of an index has at most 2,704 bytes: a longer one
fails at every attempt. A limit counts characters, and bytes for scripts that need several bytes a character.
"""

import re
from typing import Annotated, Final, NamedTuple

import msgspec

CUT: Final = "…"
UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")


class Limit(NamedTuple):
    """Maximum length of a text, in characters and in bytes of UTF-8."""

    characters: int
    bytes: int

    @property
    def meta(self) -> msgspec.Meta:
        """Annotation of a field of an event, whose decoder checks it. The JSON Schema shows both numbers."""
        return msgspec.Meta(max_length=self.characters, extra_json_schema={"x-max-bytes": self.bytes})

    def problem(self, text: str) -> str:
        """Reason why a text is too long or cannot be stored; empty if it can be used."""
        if "\0" in text:
            return "has a NUL character"
        if len(text) > self.characters:
            return f"has {len(text):,} characters; at most {self.characters:,} are allowed"
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            return "has an unpaired surrogate"
        return f"has {size:,} bytes in UTF-8; at most {self.bytes:,} are allowed" if size > self.bytes else ""

    def cut(self, text: str) -> str:
        """The text, without what cannot be stored, and cut at its end with "…" if it is too long."""
        if not self.problem(text):
            return text
        text = UNSTORABLE.sub("�", text[: self.characters + 1])
        if not self.problem(text):
            return text
        kept = text[: self.characters - 1].encode()[: self.bytes - len(CUT.encode())]
        return kept.decode(errors="ignore") + CUT


WORD: Final = Limit(60, 180)
"""Words of a fixed set, such as stages."""
NAME: Final = Limit(200, 600)
"""Ids, names and all else that becomes part of a key or an index."""
KEY: Final = Limit(2_300, 2_300)
"""Keys and subjects: names that are joined percent-encoded."""
REASON: Final = Limit(500, 1_500)
"""Reasons that people and monitors give."""
LINE: Final = Limit(200, 800)
"""Lines that a machine has printed."""
NOTE: Final = Limit(4_000, 12_000)
"""Summaries, details and other text for people, which may quote reasons and names."""


Word = Annotated[str, WORD.meta]
Name = Annotated[str, NAME.meta]
Key = Annotated[str, KEY.meta]
Reason = Annotated[str, REASON.meta]
Line = Annotated[str, LINE.meta]
Note = Annotated[str, NOTE.meta]
# Segments separated by slashes; none is "." or "..", which programs that handle URLs would resolve.
_SEGMENT: Final = r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9_])?"
ID_EXPRESSION: Final = rf"^{_SEGMENT}(/{_SEGMENT})*$(?!\n)"
ID_CHARACTERS_MAX: Final = 128
Id = Annotated[str, msgspec.Meta(max_length=ID_CHARACTERS_MAX, pattern=ID_EXPRESSION)]
"""Id of what is declared."""
RequiredName = Annotated[Name, msgspec.Meta(min_length=1)]
RequiredReason = Annotated[Reason, msgspec.Meta(min_length=1)]
