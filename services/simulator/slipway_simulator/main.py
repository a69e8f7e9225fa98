"""Process of the simulator: settings, ledger, machines, demand reports and HTTP."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import httpx2
import msgspec
import uvicorn
from fastapi import Depends, FastAPI

from slipway_api.events.topics import POOL_DEMAND
from slipway_common.base.clock import utc_now
from slipway_common.base.settings import from_environment
from slipway_common.base.tls import client_context
from slipway_common.observability.telemetry import configure_logs
from slipway_common.web import access
from slipway_common.web.paths import PathAsSent
from slipway_simulator import demand
from slipway_simulator.facts import ScenarioLoaded
from slipway_simulator.http import accounts, admin, problems, queue
from slipway_simulator.http.dropping import DroppableProtocol
from slipway_simulator.ledger import Ledger
from slipway_simulator.reports import Reporter, kafka_producer
from slipway_simulator.runtime import Simulator, spawn
from slipway_simulator.scenario import Scenario, decode
from slipway_simulator.settings import Settings

# Longer than callers keep idle connections: if the server closed them first, calls could fail without a fault.
KEEP_ALIVE_SECONDS = 600
# Hundreds of machines share these connections to the provisioner.
CLIENT = httpx2.Limits(max_connections=64, max_keepalive_connections=64, keepalive_expiry=30.0)
CLIENT_TIMEOUT_SECONDS = 10.0
# Time for open calls when the process stops.
STOP_SECONDS = 3


def build(settings: Settings) -> FastAPI:
    """The application. Raises BadScenario if the initial scenario cannot be used."""
    first = read_scenario(settings.scenario) if settings.scenario else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with httpx2.AsyncClient(
            limits=CLIENT, timeout=CLIENT_TIMEOUT_SECONDS, trust_env=False, verify=client_context()
        ) as client:
            simulation = Simulator(Ledger(settings.ledger), client, now)
            app.state.simulator, app.state.reporter = simulation, _reporter(simulation, settings)
            simulation.start()
            if first and not simulation.ledger.size_bytes:
                simulation.record([ScenarioLoaded(at=now(), scenario=first)])
            reports = spawn(app.state.reporter.run()) if app.state.reporter else None
            yield
            if reports:
                reports.cancel()
                with suppress(asyncio.CancelledError):
                    await reports
            await simulation.stop()

    app = FastAPI(
        title="Slipway simulator",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(access.Open("it stands in for clouds and queues, and holds nobody's machines"))],
    )
    app.include_router(accounts.router)
    app.include_router(admin.router)
    app.include_router(queue.router)
    problems.install(app)
    access.check(app)
    app.openapi = partial(problems.document, app)  # type: ignore[method-assign]
    app.add_middleware(PathAsSent)
    return app


class BadScenario(ValueError):
    """The file of the initial scenario does not exist or is not a scenario."""


def read_scenario(path: Path) -> Scenario:
    """Read a scenario from a JSON file in the format of POST /scenario. Raises BadScenario."""
    try:
        loaded = decode(path.read_bytes())
        for source in loaded.pools.values():
            if isinstance(source, demand.Trace):
                demand.read_trace(source)
    except OSError as error:
        raise BadScenario(f"SLIPWAY_SCENARIO={path}: {error.strerror}; name a readable file or unset it") from None
    except (msgspec.MsgspecError, ValueError) as error:  # the latter for a bad fault or trace
        raise BadScenario(f"SLIPWAY_SCENARIO={path}: {error}") from error
    return loaded


def _reporter(simulation: Simulator, settings: Settings) -> Reporter | None:
    if not settings.kafka:
        return None
    return Reporter(
        simulation.world,
        simulation.record,
        simulation.changed,
        lambda: kafka_producer(settings.kafka_access),
        topic=settings.topic_prefix + POOL_DEMAND.name,
        now=now,
    )


def now() -> float:
    """Epoch seconds of this host."""
    return utc_now().timestamp()


def served(settings: Settings) -> uvicorn.Config:
    return uvicorn.Config(
        build(settings),
        host=settings.host,
        port=settings.port,
        http=DroppableProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )


def main() -> None:
    configure_logs("simulator")
    settings = from_environment(Settings)
    try:
        config = served(settings)
    except BadScenario as error:
        sys.exit(str(error))
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
