"""Classification of failed runs by the scope of their failure. Pure.

The error codes of a cloud appear in texts of its provider: callers pass a table of them. The phrases here are
Terraform's own, and those that mean the same in every cloud.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from slipway_terraform.domain.output import Output, text_error
from slipway_terraform.domain.results import PLUGIN_GONE, PLUGIN_LOST, Diagnostic, Failure, Scope

Codes = Mapping[str, Scope]
"""Scopes by the cloud's error codes, such as InsufficientInstanceCapacity."""

INTERRUPTED: Final = "Interrupted"
DISK_FULL: Final = "DiskFull"
CODE_CHARACTERS_MAX: Final = 60
MESSAGE_CHARACTERS_MAX: Final = 500


class Phrase(msgspec.Struct, frozen=True):
    """A text whose meaning is the same in every cloud. `code` stands for it where there is no code of the cloud."""

    pattern: re.Pattern[str]
    scope: Scope
    code: str


def _phrase(pattern: str, scope: Scope, code: str) -> Phrase:
    return Phrase(re.compile(pattern, re.IGNORECASE), scope, code)


# The plugin's process ended while a call of it was open: Terraform cannot know if the call had an effect.
LOST: Final = re.compile(
    r"Plugin did not respond|rpc error: code = (?:Unavailable|Canceled)|The plugin encountered an error|"
    r"transport is closing|context (?:canceled|deadline exceeded)",
    re.IGNORECASE,
)
FULL: Final = re.compile(r"no space left on device|file too large|disk quota exceeded", re.IGNORECASE)
PHRASES: Final = (
    Phrase(FULL, Scope.NOTHING, DISK_FULL),
    _phrase(r"reattachment process not found", Scope.NOTHING, PLUGIN_GONE),
    _phrase(
        r"failed to instantiate provider|could not load plugin|unsupported plugin method|required plugins are not "
        r"installed|inconsistent dependency lock file|missing required provider|failed to query available provider",
        Scope.CONFIG,
        "ProviderNotInstalled",
    ),
    _phrase(r"too many requests|\bstatus(?: code)?:? ?429\b|\brate ?limit exceeded", Scope.LIMITER, "TooManyRequests"),
    _phrase(r"no valid credential|invalid credentials|\bstatus(?: code)?:? ?401\b", Scope.CREDENTIAL, "Credentials"),
    _phrase(r"\bquota\b[^.]{0,80}\bexceeded|\bexceed(?:s|ed|ing)?\b[^.]{0,80}\bquota\b", Scope.QUOTA, "QuotaExceeded"),
)
# A code as SDKs print it: "error launching: InvalidAMIID.NotFound: the image …".
_WORD: Final = re.compile(r"[A-Za-z][\w.-]*[\w]")
# Terraform's own errors begin with words that are codes elsewhere: "Unsupported argument", "Unsupported attribute".
_PROSE: Final = re.compile(r"[A-Z][a-z]+ [a-z]")
_CODE: Final = re.compile(r"(?:^|[\s:(\"'])([A-Z][a-z0-9]*(?:[A-Z][A-Za-z0-9]*)(?:\.[A-Z][A-Za-z0-9]*)*)(?=: )")


def failure_of(output: Output, exit_code: int, *, interrupted: str, codes: Codes, changes_cloud: bool) -> Failure:
    """Failure of a CLI that exited with `exit_code`, which is negative if a signal ended it.

    `interrupted` is the reason of our own interruption. `changes_cloud`: the command creates or destroys, so that a
    killed run may have had an effect.
    """
    is_lost = any(LOST.search(str(each)) for each in output.errors)
    unresolved = output.latest("apply_start", *(("apply_errored",) if is_lost else ()))
    first = str(output.errors[0]) if output.errors else text_error(output.text)
    if changes_cloud and (unresolved or (exit_code < 0 and not _ended_early(output))):
        code = PLUGIN_LOST if is_lost and not interrupted else INTERRUPTED if interrupted else "Killed"
        message = interrupted or first or f"the CLI was ended by signal {-exit_code}"
        return _failure(Scope.OUTCOME_UNKNOWN, code, message, output, unresolved)
    if interrupted or exit_code < 0:
        message = interrupted or f"the CLI was ended by signal {-exit_code} before it changed anything"
        return _failure(Scope.NOTHING, INTERRUPTED, message, output)
    if is_lost:
        return _failure(Scope.NOTHING, PLUGIN_LOST, first, output)
    for diagnostic in output.errors:
        if known := _known(diagnostic, codes):
            return _failure(known[0], known[1], str(diagnostic), output)
    if known := _known(Diagnostic("error", " ".join(output.text)), codes):
        return _failure(known[0], known[1], first, output)
    if not output.begun and output.errors and all(_is_configuration(each) for each in output.errors):
        return _failure(Scope.CONFIG, "InvalidConfiguration", first, output)
    return _failure(Scope.UNCLASSIFIED, _guess(output.errors), first or f"exit code {exit_code}", output)


def is_disk_full(text: str) -> bool:
    """True if a text contains an operating system's error for a full disk."""
    return FULL.search(text) is not None


def _ended_early(output: Output) -> bool:
    """True if nothing can have been changed: the CLI ended before it began or planned to change a resource."""
    return not output.begun and output.changes is None


def _known(diagnostic: Diagnostic, codes: Codes) -> tuple[Scope, str] | None:
    """Scope and code of a diagnostic: the first code of the caller's table, else the first phrase."""
    text = f"{diagnostic.summary}\n{diagnostic.detail}"
    for match in _WORD.finditer(text):
        if (word := match[0]) in codes and not _PROSE.match(text, match.start()):
            return codes[word], word
    for phrase in PHRASES:
        if phrase.pattern.search(text):
            return phrase.scope, phrase.code
    return None


def _is_configuration(diagnostic: Diagnostic) -> bool:
    """True for an error of Terraform about the files themselves, which names a place and no code of a cloud."""
    return bool(diagnostic.file) and not _CODE.search(f"{diagnostic.summary}\n{diagnostic.detail}")


def _guess(errors: Sequence[Diagnostic]) -> str:
    """Code of an unclassified failure, for people: a text that looks like one, or the start of the first summary."""
    for diagnostic in errors:
        if found := _CODE.search(f"{diagnostic.summary}\n{diagnostic.detail}"):
            return found[1][:CODE_CHARACTERS_MAX]
    return errors[0].summary[:CODE_CHARACTERS_MAX] if errors else "Unknown"


def _failure(scope: Scope, code: str, message: str, output: Output, unresolved: tuple[str, ...] = ()) -> Failure:
    return Failure(
        scope=scope,
        code=code,
        message=message[:MESSAGE_CHARACTERS_MAX],
        diagnostics=output.errors,
        unresolved=unresolved,
    )
