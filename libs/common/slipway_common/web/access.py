"""Access to routes: bearer tokens with scopes, and the tokens of workers. Every route declares its access once.

Only SHA-256 hashes of tokens are stored, in a file that is reloaded on change (`tokens`). A scope is `read`,
`area:verb` or `area:verb:target`, of some areas `area:verb:owner`; a trailing `*` matches the rest, `admin` allows
everything. The tokens of workers and of leases are in no file: each reaches the own routes of its worker or
lease alone.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from string import Formatter
from typing import Annotated, Any, Final

import msgspec
from fastapi import Depends, FastAPI, Request
from fastapi.routing import APIRoute, iter_route_contexts

from slipway_common.base.ids import LEASE_TOKEN, WORKER_TOKEN, hash_secret
from slipway_common.database.postgres import Connection
from slipway_common.web.limits import Counted, address_of, limits_of
from slipway_common.web.problem import Problem
from slipway_common.web.runtime import database
from slipway_common.web.tokens import Token, Tokens, secret_of

IMPLIED_BY: Final = {"read:metrics": "read", "read": "read:settings", "read:settings": "declaration:write"}
"""Read scopes that another scope includes: who may declare settings may read them."""


def bearer_scheme(name: str, description: str) -> dict[str, dict[str, str]]:
    """Security scheme of an OpenAPI document for tokens of one kind."""
    return {name: {"type": "http", "description": description, "scheme": "bearer"}}


TOKEN_SCHEME: Final = bearer_scheme("token", "Token of the services' tokens file")
WORKER_SCHEME: Final = bearer_scheme("workerToken", "Token that a worker gets at its registration")


def allows(scopes: Iterable[str], wanted: str) -> bool:
    """True if one of the scopes covers `wanted`, or includes it."""
    covered = any(
        scope in ("admin", wanted) or (scope.endswith("*") and wanted.startswith(scope[:-1])) for scope in scopes
    )
    return covered or (wanted in IMPLIED_BY and allows(scopes, IMPLIED_BY[wanted]))


def _matches(patterns: Iterable[str], text: str) -> bool:
    """True if the text is one of the patterns, of which a trailing `*` matches the rest."""
    return any(text == one or (one.endswith("*") and text.startswith(one[:-1])) for one in patterns)


def _may_allow(scopes: Iterable[str], beginning: str) -> bool:
    """True if one of the scopes covers something that begins like this."""
    return any(
        scope == "admin" or scope.startswith(beginning) or (scope.endswith("*") and beginning.startswith(scope[:-1]))
        for scope in scopes
    )


class Caller(msgspec.Struct, frozen=True):
    """Authenticated caller of a route. Unless `allowed`, the route has to ask `permit` about what it is to reach."""

    token: Token
    needed: Sequence[str]
    """Scopes of which one is needed, as declared."""
    allowed: bool = False

    @property
    def name(self) -> str:
        return self.token.name

    def may(self, scope: str) -> bool:
        """True if the token has this scope."""
        return allows(self.token.scopes, scope)

    def owners(self, scope: str) -> tuple[str, ...] | None:
        """Owners for whose things the token has this scope, of which a trailing `*` matches the rest; None: all."""
        if self.may(scope):
            return None
        return tuple(held.removeprefix(f"{scope}:") for held in self.token.scopes if held.startswith(f"{scope}:"))

    def tenant(self, wanted: str | None) -> str:
        """The tenant of a request: by default that of the token's name. Raises Problem 403 for one that the token may
        not name."""
        token = self.token
        if wanted is None or wanted == token.name or self.may("admin") or _matches(token.tenants, wanted):
            return token.name if wanted is None else wanted
        detail = (
            f"{token.name} may not request for tenant {wanted}; leave the tenant out, use a token of that name, or add "
            f"it to `tenants` of {token.name} in the tokens file (`slipway token create --tenant`)"
        )
        raise Problem(403, "foreign-tenant", "The tenant is that of another token", detail)

    def permit_source(self, source: str) -> None:
        """Raise Problem 403 unless the token may report demand of this source."""
        allowed = self.token.sources
        if allowed is not None and not _matches(allowed, source):
            detail = f"{self.token.name} may not report for source {source}; its `sources` in the tokens file say which"
            raise Problem(403, "foreign-source", "The token reports for other sources", detail)

    def permit(self, **parameters: str) -> None:
        """Raise Problem 403 unless the token has a declared scope for these parameters, which are not in the path."""
        wanted = [scope.format(**parameters) for scope in self.needed]
        if not self.allowed and not any(map(self.may, wanted)):
            raise _scope_missing(self.token, wanted)


def _parameters(*texts: str) -> set[str]:
    """Names in braces."""
    return {name for text in texts for _, name, _, _ in Formatter().parse(text) if name}


class Access:
    """Access to a route, as one of its dependencies. `security` is what the OpenAPI document says about it, by the
    `schemes` that it defines."""

    security: Sequence[dict[str, list[str]]] = ()
    schemes: Mapping[str, dict[str, str]] = {}


class Open(Access):
    """Access without a token, for a reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason

    async def __call__(self) -> None:
        pass


