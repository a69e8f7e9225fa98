"""What follows a queue: two pools of processes, and replicas of the monitor."""

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from slipway_common.declaration.models import Declaration
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.child import StartFailed
from slipway_local.servers.ports import free_ports
from tests.attach.queues import POOLS, AttachedQueue

ROOT: Final = Path(__file__).parents[2]
WORKERS_MAX: Final = 4
START_SECONDS: Final = 60.0


def entries(deployment: Deployment, queue: AttachedQueue) -> dict[str, Any]:
    """Commands of the operator, by pool: agents of the queue in a wrap."""
    wrap = [sys.executable, "-m", "slipway_client.worker", "wrap", "--preset", queue.preset, "--"]
    return {
        name: {
            "command": [*wrap, *queue.agent(name)],
            "environment": {"PYTHONPATH": str(ROOT)} | queue.environment(),
            "log_folder": str(deployment.folder / f"logs-{name}"),
        }
        for name in POOLS
    }


def declaration() -> Declaration:
    """A pool for each of the two queues, with an account and a lease pool of its own."""
    lease_pool = {"hold_seconds": 60.0, "ttl_seconds": 30.0, "reserve_seconds": 20.0, "pacing": "off"}
    return Declaration.model_validate(
        {
            "version": 1,
            "lease_pools": [{"id": name, "limit": 8, **lease_pool} for name in POOLS],
            "accounts": [
                {
                    "id": name,
                    "provider": "process",
                    "region": "local",
                    "credential": "none",
                    "identity": socket.gethostname(),
                    "lease_pool": name,
                    "settings": {"entry": name, "processes_max": 12},
                }
                for name in POOLS
            ],
            "worker_pools": [
                {
                    "id": name,
                    "min_capacity": 0,
                    "max_capacity": WORKERS_MAX,
                    "launch_configs": [
                        {
                            "name": f"{name}-here",
                            "account": name,
                            "zone": "here",
                            "instance_type": "process",
                            "image": "worker",
                            "settings": {"heartbeat_seconds": 3, "poll_seconds": 1, "stop_seconds": 20},
                        }
                    ],
                }
                for name in POOLS
            ],
        }
    )


class Monitors:
    """Replicas of the monitor, as processes."""

    def __init__(self, deployment: Deployment, queue: AttachedQueue, file: Path, replicas: int) -> None:
        self.deployment, self.queue, self.file, self.replicas = deployment, queue, file, replicas
        self.processes: list[asyncio.subprocess.Process] = []

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Monitors"]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SLIPWAY_")}
        environment |= {"SLIPWAY_KAFKA": self.deployment.kafka, "SLIPWAY_TOPIC_PREFIX": self.deployment.prefix}
        environment |= {"SLIPWAY_DATABASE_URL": self.deployment.database_url} | self.queue.environment()
        try:
            for number, port in enumerate(free_ports(self.replicas)):
                path = self.deployment.folder / f"monitor-{number}.log"
                with path.open("ab") as log:
                    process = await asyncio.create_subprocess_exec(
                        *(sys.executable, "-m", "slipway_monitor.main", "run", str(self.file)),
                        stdout=log,
                        stderr=log,
                        env=environment | {"SLIPWAY_PORT": str(port)},
                    )
                self.processes.append(process)
                awaited = "started" if number else "leads sources"  # the first one leads
                await self._said(awaited, process, path)
            yield self
        finally:
            for process in self.processes:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()

    async def _said(self, text: str, process: asyncio.subprocess.Process, path: Path) -> None:
        """Wait for a line of a replica's log. Raises StartFailed with its end."""
        try:
            async with asyncio.timeout(START_SECONDS):
                while text not in path.read_text():
                    if process.returncode is not None:
                        raise StartFailed(f"a monitor exited with {process.returncode}: {path.read_text()[-1000:]}")
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise StartFailed(
                f"no monitor said {text!r} within {START_SECONDS:g} s: {path.read_text()[-1000:]}"
            ) from None
