"""Process of the stand-in for EC2: settings, ledger, moto, machines and HTTP."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import Depends, FastAPI

from slipway_common.base.clock import utc_now
from slipway_common.base.settings import EnvironmentSettings, from_environment
from slipway_common.observability.telemetry import configure_logs
from slipway_common.web import access
from slipway_common.web.paths import PathAsSent
from slipway_local.ec2 import http
from slipway_local.ec2.facts import DECODER
from slipway_local.ec2.history import History
from slipway_local.ec2.machines import Machines
from slipway_local.ec2.moto import Moto
from slipway_local.ec2.runtime import StandIn
from slipway_local.servers.ports import free_ports
from slipway_simulator.fact_file import FactFile
from slipway_simulator.http.dropping import DroppableProtocol
from slipway_simulator.main import KEEP_ALIVE_SECONDS, STOP_SECONDS


class Settings(EnvironmentSettings):
    """Settings of the stand-in. Everything about a run is part of its scenario."""

    host: str = "127.0.0.1"
    port: int = 7305
    # Ledger file. A run cannot be continued, because moto persists nothing.
    ledger: Path = Path("ec2.jsonl")
    # Folder of moto's log, and of a folder per machine with its console.
    folder: Path = Path("ec2")


def build(settings: Settings) -> FastAPI:
    """The application."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        log = settings.folder / "moto.log"
        moto = Moto(free_ports(1)[0], log, os.environ)
        machines = Machines(settings.folder / "machines", f"http://{settings.host}:{settings.port}")
        history = History(FactFile(settings.ledger, DECODER), now)
        playing = app.state.stand_in = StandIn(history, moto, machines)
        await moto.start()
        playing.lives.start()
        yield
        await playing.stop()
        await moto.stop()

    app = FastAPI(
        title="Slipway's stand-in for EC2",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(access.Open("it stands in for a cloud, and its machines are processes of this host"))],
    )
    http.install(app)
    access.check(app)
    app.add_middleware(PathAsSent)
    return app


def now() -> float:
    """Epoch seconds of this host."""
    return utc_now().timestamp()


def main() -> None:
    configure_logs("ec2")
    settings = from_environment(Settings)
    config = uvicorn.Config(
        build(settings),
        host=settings.host,
        port=settings.port,
        http=DroppableProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        date_header=False,  # that of an answer is of the cloud's clock
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
