"""Access tokens: the secret is shown once, the services' tokens file holds only its hash."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from slipway_common.base.ids import hash_secret, new_secret
from slipway_common.declaration.strict_yaml import DocumentProblem, Invalid, read

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
SCOPE: Final = re.compile(r"\*|[a-z][a-z-]*(\*|:(\*|[a-z][a-z-]*(:[\w*.:/-]+)?))?")
# All scopes that services require; capitals stand for IDs of the request.
SCOPES: Final = (
    "read",
    "read:settings",
    "declaration:write",
    "demand:write:POOL",
    "signal:write:KIND:ID",
    "pools:write",
    "launch-configs:write",
    "workers:terminate",
    "workers:state",
    "state-keys:write",
    "accounts:write",
    "leases:write:POOL",
    "throttles:write:POOL",
    "lease-pools:write",
    "launching:stop",
    "restores:write",
    "dead-letters:write",
    "positions:write",
    "admin",
)
TARGETED: Final = ("demand:write:", "signal:write:", "leases:write:", "throttles:write:")


def create(name: str, scopes: list[str], file: Path | None, *, tenants: Sequence[str] = ()) -> tuple[str, str]:
    """Create a token; returns the secret and its line for the tokens file, which is appended to `file` if given.

    Raises Invalid for an invalid name or scope, a file that is not a list, and a name that the file already has.
    """
    problems = [
        DocumentProblem("--scope", f"{scope!r} allows nothing; scopes are {', '.join(SCOPES)}")
        for scope in scopes
        if not (SCOPE.fullmatch(scope) and _allows_something(scope))
    ]
    if not NAME.fullmatch(name):
        problems.append(
            DocumentProblem("--name", f"{name!r} is invalid: use at most 63 lower-case letters, digits, dots, - and _")
        )
    before = file.read_text() if file is not None and file.exists() else ""
    entries: Any = []
    if before.strip():
        entries = read(before).value
        if not isinstance(entries, list):
            problems.append(DocumentProblem("--file", f"{file} is not a list of tokens"))
        elif any(isinstance(entry, dict) and entry.get("name") == name for entry in entries):
            problems.append(DocumentProblem("--name", f"{file} already has a token {name!r}"))
    if problems:
        raise Invalid(problems)
    secret = new_secret()
    entry: dict[str, Any] = {"name": name, "sha256": hash_secret(secret), "scopes": scopes}
    if tenants:
        entry["tenants"] = [*tenants]
    line = "- " + yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=10_000).strip()
    if file is not None:
        more = ("" if before.endswith("\n") or not before else "\n") + line + "\n"
        _check(before, more, [*entries, entry])
        with file.open("a") as tokens:
            tokens.write(more)
    return secret, line


def _allows_something(scope: str) -> bool:
    """True if the scope covers anything that a service requires: a typo would create a useless token."""
    if scope.endswith("*") and any(known.startswith(scope[:-1]) for known in SCOPES):
        return True
    return scope in SCOPES or scope.startswith(TARGETED)


def _check(before: str, more: str, wanted: list[Any]) -> None:
    """Raise Invalid unless `before` plus `more` reads as `wanted`: a list in brackets would not."""
    try:
        if read(before + more).value == wanted:
            return
    except Invalid:
        pass
    reason = "no line can be appended to this list, as it is in brackets (JSON); write one token per line, such as "
    raise Invalid([DocumentProblem("", reason + more.strip(), read(before).line(()))])
