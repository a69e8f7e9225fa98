"""Percent-encoded texts of ids. Ids may contain slashes; encoded, each is one part of a key, a subject or a tag."""

from functools import lru_cache, partial
from typing import Final
from urllib.parse import quote, unquote

# More than the launch configs and keys of a cell, of which a turn of the weight-calculator may encode each.
_quoted: Final = lru_cache(maxsize=32_768)(partial(quote, safe="@"))


def encoded(*parts: str) -> str:
    """Percent-encode ids or names and join them by slashes. Injective, so that no two lists of parts meet in a text.

    "@" stays, since it only separates the name of a launch config from its revision.
    """
    return "/".join(map(_quoted, parts))


def decoded(text: str) -> tuple[str, ...]:
    """Parts of a text that `encoded` has made."""
    return tuple(unquote(part) for part in text.split("/"))