class Needs(Access):
    """Access by a token with one of these scopes; names in braces are parameters of the path. Gives its name. Requests
    of a route that is not `limited` are no part of those that a token may send."""

    schemes: Mapping[str, dict[str, str]] = TOKEN_SCHEME

    def __init__(self, *scopes: str, limited: bool = True) -> None:
        self.scopes = scopes
        self.limited = limited
        self.parameters = _parameters(*scopes)
        self.security = [{name: [scope]} for name in TOKEN_SCHEME for scope in scopes]

    async def __call__(self, request: Request) -> Any:
        return self.caller(request).name

    def caller(self, request: Request) -> Caller:
        """The caller. Raises Problem 401 without a known token, 403 if none of the scopes can be met, and 429 if the
        token has sent too many requests."""
        given: dict[str, Any] = request.path_params
        missing = {name: f"{{{name}}}" for name in self.parameters if name not in given}
        wanted = [scope.format(**given | missing) for scope in self.scopes]
        token = _identified(request, wanted)
        if self.limited:
            limits_of(request).take(Counted.TOKEN, token.name)
        if any(allows(token.scopes, scope) for scope in wanted):
            return Caller(token, wanted, allowed=True)
        for name in missing.values():
            if any(_may_allow(token.scopes, scope.partition(name)[0]) for scope in wanted if name in scope):
                return Caller(token, wanted)
        raise _scope_missing(token, wanted)


class NeedsCaller(Needs):
    """Access by a token with one of these scopes. Gives the caller, whom the route asks about parameters that are not
    in the path, and about further scopes."""

    async def __call__(self, request: Request) -> Any:
        return self.caller(request)


OwnerOf = Callable[[Connection, str, str], Awaitable[str | None]]
"""Owner of a thing by its kind and id, empty if nobody owns it; None if there is no such thing."""


class NeedsOwner(Needs):
    """Access by a token with a scope, `pools:write`, or with that scope for the owner of the thing that the path names,
    `pools:write:team-a`. The service's state has its `owner_of`. Gives the name of the caller."""

    def __init__(self, scope: str, kind: str, parameter: str) -> None:
        super().__init__(scope, f"{scope}:{{owner}}")
        self.kind, self.parameter = kind, parameter

    async def __call__(self, request: Request) -> Any:
        caller = self.caller(request)
        if not caller.allowed:
            owner_of: OwnerOf = request.app.state.owner_of
            async with (await database(request)).acquire() as db:
                owner = await owner_of(db, self.kind, request.path_params[self.parameter])
            if owner is not None:  # the route says that there is no such thing
                caller.permit(owner=owner)
        return caller.name


Identify = Callable[[Request, str], Awaitable[None]]
"""Look-up of a worker's token by its hash. Raises Problem unless it is that of the worker in the path."""


class OwnWorker(Access):
    """Access by a worker's own token, whose requests are `counted`. Gives the hash of the token, which the route
    compares with that of the worker in its path; one that this process does not know is looked up first."""

    schemes = WORKER_SCHEME
    security = tuple({name: []} for name in WORKER_SCHEME)

    def __init__(self, identify: Identify, counted: Counted = Counted.WORKER) -> None:
        self.identify = identify
        self.counted = counted

    async def __call__(self, request: Request) -> str:
        secret = secret_of(request.headers)
        if not secret:
            detail = "send the token that the worker got at its registration as 'Authorization: Bearer …'"
            raise Problem(401, "no-token", "The token of the worker is required", detail)
        if not secret.startswith(WORKER_TOKEN):
            detail = "only the worker itself uses this route; `slipway worker` has commands for people"
            raise Problem(403, "foreign-token", "The token does not belong to this worker", detail)
        token_sha256, limits = hash_secret(secret), limits_of(request)
        async with limits.looking_up(token_sha256, address_of(request)) as is_unknown:
            if is_unknown:
                await self.identify(request, token_sha256)
        limits.take(self.counted, token_sha256)
        return token_sha256


