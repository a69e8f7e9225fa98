"""The terminal while a screen is on it: alternate screen, no cursor, keys unbuffered. Restored at the end."""

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from rich.console import Console
from rich.segment import Segment
from rich.text import Text

SPECIAL: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b[5~": "pageup",
    "\x1b[6~": "pagedown",
    "\x1b[H": "home",
    "\x1b[1~": "home",
    "\x1b[F": "end",
    "\x1b[4~": "end",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\b": "backspace",
}
KEY: Final = re.compile(r"\x1b(?:\[[0-9;]*[A-Za-z~]|O[A-Za-z])?|.", re.DOTALL)


def keys(data: bytes) -> Iterator[str]:
    """Keys in what a terminal has sent: characters, and names of special keys; others are skipped."""
    for key in KEY.findall(data.decode(errors="ignore")):
        name = SPECIAL.get(key.replace("\x1bO", "\x1b["), key)
        if (len(name) > 1 or name.isprintable()) and not name.startswith("\x1b"):
            yield name


class Terminal:
    """Context manager for a screen. Only lines that differ are written, all at once, so nothing flickers. `resized` is
    called after a change of size and after Ctrl-Z and `fg`, `pressed` with each key. Ctrl-C stays a signal.
    """

    def __init__(self, *, resized: Callable[[], object], pressed: Callable[[str], object]) -> None:
        self._resized = resized
        self._pressed = pressed
        self._shown: list[list[Segment]] = []
        self._shown_size = (0, 0)
        self._restored = contextlib.ExitStack()

    def __enter__(self) -> "Terminal":
        # A character that the terminal's encoding lacks must not end the program.
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
        self._console = Console(highlight=False, markup=False, emoji=False)
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._restored.close()

    @property
    def size(self) -> tuple[int, int]:
        """Current columns and lines."""
        size = os.get_terminal_size(sys.stdout.fileno())
        return size.columns, size.lines

    def draw(self, lines: Sequence[Text]) -> None:
        """Show these lines, which must fit, and nothing else."""
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

    def _take(self) -> None:
        with contextlib.ExitStack() as stack:
            loop = asyncio.get_running_loop()
            # Log lines of libraries would be written across the screen.
            handler = logging.NullHandler()
            logging.getLogger().addHandler(handler)
            stack.callback(logging.getLogger().removeHandler, handler)
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
            self._restored = stack.pop_all()

    def _key(self, keyboard: int) -> None:
        for key in keys(os.read(keyboard, 1024)):
            self._pressed(key)

    def _suspend(self) -> None:
        """Ctrl-Z: restore the terminal, stop this process, and take the terminal again after `fg`."""
        self._restored.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        self._take()
        self._shown_size = (0, 0)
        self._resized()
