"""Access tokens: the secret is shown once, the services' tokens file holds only its hash."""

import contextlib
import fcntl
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import yaml

from slipway_common.base.ids import hash_secret, new_secret
from slipway_common.base.token_scopes import SCOPES, scope_problem
from slipway_common.declaration.strict_yaml import Document, DocumentProblem, Invalid, is_empty, read

NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
MODE: Final = 0o640


def create(name: str, scopes: list[str], file: Path | None, **limits: object) -> tuple[str, str]:
    """Create a token; returns the secret and its line for the tokens file, which is appended to `file` if given. Its
    readers see it before or after, and never a part of it. `limits` are its further fields, of which empty ones are
    left out.

    Raises Invalid for an invalid name or scope, a file that is not a list, and a name that the file already has.
    """
    problems = [
        DocumentProblem("--scope", f"{scope!r} allows nothing; scopes are {', '.join(SCOPES)}")
        for scope in scopes
        if scope_problem(scope)
    ]
    if not NAME.fullmatch(name):
        problems.append(
            DocumentProblem("--name", f"{name!r} is invalid: use at most 63 lower-case letters, digits, dots, - and _")
        )
    secret = new_secret()
    entry: dict[str, object] = {"name": name, "sha256": hash_secret(secret), "scopes": scopes}
    entry |= {field: value for field, value in limits.items() if value}
    line = "- " + yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=10_000).strip()
    with _locked(file) if file else contextlib.nullcontext():
        before = file.read_text() if file and file.exists() else ""
        entries = [] if is_empty(before) else read(before).value
        if not isinstance(entries, list):
            problems.append(DocumentProblem("--file", f"{file} is not a list of tokens"))
        elif any(isinstance(known, dict) and known.get("name") == name for known in entries):
            problems.append(DocumentProblem("--name", f"{file} already has a token {name!r}"))
        if problems:
            raise Invalid(problems)
        if file is None:
            return secret, line
        more = ("" if before.endswith("\n") or not before else "\n") + line + "\n"
        _check(before, more, [*entries, entry])
        _replace(file, before + more)
    return secret, line


def revoke(name: str, file: Path) -> None:
    """Remove a token from the tokens file, whose other lines stay as they are. Raises Invalid if it has no such token,
    or cannot be edited line by line."""
    with _locked(file):
        text = file.read_text()
        document = read("[]" if is_empty(text) else text)
        entries = document.value if isinstance(document.value, list) else []
        places = [at for at, known in enumerate(entries) if isinstance(known, dict) and known.get("name") == name]
        if not places:
            known = ", ".join(str(entry.get("name")) for entry in entries if isinstance(entry, dict))
            raise Invalid([DocumentProblem("NAME", f"{file} has no token {name!r}; it has {known or 'none'}")])
        after = "".join(_without(text, document, places[0], len(entries)))
        wanted = [entry for at, entry in enumerate(entries) if at != places[0]]
        if ([] if is_empty(after) else read(after).value) != wanted:
            reason = "the token cannot be cut out of this list, as it is in brackets (JSON); write one token per line"
            raise Invalid([DocumentProblem("", reason, document.line((places[0],)))])
        _replace(file, after)


def _without(text: str, document: Document, place: int, number: int) -> Iterator[str]:
    """Lines of a list without those of one entry."""
    lines = text.splitlines(keepends=True)
    first = (document.line((place,)) or 1) - 1
    end = (document.line((place + 1,)) or len(lines) + 1) - 1 if place + 1 < number else len(lines)
    yield from lines[:first]
    yield from lines[end:]


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Exclude other commands that edit files of this folder."""
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _replace(file: Path, text: str) -> None:
    """Replace a file at once, with the mode and the owner that it had."""
    had = file.stat() if file.exists() else None
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    new = Path(name)
    try:
        with os.fdopen(handle, "w") as written:
            written.write(text)
            written.flush()
            os.fsync(written.fileno())
        new.chmod(MODE if had is None else had.st_mode & 0o7777)
        if had is not None and (had.st_uid, had.st_gid) != (os.geteuid(), os.getegid()):
            os.chown(new, had.st_uid, had.st_gid)
        new.replace(file.resolve())
    finally:
        new.unlink(missing_ok=True)


def _check(before: str, more: str, wanted: list[object]) -> None:
    """Raise Invalid unless `before` plus `more` reads as `wanted`: a list in brackets would not."""
    try:
        if read(before + more).value == wanted:
            return
    except Invalid:
        pass
    reason = "no line can be appended to this list, as it is in brackets (JSON); write one token per line, such as "
    raise Invalid([DocumentProblem("", reason + more.strip(), read(before).line(()))])