READ: Final = Depends(Needs("read"))
READ_SETTINGS: Final = Depends(Needs("read:settings"))
Reader = Annotated[Caller, Depends(NeedsCaller("read"))]
"""Caller that sees settings if it `may("read:settings")`."""


def declared(app: FastAPI) -> Iterator[tuple[str, str, Access]]:
    """Method, path and access of every route. Raises TypeError unless a route declares one, before all else that it
    depends on."""
    for route in iter_route_contexts(app.routes):
        if isinstance(route.original_route, APIRoute):
            path, methods = str(route.path_format), sorted(route.methods or ())
            access, *others = [*(dependency.call for dependency in route.dependant.dependencies), None]
            if not isinstance(access, Access) or any(isinstance(other, Access) for other in others):
                raise TypeError(f"{methods} {path} declares no single access, before all other dependencies")
            if type(access) is Needs and not access.parameters <= _parameters(path):
                raise TypeError(f"{methods} {path} lacks parameters of {access.scopes}; declare NeedsCaller")
            yield from ((method, path, access) for method in methods)


def check(app: FastAPI) -> None:
    """Raise TypeError for a route without a declared access."""
    open_paths(app)


def counted_of_workers(app: FastAPI) -> dict[str, Counted]:
    """Buckets that count requests of workers, by the last part of the path."""
    return {
        path.rpartition("/")[2]: access.counted for _, path, access in declared(app) if isinstance(access, OwnWorker)
    }


def open_paths(app: FastAPI) -> frozenset[str]:
    """Paths of routes that need no token. Raises TypeError for a route without a declared access."""
    return frozenset(path for _, path, access in declared(app) if isinstance(access, Open))


def _identified(request: Request, wanted: Sequence[str]) -> Token:
    """Token of the request. Raises Problem 401 if it is absent or unknown, 403 if it is a worker's or a lease's."""
    secret = secret_of(request.headers)
    if not secret:
        detail = f"send one with the scope {_shown(wanted)} as 'Authorization: Bearer …'; {creating_text(wanted[:1])}"
        raise Problem(401, "no-token", "A token is required", detail, needed=_shown(wanted[:1]))
    if secret.startswith(WORKER_TOKEN):
        detail = "for all else use a token of the services' tokens file"
        raise Problem(403, "worker-token", "The token of a worker reaches its own worker only", detail)
    if secret.startswith(LEASE_TOKEN):
        detail = "it renews and releases this lease, and repeats its request; for all else use a token of the services"
        raise Problem(403, "lease-token", "The token of a lease reaches its own lease only", detail)
    tokens: Tokens = request.app.state.tokens
    token = tokens.find(secret)
    if token is None:
        raise Problem(401, "unknown-token", "Unknown token", "it may have been revoked or belong to another deployment")
    if token.expires_at is not None and token.expired:
        detail = f"{token.name} expired at {token.expires_at:%Y-%m-%d %H:%M:%S} UTC; {creating_text(token.scopes)}"
        raise Problem(401, "expired-token", "The token has expired", detail)
    return token


def creating_text(scopes: Sequence[str]) -> str:
    """Command that creates a token with these scopes."""
    options = " ".join(f"--scope {_shown([scope])}" for scope in scopes)
    return f"`slipway token create --name NAME {options} --file TOKENS` creates one"


def _scope_missing(token: Token, wanted: Sequence[str]) -> Problem:
    detail = f"{token.name} needs {_shown(wanted)}; {creating_text(wanted[:1])}"
    return Problem(403, "scope-missing", "The token lacks a scope", detail, needed=_shown(wanted[:1]))


def _shown(wanted: Sequence[str]) -> str:
    """Scopes in words; a target that only the request would give is any."""
    return " or ".join(scope.partition("{")[0] + "*" * ("{" in scope) for scope in wanted)
