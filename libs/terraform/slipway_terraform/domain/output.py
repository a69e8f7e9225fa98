"""Output of the CLI, line by line: progress, diagnostics and changes. Pure.

Lines are those of `-json` (https://developer.hashicorp.com/terraform/internals/machine-readable-ui). Code snippets are
left out, since the generated root module is one line with every secret in it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from slipway_terraform.domain.results import Changes, Diagnostic
from slipway_terraform.domain.sensitive import message as shown

DIAGNOSTICS_MAX: Final = 50
_FRAME: Final = " │╷╵|\t\r"
SUMMARY_CHARACTERS_MAX: Final = 400


class Output:
    """Accumulated output of one CLI process. `secrets` are redacted from every text."""

    def __init__(self, secrets: tuple[str, ...] = ()) -> None:
        self.secrets = secrets
        self.diagnostics: list[Diagnostic] = []
        self.changes: Changes | None = None
        self.begun: dict[str, str] = {}
        """Latest hook (apply_start, apply_complete, apply_errored) of resources whose change began, by address."""
        self.emergency_state: bytes | None = None
        """State that the CLI could write to no file."""
        self.text: list[str] = []
        """Last lines that are not JSON."""

    def feed(self, line: bytes) -> None:
        """Take one line; one that is not a JSON object is kept as text."""
        try:
            message = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            message = None
        if not isinstance(message, dict):
            text = shown(line.decode(errors="replace"), self.secrets)
            self.text = [*self.text, text][-DIAGNOSTICS_MAX:]
            return
        match message.get("type"):
            case "diagnostic":
                self._diagnostic(message.get("diagnostic"))
            case "change_summary":
                self._changes(message.get("changes"))
            case "apply_start" | "apply_complete" | "apply_errored" as hook:
                self._progress(message, hook)
        if message.get("type") == "log" and isinstance(message.get("state"), dict):
            self.emergency_state = msgspec.json.encode(message["state"])

    def latest(self, *hooks: str) -> tuple[str, ...]:
        """Addresses of resources of which one of these hooks is the latest, in the order in which they began."""
        return tuple(address for address, hook in self.begun.items() if hook in hooks)

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        return tuple(each for each in self.diagnostics if each.severity == "error")

    def _diagnostic(self, given: Any) -> None:
        if not isinstance(given, dict) or len(self.diagnostics) == DIAGNOSTICS_MAX:
            return
        place = given.get("range")
        self.diagnostics.append(
            Diagnostic(
                severity=str(given.get("severity", "error")),
                summary=shown(str(given.get("summary", "")), self.secrets, SUMMARY_CHARACTERS_MAX),
                detail=shown(str(given.get("detail", "")), self.secrets),
                address=str(given.get("address", "")),
                file=str(place.get("filename", "")) if isinstance(place, dict) else "",
            )
        )

    def _changes(self, given: Any) -> None:
        if isinstance(given, dict):
            self.changes = Changes(*(int(given.get(name, 0)) for name in ("add", "change", "remove")))

    def _progress(self, message: Mapping[str, Any], hook: str) -> None:
        given = message.get("hook")
        resource = given.get("resource") if isinstance(given, dict) else None
        if isinstance(resource, dict):
            self.begun[str(resource.get("addr", ""))] = hook


def text_error(lines: Sequence[str]) -> str:
    """Errors in output for people, each once, on one line without frames; else the last lines."""
    plain = [line.strip(_FRAME) for line in lines]
    errors: list[list[str]] = []
    for line in plain:
        if line.startswith("Error"):
            errors.append([])
        if errors and line:
            errors[-1].append(line)
    texts = [" ".join(error) for error in errors] or [line for line in plain[-3:] if line]
    return " ".join(dict.fromkeys(texts))  # `get` prints its errors twice
