"""What a caller is told when a request cannot be read: providers' codes for accounts, problem+json for operators."""

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError

from slipway_simulator.demand import BadTrace
from slipway_simulator.faults import BadFault


def install(app: FastAPI) -> None:
    app.add_exception_handler(RequestValidationError, _invalid)
    for kind in (BadFault, BadTrace, msgspec.ValidationError, msgspec.DecodeError):
        app.add_exception_handler(kind, _invalid)


async def _invalid(request: Request, error: Exception) -> Response:
    reason = _reason(error)
    if request.url.path.startswith("/accounts/"):
        body = {"code": "InvalidRequest", "message": reason}
        return Response(msgspec.json.encode(body), status_code=400, media_type="application/json")
    problem = {
        "type": "urn:slipway:problem:invalid-request",
        "title": "Invalid request",
        "status": 422,
        "detail": reason,
    }
    return Response(msgspec.json.encode(problem), status_code=422, media_type="application/problem+json")


def _reason(error: Exception) -> str:
    if isinstance(error, RequestValidationError):
        return "; ".join(f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors())
    return str(error)
