"""A lease-broker that answers from a table, including the answers of a broker in trouble, and records its requests.

Leases are granted by the code of the real broker, and its pool is a recorded one.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from slipway_api.http.lease_pools import LeasePoolTerms
from tests.support.held_lease import HeldLease
from tests.support.recorded import LEASE_POOL, serving

Answer = tuple[int, Any]
"""Status and body: a value to be sent as JSON, or bytes."""
LEASE = "01981c6e-8f7a-7d53-9c55-2b7f3f9a12cd"
HANDLE = f"{LEASE}:7"
POOL = LEASE_POOL | {"id": "aws-ci", "limit": 50, "limit_in_force": 50, "held": 0, "waiting": 0}
CHANGED = {name: value for name, value in POOL.items() if name in LeasePoolTerms.__struct_fields__} | {
    "pinned": False,
    "result": "updated",
    "revision": 4,
}
"""Answer to a change of the pool."""
ACQUIRE = "POST /lease-pools/aws-ci/leases"
RENEW = f"POST /leases/{LEASE}/renew"
RELEASE = f"POST /leases/{LEASE}/release"
UNLEASED = "POST /lease-pools/aws-ci/unleased"
TOKEN = f"POST /leases/{LEASE}/token"


def lease(at: float = 0.0, **terms: Any) -> Answer:
    """A lease as the broker's own code grants it under these terms, `at` seconds after its grant."""
    return 200, HeldLease(**{"lease_id": LEASE} | terms).answer(at)


def waiting(**changes: Any) -> Answer:
    return 202, {
        "request_id": "r",
        "state": "waiting",
        "position": 3,
        "eta_seconds": 60.0,
        "held_until": "2026-08-01T14:23:07Z",
        "retry_after_seconds": 0.05,
        "reason": "50 of 50 units are held",
        "cause": "full",
    } | changes


def problem(status: int, slug: str, **extra: Any) -> Answer:
    return status, {"type": f"urn:slipway:problem:{slug}", "title": slug, "status": status, "detail": ""} | extra


RELEASED: Answer = (200, {"lease_id": LEASE, "released_units": 1, "remaining": 0})


class LeaseBroker:
    """A fake broker. `answers` holds the answers to each request, one after another; the last one stays."""

    def __init__(self) -> None:
        self.received: list[tuple[str, Any]] = []
        self.answers: dict[str, list[Answer]] = {}
        self.wait_seconds = 0.0  # duration of each request that is delayed
        self.app = FastAPI()

        @self.app.api_route("/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"])
        async def answer(path: str, request: Request) -> Response:
            request_line = f"{request.method} /{path}"
            body = await request.body()
            self.received.append((request_line, await request.json() if body else dict(request.query_params)))
            left = self.answers.get(request_line, [problem(404, "not-found")])
            status, content = left.pop(0) if len(left) > 1 else left[0]
            if body and (await request.json()).get("wait_seconds"):
                await asyncio.sleep(self.wait_seconds)
            return Response(content, status) if isinstance(content, bytes) else JSONResponse(content, status)

    def reset(self) -> None:
        self.received.clear()
        self.wait_seconds = 0.0
        self.answers = {
            ACQUIRE: [lease()],
            RENEW: [lease()],
            RELEASE: [RELEASED],
            "GET /lease-pools": [(200, {"items": [POOL]})],
            UNLEASED: [(200, {"charged": 0, "items": []})],
            TOKEN: [(200, {"token": "secret-of-the-lease"})],
        }

    def count(self, request_line: str) -> int:
        return sum(name == request_line for name, _ in self.received)

    def bodies(self, request_line: str) -> list[Any]:
        return [body for name, body in self.received if name == request_line]


@contextlib.contextmanager
def served() -> Iterator[tuple[LeaseBroker, str]]:
    """The fake broker with its URL."""
    broker = LeaseBroker()
    with serving(broker.app) as url:
        yield broker, url
