"""Who may write: bearer tokens with scopes. Only SHA-256 hashes are stored, in a file that is read again on change.

The file is a YAML (or JSON) list of {name, sha256, scopes}. A scope is `area:verb` or `area:verb:target`; a trailing
`*` matches the rest, `admin` allows everything.
"""

import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml
from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from slipway_common.ids import hash_secret
from slipway_common.problem import Problem
from slipway_common.telemetry import logger

LOG = logger(__name__)
_bearer = HTTPBearer(auto_error=False)
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    sha256: str
    scopes: list[str]


class Tokens:
    """The tokens of one file. A file that turns unreadable keeps the last good content and is reported."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._read_at: tuple[int, int] = (0, 0)
        self._tokens: list[Token] = []

    def find(self, secret: str) -> Token | None:
        digest = hash_secret(secret)
        found = None
        for token in self._load():  # constant time over the list: no early exit
            if hmac.compare_digest(token.sha256, digest):
                found = token
        return found

    def _load(self) -> list[Token]:
        if self.path is None:
            return []
        try:
            stat = self.path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size)
            if stamp != self._read_at:
                self._tokens = msgspec.convert(yaml.safe_load(self.path.read_text()) or [], list[Token])
                self._read_at = stamp
        except (OSError, ValueError, yaml.YAMLError) as error:
            LOG.error("tokens cannot be read; the last good ones count", path=str(self.path), error=str(error))
        return self._tokens


def allows(scopes: list[str], wanted: str) -> bool:
    """Whether one of the scopes covers `wanted`."""
    return any(
        scope in ("admin", wanted) or (scope.endswith("*") and wanted.startswith(scope[:-1])) for scope in scopes
    )


def bearer(credentials: HTTPAuthorizationCredentials | None) -> str:
    """The secret of the Authorization header; a Problem 401 without one."""
    if credentials is None:
        raise Problem(
            401,
            "no-token",
            "A token is needed",
            "send it as 'Authorization: Bearer …'; `slipway token create` makes one",
        )
    return credentials.credentials


def identify(request: Request, credentials: HTTPAuthorizationCredentials | None) -> Token:
    """Whose request it is; a Problem 401 without a token, or with one that is not known."""
    tokens: Tokens = request.app.state.tokens
    token = tokens.find(bearer(credentials))
    if token is None:
        raise Problem(401, "unknown-token", "The token is not known", "it may be revoked or of another deployment")
    return token


def permit(token: Token, scope: str) -> None:
    """A Problem 403 unless the token has `scope`."""
    if not allows(token.scopes, scope):
        raise Problem(403, "scope-missing", "The token lacks a scope", f"{token.name} needs {scope}", needed=scope)


def check(request: Request, credentials: HTTPAuthorizationCredentials | None, scope: str) -> str:
    """The caller's name if its token has `scope`; else a Problem 401 or 403."""
    token = identify(request, credentials)
    permit(token, scope)
    return token.name


def require(scope: str) -> Callable[..., Awaitable[str]]:
    """A FastAPI dependency: the caller's name. `{name}` in the scope is filled from the path."""

    async def dependency(request: Request, credentials: Credentials) -> str:
        parameters: dict[str, Any] = request.path_params
        return check(request, credentials, scope.format(**parameters))

    return dependency
