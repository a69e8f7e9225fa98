"""The simulator's process: settings, ledger, machines, queue reports and HTTP, put together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import httpx2
import uvicorn
from fastapi import FastAPI

from slipway_common.clock import utc_now
from slipway_common.telemetry import configure_logs
from slipway_common.topics import POOL_DEMAND
from slipway_simulator.http import accounts, admin, problems
from slipway_simulator.http.dropping import DroppableProtocol
from slipway_simulator.ledger import Ledger
from slipway_simulator.reports import Reporter, kafka_producer
from slipway_simulator.runtime import Simulator, spawn
from slipway_simulator.settings import Settings

# Callers keep connections for long; if the server closed them first, a call could be lost for no declared reason.
KEEP_ALIVE_SECONDS = 600
# Hundreds of machines share these connections to the provisioner.
CLIENT = httpx2.Limits(max_connections=64, max_keepalive_connections=64, keepalive_expiry=30.0)
CLIENT_TIMEOUT_SECONDS = 10.0
# What calls in flight get when the process has to stop.
STOP_SECONDS = 3


def build(settings: Settings) -> FastAPI:
    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with httpx2.AsyncClient(limits=CLIENT, timeout=CLIENT_TIMEOUT_SECONDS, trust_env=False) as client:
            simulation = Simulator(Ledger(settings.ledger), client, now)
            app.state.simulator, app.state.reporter = simulation, _reporter(simulation, settings)
            simulation.start()
            reports = spawn(app.state.reporter.run()) if app.state.reporter else None
            yield
            if reports:
                reports.cancel()
                with suppress(asyncio.CancelledError):
                    await reports
            await simulation.stop()

    app = FastAPI(title="Slipway simulator", lifespan=lifespan)
    app.include_router(accounts.router)
    app.include_router(admin.router)
    problems.install(app)
    return app


def _reporter(simulation: Simulator, settings: Settings) -> Reporter | None:
    if not settings.kafka:
        return None
    return Reporter(
        simulation.world,
        simulation.record,
        simulation.changed,
        lambda: kafka_producer(settings.kafka),
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
    uvicorn.Server(served(Settings())).run()


if __name__ == "__main__":
    main()
