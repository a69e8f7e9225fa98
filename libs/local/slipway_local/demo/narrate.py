"""Narration of a demo: the live screen on a terminal, otherwise one line a second and one per event."""

import os
import signal
from datetime import UTC, datetime

import msgspec

from slipway_api.http.simulator import SimulatorState
from slipway_client.cli import top
from slipway_client.cli.watching import Fetch, Watch, ZonesOut, fetcher
from slipway_client.transport.http import Api
from slipway_client.view.snapshot import Demo
from slipway_local.demo.deployment import SERVICES, Deployment


async def narrate(deployment: Deployment, started_at: float, seed: int, seconds: float) -> None:
    """Show the demo for `seconds` of real time (0: forever). The key q interrupts the demo like Ctrl-C."""
    demo = Demo(
        started_at=datetime.fromtimestamp(started_at, UTC),
        speed=deployment.speed,
        seed=seed,
        seconds=seconds or None,
    )
    urls = {service: deployment.url(service) for service in (*SERVICES, "simulator")}
    async with fetcher(urls, {"Authorization": f"Bearer {deployment.token}"}) as fetch:
        watch = Watch(
            fetch,
            title="demo",
            kafka=deployment.kafka,
            prefix=deployment.prefix,
            demo=demo,
            zones_out=_zones_out(fetch),
        )
        await top.follow(
            watch,
            Api(urls, deployment.token),
            plain=bool(os.environ.get("PLAIN")) or not top.has_screen(),
            seconds=seconds,
            end=lambda: os.kill(os.getpid(), signal.SIGINT),
        )


def _zones_out(fetch: Fetch) -> ZonesOut:
    async def zones_out() -> frozenset[str]:
        state = msgspec.json.decode(await fetch("simulator", "/state"), type=SimulatorState)
        return frozenset(zone for zone, seen in state.zones.items() if seen.out)

    return zones_out
