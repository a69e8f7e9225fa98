"""HTTP API errors as application/problem+json (RFC 9457). A refused request changes nothing."""

from typing import Any, Final

import asyncpg
import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from slipway_api import problems
from slipway_common.base.errors import Transient
from slipway_common.base.ids import new_id
from slipway_common.database import outage
from slipway_common.database.postgres import is_infrastructure
from slipway_common.observability.telemetry import logger

LOG = logger(__name__)
MEDIA_TYPE: Final = "application/problem+json"
BODY_BYTES_MAX: Final = 1_000_000
NO_ROUTE: Final = "no such route; a path has no slash at its end, and an id in it is percent-encoded: write %2F for /"
BY_VALIDATOR: Final = "Value error, "
"""What pydantic writes before the message of a validator."""
# Raised for text that JSON allows but no column can store.
UNSTORABLE: Final = (asyncpg.CharacterNotInRepertoireError, asyncpg.UntranslatableCharacterError)


class Problem(Exception):
    """An HTTP error with a stable `slug` (last part of `type`), a detail for people, and further fields of
    problems.Problem for programs."""

    def __init__(self, status: int, slug: str, title: str, detail: str = "", **extra: Any) -> None:
        super().__init__(f"{title}: {detail}" if detail else title)
        self.status = status
        self.slug = slug
        self.body = problems.Problem(
            type=problems.PREFIX + slug, title=title, status=status, detail=detail, request_id=new_id(), **extra
        )


def invalid_part(where: str, reason: str) -> Problem:
    """Refusal of a request for a part of it that is not valid."""
    errors = [problems.InvalidPart(where=where, reason=reason)]
    return Problem(422, "invalid-request", "The request is not valid", f"{where}: {reason}", errors=errors)


def answer(problem: Problem) -> Response:
    after_seconds = problem.body.retry_after_seconds or (1 if problem.status == 503 else None)
    headers = {} if after_seconds is None else {"Retry-After": str(after_seconds)}
    return Response(msgspec.json.encode(problem.body), problem.status, headers, media_type=MEDIA_TYPE)


class BodyLimit:
    """Middleware that refuses larger bodies before they are parsed, with or without Content-Length.

    The maximum is BODY_BYTES_MAX, or that of the path in `app.state.body_bytes_max`.
    """

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        by_path = getattr(scope["app"].state, "body_bytes_max", {})
        maximum = by_path.get(scope["path"], BODY_BYTES_MAX)
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        if not announced.isdigit() or int(announced) > maximum:
            await answer(too_large(maximum))(scope, receive, send)
            return
        read = 0

        async def counted() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > maximum:
                raise _TooLarge
            return message

        try:
            await self.app(scope, counted, send)
        except _TooLarge:
            await answer(too_large(maximum))(scope, receive, send)


class _TooLarge(Exception):
    pass


def too_large(maximum: int) -> Problem:
    """Refusal of a body with more bytes than this."""
    return Problem(413, "body-too-large", "The body is too large", f"at most {maximum} bytes are accepted")


def _allowed(request: Request) -> set[str]:
    """Methods of the path of a request, by all of its routes: the error has those of the first one alone. HEAD is
    answered as GET is."""
    path = request.scope["path"]
    routes = iter_route_contexts(request.app.routes)
    found = {method for route in routes if route.path_regex.match(path) for method in route.methods or ()}
    return found | {"HEAD"} if "GET" in found else found


def install(app: FastAPI) -> None:
    """Install handlers that return every error of the app as a problem, also a slash too many at the end of a path: a
    redirect would tell callers without a token which routes there are."""
    app.add_middleware(BodyLimit)
    app.router.redirect_slashes = False

    @app.exception_handler(Problem)
    async def _(_: Request, problem: Problem) -> Response:
        return answer(problem)

    @app.exception_handler(HTTPException)
    async def _(request: Request, error: HTTPException) -> Response:
        slug = {404: "not-found", 405: "method-not-allowed"}.get(error.status_code, "http")
        hint = NO_ROUTE if error.status_code == 404 else ""
        refusal = answer(Problem(error.status_code, slug, str(error.detail), hint))
        if error.status_code == 405:
            refusal.headers["Allow"] = ", ".join(sorted(_allowed(request)))
        return refusal

    @app.exception_handler(RequestValidationError)
    async def _(_: Request, error: RequestValidationError) -> Response:
        errors = [
            problems.InvalidPart(
                where="/".join(map(str, problem["loc"])), reason=problem["msg"].removeprefix(BY_VALIDATOR)
            )
            for problem in error.errors()
        ]
        first = f"{errors[0].where}: {errors[0].reason}" if errors else ""
        return answer(Problem(422, "invalid-request", "The request is not valid", first, errors=errors))

    @app.exception_handler(ClientDisconnect)
    async def _(_: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=400)  # to nobody: the client has left in the middle of its body

    async def failed(_: Request, error: Exception) -> Response:
        # The driver's error for a value that no column can store is also a ValueError.
        by_driver = isinstance(error, asyncpg.InterfaceError) and isinstance(error, ValueError)
        if by_driver or isinstance(error, UNSTORABLE):
            title = "A text or a value of the request cannot be stored"
            return answer(Problem(422, "invalid-text", title, str(error)))
        if is_infrastructure(error):
            outage.warn(LOG, "request failed: infrastructure unavailable", error)
            detail = "the database or the broker is unavailable; nothing was changed, retry the request"
            return answer(Problem(503, "unavailable", "Temporarily unavailable", detail))
        problem = Problem(500, "internal", "Internal error", "the service's log has the cause, under this request_id")
        LOG.error("request failed", request_id=problem.body.request_id, exc_info=error)
        return answer(problem)

    # The server adds a traceback to every error that only the last of these covers.
    for kind in (*UNSTORABLE, OSError, asyncpg.PostgresError, asyncpg.InterfaceError, Transient, Exception):
        app.add_exception_handler(kind, failed)
