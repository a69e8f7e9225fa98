"""Templates of user data: text with placeholders such as `{{register_url}}`. Pure.

Two literal braces are written as `{{ "{{" }}`.
"""

import re
from collections.abc import Iterator
from typing import Final

from slipway_api.limits import Limit

SECRETS: Final = frozenset({"batch_secret", "user_data"})
"""Placeholders whose values hold the secret with which machines register."""
PLACEHOLDERS: Final = (
    "user_data",
    "register_url",
    "batch_id",
    "batch_secret",
    "queue_url",
    "settings",
    "pool",
    "launch_config",
    "account",
    "region",
    "zone",
    "instance_type",
    "image",
)
URL_CHARACTERS_MAX: Final = 200
URL_PATTERN: Final = rf"^https?://[!#-&(-\[\]-~]{{1,{URL_CHARACTERS_MAX - 8}}}$"
"""URLs in user data: printable ASCII without quotes and backslashes, so that their length is the same everywhere."""
DEFAULT: Final = "{{user_data}}"
BYTES_MAX: Final = 16_384
"""Size of user data, before any encoding for their transport: EC2 accepts no more."""
LITERAL: Final = '{{ "{{" }}'
_BRACES: Final = re.compile(r'\{\{(?:[ \t]*(?:(?P<name>[\w.-]+)|(?P<literal>"\{\{"))[ \t]*\}\})?')


def pieces(template: str) -> Iterator[tuple[str, str]]:
    """Parts of a valid template in order: each is text, followed by the name of a placeholder, empty at the end."""
    text, at = "", 0
    for found in _BRACES.finditer(template):
        text += template[at : found.start()]
        at = found.end()
        if found["name"]:
            yield text, found["name"]
            text = ""
        else:
            text += "{{"
    yield text + template[at:], ""


def names(template: str) -> set[str]:
    """Names of the placeholders of a valid template."""
    return {name for _, name in pieces(template) if name}


def problem(template: str) -> str:
    """Problem with a template, with its line and the remedy; empty if there is none."""
    for number, line in enumerate(template.split("\n"), 1):
        for found in _BRACES.finditer(line):
            name = found["name"]
            if not name and not found["literal"]:
                return f"line {number}: {{{{ does not begin a placeholder; write {LITERAL} for two braces"
            if name and name not in PLACEHOLDERS:
                listed = ", ".join(PLACEHOLDERS)
                return (
                    f"line {number}: there is no placeholder {found[0]}; use one of {listed}, "
                    f"or write {LITERAL} for two braces"
                )
    return Limit(BYTES_MAX, BYTES_MAX).problem(template)
