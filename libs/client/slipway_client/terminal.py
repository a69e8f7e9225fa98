"""The terminal while a screen is on it: the alternate one, no cursor, keys one by one. Given back as it was."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Sequence
from typing import Any, Final

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

QUIT_KEYS: Final = b"qQ"


class Terminal:
    """A context manager. Only lines that differ are written, all at once, so nothing flickers. `resized` is called when
    the window has another size or shows us again, `end` when the reader presses q. Ctrl-C stays a signal.
    """

    def __init__(self, *, resized: Callable[[], Any], end: Callable[[], Any]) -> None:
        self._resized = resized
        self._end = end
        self._shown: list[list[Segment]] = []
        self._shown_size = (0, 0)
        self._given_back = contextlib.ExitStack()

    def __enter__(self) -> "Terminal":
        # A character that the terminal's encoding lacks must not end a night's watch.
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
        self._console = Console(highlight=False, markup=False, emoji=False)
        with contextlib.ExitStack() as stack:
            self._take(stack)
            self._given_back = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._given_back.close()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        size = os.get_terminal_size(sys.stdout.fileno())
        return size.columns, size.lines

    def draw(self, lines: Sequence[Text]) -> None:
        """Show these lines, which fit, and nothing else."""
        width, height = self.size
        options = self._console.options.update(width=width, height=None, no_wrap=True, overflow="crop")
        drawn = [self._console.render_lines(line, options)[0] for line in lines[:height]]
        drawn += [[Segment(" " * width)]] * (height - len(drawn))
        with self._console:
            if self._shown_size != (width, height):
                self._shown_size, self._shown = (width, height), []
                self._console.clear()
            for row, line in enumerate(drawn):
                if not self._shown or self._shown[row] != line:
                    self._console.update_screen_lines([line], 0, row)
        self._shown = drawn

    def _take(self, stack: contextlib.ExitStack) -> None:
        loop = asyncio.get_running_loop()
        # What libraries log would be written across the screen.
        silent = logging.NullHandler()
        logging.getLogger().addHandler(silent)
        stack.callback(logging.getLogger().removeHandler, silent)
        stack.enter_context(self._console.screen())
        if sys.stdin.isatty():
            keyboard = sys.stdin.fileno()
            stack.callback(termios.tcsetattr, keyboard, termios.TCSADRAIN, termios.tcgetattr(keyboard))
            tty.setcbreak(keyboard)
            loop.add_reader(keyboard, self._key, keyboard)
            stack.callback(loop.remove_reader, keyboard)
        for signum, act in ((signal.SIGWINCH, self._resized), (signal.SIGTSTP, self._suspend)):
            loop.add_signal_handler(signum, act)
            stack.callback(loop.remove_signal_handler, signum)

    def _key(self, keyboard: int) -> None:
        if set(os.read(keyboard, 1024)) & set(QUIT_KEYS):
            self._end()

    def _suspend(self) -> None:
        """Ctrl-Z: give the terminal back, stop here, and take it again once the shell lets us go on."""
        self._given_back.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        with contextlib.ExitStack() as stack:
            self._take(stack)
            self._given_back = stack.pop_all()
        self._shown_size = (0, 0)
        self._resized()
