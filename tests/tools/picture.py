"""A captured screen of a terminal as SVG, which needs nothing from elsewhere to be shown."""

import io
import re
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

ELSEWHERE: Final = re.compile(r"@font-face \{\{.*?\}\}|<!-- .*? -->", re.DOTALL)
"""Fonts that the usual format loads from the network, and its advertisement."""


def svg(captured: str, columns: int, title: str) -> str:
    """Picture of lines with escape sequences of colours, as `tmux capture-pane -e` prints them."""
    console = Console(width=columns, record=True, file=io.StringIO(), legacy_windows=False)
    console.print(Text.from_ansi(captured.rstrip()), no_wrap=True, overflow="crop", soft_wrap=False)
    return console.export_svg(title=title, theme=MONOKAI, code_format=ELSEWHERE.sub("", CONSOLE_SVG_FORMAT))
