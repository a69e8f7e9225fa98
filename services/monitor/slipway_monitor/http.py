"""HTTP of the monitor: its probes, and its metrics by token."""

from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, FastAPI
from fastapi.responses import PlainTextResponse

from slipway_api.http.service import Readiness
from slipway_common.web import access, limits, problem, routes
from slipway_common.web.access import Open
from slipway_common.web.answers import Answer, Unavailable, Untyped
from slipway_common.web.conditional import Conditional
from slipway_common.web.limits import CallerLimits
from slipway_common.web.listening import ForHost, divided
from slipway_common.web.router import Router
from slipway_common.web.tokens import Tokens
from slipway_monitor.settings import Settings

REQUESTS_PER_SECOND_MAX = 10.0
"""Requests of one token: a scraper sends one every few seconds."""


def app(settings: Settings, unready: Callable[[], list[str]]) -> FastAPI:
    """The routes. `unready` says why nothing can be reported now."""
    health = Router(include_in_schema=False, dependencies=[Depends(Open("probes have no token"))])

    @health.get("/livez")
    async def livez() -> Annotated[PlainTextResponse, Untyped("text, of which probes read the status alone")]:
        return PlainTextResponse("ok")

    @health.get("/readyz")
    async def readyz() -> Answer[Readiness] | Unavailable[Readiness]:
        readiness = Readiness(ready=not (reasons := unready()), reasons=reasons)
        return Unavailable(readiness) if reasons else Answer(readiness)

    made = FastAPI(title="Slipway monitor", openapi_url=None, docs_url=None, redoc_url=None)
    made.state.tokens = Tokens(settings.tokens_file)
    made.state.limits = CallerLimits(REQUESTS_PER_SECOND_MAX)
    problem.install(made)
    made.add_middleware(Conditional)
    if allowed := divided(settings.allowed_hosts):
        made.add_middleware(ForHost, allowed=allowed)
    limits.install(made)
    made.include_router(health)
    made.include_router(routes.measured)
    made.state.open_paths = access.open_paths(made)
    made.state.counted_of_workers = access.counted_of_workers(made)
    return made
