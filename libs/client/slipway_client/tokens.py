"""Tokens: the secret is shown once, the services' tokens file keeps only its hash."""

import re
from pathlib import Path
from typing import Final

import yaml

from slipway_common.ids import hash_secret, new_secret
from slipway_common.strict_yaml import Invalid, Problem, read

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
SCOPE: Final = re.compile(r"admin|\*|[a-z][a-z-]*:(\*|[a-z][a-z-]*(:[\w*.:/-]+)?)")


def create(name: str, scopes: list[str], file: Path | None) -> tuple[str, str]:
    """A new secret, and the line that stands for it; with `file` the line is appended there.

    Raises Invalid for a name or scope that no service could read, a file that is no list, a name that it has.
    """
    wrong = [scope for scope in scopes if not SCOPE.fullmatch(scope)]
    problems = [Problem("--scope", f"{scope!r} is not area:verb or area:verb:target") for scope in wrong]
    if not NAME.fullmatch(name):
        problems.append(Problem("--name", f"{name!r} is not lower-case letters, digits and .-_, at most 63"))
    before = file.read_text() if file is not None and file.exists() else ""
    if before.strip():
        entries = read(before).value
        if not isinstance(entries, list):
            problems.append(Problem("--file", f"{file} holds something other than a list of tokens"))
        elif any(isinstance(entry, dict) and entry.get("name") == name for entry in entries):
            problems.append(Problem("--name", f"{file} has a token {name!r} already"))
    if problems:
        raise Invalid(problems)
    secret = new_secret()
    line = _line(name, secret, scopes)
    if file is not None:
        with file.open("a") as tokens:
            tokens.write(("" if before.endswith("\n") or not before else "\n") + line + "\n")
    return secret, line


def _line(name: str, secret: str, scopes: list[str]) -> str:
    entry = {"name": name, "sha256": hash_secret(secret), "scopes": scopes}
    return "- " + yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=10_000).strip()
