"""Error responses: provider error codes under /accounts, problem+json elsewhere."""

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError

from slipway_simulator.demand import BadTrace
from slipway_simulator.notation import BadFault
from slipway_simulator.queue import ClaimLost


def install(app: FastAPI) -> None:
    app.add_exception_handler(RequestValidationError, _invalid)
    for kind in (BadFault, BadTrace, msgspec.ValidationError, msgspec.DecodeError):
        app.add_exception_handler(kind, _invalid)
    app.add_exception_handler(ClaimLost, _claim_lost)


async def _invalid(request: Request, error: Exception) -> Response:
    reason = _reason(error)
    if request.url.path.startswith("/accounts/"):
        body = {"code": "InvalidRequest", "message": reason}
        return Response(msgspec.json.encode(body), status_code=400, media_type="application/json")
    return _problem(422, "invalid-request", "Invalid request", reason)


async def _claim_lost(request: Request, error: Exception) -> Response:
    return _problem(409, "claim-lost", "The worker has no claim on the task", str(error))


def _problem(status: int, slug: str, title: str, detail: str) -> Response:
    problem = {"type": f"urn:slipway:problem:{slug}", "title": title, "status": status, "detail": detail}
    return Response(msgspec.json.encode(problem), status_code=status, media_type="application/problem+json")


def _reason(error: Exception) -> str:
    if isinstance(error, RequestValidationError):
        return "; ".join(f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors())
    return str(error)
