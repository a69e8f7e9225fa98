"""Process of a plugin: a program in a private folder, of whose output the last lines are kept."""

import shutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from slipway_common.base.process.guard import Guard
from slipway_common.base.process.programs import Program
from slipway_common.base.process.users import ChildUser
from slipway_terraform.domain.redaction import redacted

LINES_KEPT: Final = 50
LINE_CHARACTERS_MAX: Final = 500
LINE_BYTES_MAX: Final = 64 * 1024


class PluginProcess(Program):
    """One process with a private folder, which is removed at its end, and a ring of its last lines of output."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        folder: Path,
        secrets: Sequence[str],
        guard: Guard,
        on_line: Callable[[str], None],
        user: ChildUser | None = None,
    ) -> None:
        super().__init__(
            command,
            environment=environment,
            folder=folder,
            guard=guard,
            on_line=self._on_line,
            on_error=lambda line: self._errors.append(line.decode(errors="replace")),
            line_bytes_max=LINE_BYTES_MAX,
            cleanup=lambda: shutil.rmtree(folder, ignore_errors=True),
            user=user,
        )
        self._secrets, self._read = secrets, on_line
        self._output: deque[str] = deque(maxlen=LINES_KEPT)
        self._errors: deque[str] = deque(maxlen=LINES_KEPT)

    def stderr(self) -> str:
        """Last lines of its standard error, redacted."""
        return self._redacted(self._errors)

    def stdout(self) -> str:
        """Last lines of its standard output, redacted."""
        return self._redacted(self._output)

    def _on_line(self, line: bytes) -> None:
        text = line.decode(errors="replace")
        self._read(text)
        self._output.append(text)

    def _redacted(self, lines: Iterable[str]) -> str:
        """Lines for people. Redacting a line takes longer than reading it, so that only lines to show are redacted."""
        return "\n".join(redacted(line, self._secrets)[:LINE_CHARACTERS_MAX] for line in lines)
