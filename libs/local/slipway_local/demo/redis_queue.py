"""The queue of a demo with QUEUE=redis: a list in a real Redis with an entry for each of the simulator's tasks that
wait, and the `slipway-monitor` that reports it, while the simulator reports nothing."""

import asyncio
import contextlib
import os
import sys
from functools import partial
from typing import Any, Final

import httpx2
import yaml

from slipway_api.events.pool import DemandReported
from slipway_common.base.process.groups import output
from slipway_local.check.evidence import Evidence
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.ports import free_ports
from slipway_local.servers.supervisor import Service, Supervisor, http_ready

SOURCE: Final = "simulator"
"""Source under which the machines claim tasks."""
MONITOR: Final = "/slipway-monitor"
FILLED_SECONDS: Final = 0.2
"""Time between two comparisons of the list with the tasks."""
BEHIND_SECONDS: Final = 0.5
INTERVAL_SECONDS: Final = 10.0  # product
VALID_SECONDS: Final = 300.0  # product
# As the simulator reports.
LEAST_INTERVAL_SECONDS: Final = 0.2
LEAST_VALID_SECONDS: Final = 15.0
FILL: Final = "redis.call('DEL', KEYS[1]) for n = 1, tonumber(ARGV[1]) do redis.call('RPUSH', KEYS[1], n) end"


class RedisQueue:
    """The list of one pool, and its monitor."""

    def __init__(self, deployment: Deployment, pool: str) -> None:
        self.deployment, self.pool = deployment, pool
        self.port, self.metrics = free_ports(2)
        self._filling: asyncio.Task[None] | None = None

    async def start(self, supervisor: Supervisor) -> None:
        """Start Redis, the monitor, and to fill the list, of a deployment that has started. Raises StartFailed."""
        folder, log = self.deployment.folder, self.deployment.folder.joinpath
        await supervisor.start(
            Service(
                "redis-server",
                ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", folder, "--save", ""],
                env=os.environ,
                log=log("redis.log"),
                ready=self._answers,
            )
        )
        file = log("sources.yaml")
        file.write_text(yaml.safe_dump({"sources": [self.source()]}))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
        environment |= {"SLIPWAY_KAFKA": self.deployment.kafka, "SLIPWAY_TOPIC_PREFIX": self.deployment.prefix}
        await supervisor.start(
            Service(
                "slipway-monitor",
                [sys.executable, "-m", "slipway_monitor.main", "run", file],
                env=environment | {"SLIPWAY_PORT": str(self.metrics)},
                log=log("monitor.log"),
                ready=partial(http_ready, self.metrics, "/readyz"),
            )
        )
        self._filling = asyncio.create_task(self._fill())

    def source(self) -> dict[str, Any]:
        """The list as an entry of a file of sources."""
        return {
            "name": SOURCE,
            "kind": "redis",
            "counts": "waiting",
            "claims": "hooks",
            "pool": self.pool,
            "url": f"redis://127.0.0.1:{self.port}",
            "list": self.pool,
            "interval_seconds": max(LEAST_INTERVAL_SECONDS, INTERVAL_SECONDS / self.deployment.speed),
            "timeout_seconds": 5.0,
            "valid_for_seconds": max(LEAST_VALID_SECONDS, VALID_SECONDS / self.deployment.speed),
            "behind_seconds": BEHIND_SECONDS,
        }

    async def _call(self, *arguments: str) -> str:
        _, printed = await output(["redis-cli", "-p", str(self.port), *arguments], os.environ)
        return printed.strip()

    async def _answers(self) -> bool:
        return await self._call("PING") == "PONG"

    async def _fill(self) -> None:
        """Keep as many entries in the list as tasks wait."""
        listed = 0
        while True:
            with contextlib.suppress(httpx2.HTTPError):  # the demo ends by itself if the simulator has
                state = await self.deployment.call("GET", "simulator", "/state")
                waiting = state["pools"].get(self.pool, {}).get("pending", 0)
                if waiting != listed:
                    await self._call("EVAL", FILL, "1", self.pool, str(waiting))
                    listed = waiting
            await asyncio.sleep(FILLED_SECONDS)

    def stop(self) -> None:
        """Stop to fill the list."""
        if self._filling is not None:
            self._filling.cancel()

    def problems(self, found: Evidence) -> list[str]:
        own, others = self._reports(found)
        problems = [] if own else ["slipway-monitor has reported nothing"]
        return problems + ([f"{others} reports of another than slipway-monitor"] if others else [])

    def summary(self, found: Evidence) -> str:
        own, _ = self._reports(found)
        return f"queue: a list in Redis, reported {own} times by slipway-monitor"

    def _reports(self, found: Evidence) -> tuple[int, int]:
        """Numbers of reports of the monitor, and of others."""
        sources = [
            record.envelope.source
            for record in found.published
            if isinstance(record.event, DemandReported) and record.envelope is not None
        ]
        return sources.count(MONITOR), len(sources) - sources.count(MONITOR)
