"""Error responses, provider error codes under /accounts and problem+json elsewhere, and how the OpenAPI document shows
them."""

from typing import Any, Final

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from slipway_api.http.simulator import ProviderError
from slipway_common.web import openapi
from slipway_common.web.problem import Problem
from slipway_simulator.demand import BadTrace
from slipway_simulator.http.accounts import ProviderRefusal
from slipway_simulator.notation import BadFault
from slipway_simulator.queue import ClaimLost

# Raised for values that JSON allows and the ledger cannot record, before any fact of the request is recorded.
UNRECORDABLE: Final = (UnicodeEncodeError, OverflowError, RecursionError)
ACCOUNTS: Final = "/accounts/"
REFUSED: Final = {
    "description": "The call is refused, with the code of a provider.",
    "content": {"application/json": {"schema": {"$ref": f"{openapi.REFERENCE}ProviderError"}}},
}


def install(app: FastAPI) -> None:
    app.router.redirect_slashes = False
    app.add_exception_handler(RequestValidationError, _invalid)
    for kind in (BadFault, BadTrace, msgspec.ValidationError, msgspec.DecodeError, *UNRECORDABLE):
        app.add_exception_handler(kind, _invalid)
    app.add_exception_handler(HTTPException, _failed)
    app.add_exception_handler(ClaimLost, _claim_lost)
    app.add_exception_handler(Problem, _invalid)
    app.add_exception_handler(ProviderRefusal, _refused_by_provider)


def document(app: FastAPI) -> dict[str, Any]:
    """OpenAPI document of the simulator."""
    found = openapi.document(app)
    found["components"]["schemas"] |= openapi.struct_schema(ProviderError)["$defs"]
    for path, operations in found["paths"].items():
        for operation in operations.values():
            answers = operation["responses"]
            del answers["503"]  # there is no database
            if path.startswith(ACCOUNTS):
                answers |= {status: REFUSED for status in answers if status >= "4"}
    return found


async def _invalid(request: Request, error: Exception) -> Response:
    return _refused(request, 422, _reason(error))


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _refused(request, error.status_code, str(error.detail))


def _refused(request: Request, status: int, reason: str) -> Response:
    if request.url.path.startswith(ACCOUNTS):
        return _provider_error(400, ProviderError(code="InvalidRequest", message=reason))
    return _problem(status, "invalid-request", "Invalid request", reason)


async def _claim_lost(request: Request, error: Exception) -> Response:
    return _problem(409, "claim-lost", "The worker has no claim on the task", str(error))


async def _refused_by_provider(_: Request, error: Exception) -> Response:
    assert isinstance(error, ProviderRefusal)
    return _provider_error(error.status, error.error)


def _provider_error(status: int, error: ProviderError) -> Response:
    return Response(msgspec.json.encode(error), status_code=status, media_type="application/json")


def _problem(status: int, slug: str, title: str, detail: str) -> Response:
    problem = Problem(status, slug, title, detail)
    return Response(msgspec.json.encode(problem.body), status_code=status, media_type="application/problem+json")


def _reason(error: Exception) -> str:
    if isinstance(error, Problem):
        return error.body.detail
    if isinstance(error, RequestValidationError):
        return "; ".join(f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors())
    if isinstance(error, UNRECORDABLE):
        return f"a text, a number or the depth of the body cannot be recorded ({type(error).__name__})"
    return str(error)
