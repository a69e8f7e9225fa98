"""Tokens file of the services: a YAML (or JSON) list of {name, sha256, scopes, …}, with SHA-256 hashes only.

It is reloaded when it changes. A bad entry is refused alone, and locks nobody else out; it is reported by its position,
since text in the wrong field may be a secret.
"""

import hmac
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from starlette.datastructures import Headers

from slipway_api.limits import NAME, Name
from slipway_common.base.clock import utc_now
from slipway_common.base.ids import hash_secret
from slipway_common.base.token_scopes import scope_problem
from slipway_common.declaration.strict_yaml import Invalid, is_empty, read
from slipway_common.observability.telemetry import TOKENS_REFUSED, logger

LOG = logger(__name__)
HASH: Final = re.compile(r"[0-9a-f]{64}")


def secret_of(headers: Headers) -> str:
    """Token that a request was sent with; empty without one."""
    scheme, _, secret = headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the tokens file. Its name is that of the caller in rows and events, as tenant or owner. `tenants` are
    other tenants that it may name, a trailing `*` matches the rest, and `sources` those of demand that it may report
    for [default: any]; `unleased_max` are the units that its starts
    without a lease count against a lease pool [default: the limit]. It is refused from `expires_at` on."""

    name: Name
    sha256: str
    scopes: list[str]
    tenants: list[str] = []
    sources: list[str] | None = None
    unleased_max: Annotated[int, msgspec.Meta(ge=0)] | None = None
    expires_at: datetime | None = None

    @property
    def expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= utc_now()


class Tokens:
    """Tokens of one file. If the file becomes unreadable, the last good content is kept and an error is logged.
    `refused` says why entries of it are left out, one text each."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.refused: tuple[str, ...] = ()
        self._read_at: tuple[int, int, int] = (0, 0, 0)
        self._tokens: list[Token] = []
        self.revoked: frozenset[str] = frozenset()
        """Hashes of tokens of the file that were revoked without it."""
        self._used: dict[str, datetime] = {}

    def find(self, secret: str) -> Token | None:
        """Token with this secret, unless it is revoked. That it was used is recorded later."""
        digest = hash_secret(secret)
        found = None
        for token in self.load():  # no early exit, so the time does not reveal a match
            if hmac.compare_digest(token.sha256, digest):
                found = token
        if found is None or found.sha256 in self.revoked:
            return None
        if not found.expired:
            self._used[found.name] = utc_now()
        return found

    def take_uses(self) -> dict[str, datetime]:
        """Times of the last uses since the call before, by name."""
        taken, self._used = self._used, {}
        return taken

    def put_back(self, uses: dict[str, datetime]) -> None:
        """Return uses that could not be recorded."""
        self._used = uses | self._used

    def named(self, name: str) -> Token | None:
        """Token of this name in the file."""
        return next((token for token in self.load() if token.name == name), None)

    def valid(self, name: str) -> Token | None:
        """Token of this name, unless it is revoked or has expired."""
        token = self.named(name)
        return None if token is None or token.expired or token.sha256 in self.revoked else token

    def load(self) -> list[Token]:
        """Tokens of the file as it is now."""
        if self.path is None:
            return []
        try:
            stat = self.path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if stamp != self._read_at:
                self._read_at = stamp
                self._read(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, Invalid) as error:
            if isinstance(error, OSError):
                self._read_at = (0, 0, 0)  # what prevented the reading may pass without a change of the file
            why = error.strerror if isinstance(error, OSError) and error.strerror else "it is no list of tokens in YAML"
            self._refuse((f"{self.path}: {why}; the last good content stays in force",))
        return self._tokens

    def _read(self, text: str) -> None:
        """Take over the content of a file. Raises Invalid unless it is a list."""
        document = None if is_empty(text) else read(text)
        entries: Any = [] if document is None else document.value
        if not isinstance(entries, list) or (document is not None and document.problems):
            raise Invalid([])
        good: list[Token] = []
        refused = []
        for position, entry in enumerate(entries, 1):
            token, problem = _checked(entry, good)
            if token is not None:
                good.append(token)
            else:
                refused.append(f"{self.path}: token {position}: {problem}")
        self._tokens = good
        self._refuse(tuple(refused))

    def _refuse(self, refused: tuple[str, ...]) -> None:
        if refused != self.refused:
            for text in refused:
                LOG.error("the tokens file is not used as it is", problem=text)
        self.refused = refused
        TOKENS_REFUSED.set(len(refused))


def _checked(entry: Any, known: list[Token]) -> tuple[Token | None, str]:
    """A token of an entry, or the problem with it and its remedy."""
    name = entry.get("name") if isinstance(entry, dict) else None
    if isinstance(name, str) and (wrong := "is empty" if not name else NAME.problem(name)):
        return None, f"the name {wrong}; choose another one"
    try:
        token = msgspec.convert(entry, Token)
    except msgspec.ValidationError as error:
        # Its text may repeat a value, which may be a secret.
        _, found, place = str(error).partition(" - at `$")
        where = place.strip("`.") if found else ""
        return None, f"{where or 'it'} is not what an entry has; write {', '.join(Token.__struct_fields__)}"
    return (None, problem) if (problem := next(_problems(token, known), "")) else (_aware(token), "")


def _problems(token: Token, known: list[Token]) -> Iterator[str]:
    if not HASH.fullmatch(token.sha256):
        yield "sha256 is no hash in 64 lower-case hexadecimal digits; write what `slipway token create` prints"
    for number, scope in enumerate(token.scopes, 1):
        if problem := scope_problem(scope):
            yield f"scope {number} {problem}"
    if any(other.name == token.name for other in known):
        yield "an earlier token has its name; choose another one"
    if any(other.sha256 == token.sha256 for other in known):
        yield "an earlier token has its hash; create another one"


def _aware(token: Token) -> Token:
    """The token with a time zone, UTC if none is written."""
    if token.expires_at is None or token.expires_at.tzinfo is not None:
        return token
    return msgspec.structs.replace(token, expires_at=token.expires_at.replace(tzinfo=UTC))
