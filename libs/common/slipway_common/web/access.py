"""Authorization by bearer tokens with scopes. Only SHA-256 hashes are stored, in a file that is reloaded on change.

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

from slipway_common.base.ids import hash_secret
from slipway_common.observability.telemetry import logger
from slipway_common.web.problem import Problem

LOG = logger(__name__)
_bearer = HTTPBearer(auto_error=False)
Credentials = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


class Token(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the tokens file."""

    name: str
    sha256: str
    scopes: list[str]


class Tokens:
    """Tokens of one file. If the file becomes unreadable, the last good content is kept and an error is logged."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._read_at: tuple[int, int] = (0, 0)
        self._tokens: list[Token] = []

    def find(self, secret: str) -> Token | None:
        digest = hash_secret(secret)
        found = None
        for token in self._load():  # no early exit, so the time does not reveal a match
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
            LOG.error(
                "tokens file cannot be read, keeping the last good content", path=str(self.path), error=str(error)
            )
        return self._tokens


def allows(scopes: list[str], wanted: str) -> bool:
    """True if one of the scopes covers `wanted`."""
    return any(
        scope in ("admin", wanted) or (scope.endswith("*") and wanted.startswith(scope[:-1])) for scope in scopes
    )


def bearer(credentials: HTTPAuthorizationCredentials | None) -> str:
    """Secret of the Authorization header; raises Problem 401 if it is absent."""
    if credentials is None:
        raise Problem(
            401,
            "no-token",
            "A token is required",
            "send it as 'Authorization: Bearer …'; `slipway token create` creates one",
        )
    return credentials.credentials


def identify(request: Request, credentials: HTTPAuthorizationCredentials | None) -> Token:
    """Token of the request; raises Problem 401 if it is absent or unknown."""
    tokens: Tokens = request.app.state.tokens
    token = tokens.find(bearer(credentials))
    if token is None:
        raise Problem(401, "unknown-token", "Unknown token", "it may have been revoked or belong to another deployment")
    return token


def permit(token: Token, scope: str) -> None:
    """Raise Problem 403 unless the token has `scope`."""
    if not allows(token.scopes, scope):
        raise Problem(403, "scope-missing", "The token lacks a scope", f"{token.name} needs {scope}", needed=scope)


def check(request: Request, credentials: HTTPAuthorizationCredentials | None, scope: str) -> str:
    """Name of the caller if its token has `scope`; raises Problem 401 or 403 otherwise."""
    token = identify(request, credentials)
    permit(token, scope)
    return token.name


def require(scope: str) -> Callable[..., Awaitable[str]]:
    """FastAPI dependency that returns the caller's name. `{name}` in the scope is replaced by the path parameter."""

    async def dependency(request: Request, credentials: Credentials) -> str:
        parameters: dict[str, Any] = request.path_params
        return check(request, credentials, scope.format(**parameters))

    return dependency
