"""Tokens: the secret is shown once, the services' tokens file keeps only its hash."""

import re
from pathlib import Path
from typing import Any, Final

import yaml

from slipway_common.ids import hash_secret, new_secret
from slipway_common.strict_yaml import Invalid, Problem, read

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
SCOPE: Final = re.compile(r"admin|\*|[a-z][a-z-]*:(\*|[a-z][a-z-]*(:[\w*.:/-]+)?)")
# All that any service asks for; capitals stand for what the path or body names.
SCOPES: Final = (
    "declaration:write",
    "demand:write:POOL",
    "signal:write:KIND:ID",
    "pools:write",
    "launch-configs:write",
    "workers:terminate",
    "leases:write:POOL",
    "lease-pools:write",
    "launching:stop",
    "dead-letters:write",
    "positions:write",
    "admin",
)
TARGETED: Final = ("demand:write:", "signal:write:", "leases:write:")


def create(name: str, scopes: list[str], file: Path | None) -> tuple[str, str]:
    """A new secret, and the line that stands for it; with `file` the line is appended there.

    Raises Invalid for a name or scope that no service could read, a file that is no list, a name that it has.
    """
    wrong = [scope for scope in scopes if not SCOPE.fullmatch(scope)]
    problems = [Problem("--scope", f"{scope!r} is not area:verb or area:verb:target") for scope in wrong]
    useless = [scope for scope in scopes if scope not in wrong and not _allows_something(scope)]
    problems += [Problem("--scope", f"{scope!r} allows nothing; scopes are {', '.join(SCOPES)}") for scope in useless]
    if not NAME.fullmatch(name):
        problems.append(Problem("--name", f"{name!r} is not lower-case letters, digits and .-_, at most 63"))
    before = file.read_text() if file is not None and file.exists() else ""
    entries: Any = []
    if before.strip():
        entries = read(before).value
        if not isinstance(entries, list):
            problems.append(Problem("--file", f"{file} holds something other than a list of tokens"))
        elif any(isinstance(entry, dict) and entry.get("name") == name for entry in entries):
            problems.append(Problem("--name", f"{file} has a token {name!r} already"))
    if problems:
        raise Invalid(problems)
    secret = new_secret()
    entry = {"name": name, "sha256": hash_secret(secret), "scopes": scopes}
    line = "- " + yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=10_000).strip()
    if file is not None:
        more = ("" if before.endswith("\n") or not before else "\n") + line + "\n"
        _check(before, more, [*entries, entry])
        with file.open("a") as tokens:
            tokens.write(more)
    return secret, line


def _allows_something(scope: str) -> bool:
    """Whether any service asks for what it covers: a typing error makes a token that is refused everywhere."""
    if scope.endswith("*") and any(known.startswith(scope[:-1]) for known in SCOPES):
        return True
    return scope in SCOPES or scope.startswith(TARGETED)


def _check(before: str, more: str, wanted: list[Any]) -> None:
    """Raises Invalid unless `before` with `more` at its end says what is `wanted`: a list in brackets would not."""
    try:
        if read(before + more).value == wanted:
            return
    except Invalid:
        pass
    reason = "no line can be added here, as to a list in brackets (JSON): write each token on a line of its own, as "
    raise Invalid([Problem("", reason + more.strip(), read(before).line(()))])
