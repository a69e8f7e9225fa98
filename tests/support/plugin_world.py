"""A world of fake plugins for tests of schedulers, at the Runner port: what runs, who uses it, which rules were broken.

Its ledger, not the scheduler's counters, is the truth: processes that exist by pid, with their configuration, and the
uses of each, which clients report.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from slipway_terraform.domain.errors import ProviderStartError
from slipway_terraform.domain.handshake import Address
from slipway_terraform.domain.port import Sample
from slipway_terraform.domain.reattach import Reattach
from slipway_terraform.domain.specs import ProviderSpec


def spec(name: str, *, source: str = "", **fields: Any) -> ProviderSpec:
    """Specification whose configuration is a name."""
    given = {"version": "1", "binary": "/plugin", "digest": "d", "configuration": {"name": name}}
    return ProviderSpec(source=source or f"registry.example/x/{name}", **given | fields)


class Times(msgspec.Struct, kw_only=True):
    """Longest times of the world in seconds, and the share of starts that fail."""

    start_seconds: float = 1.0
    stop_seconds: float = 1.0
    failing_starts: float = 0.0


class World:
    """Fake plugins. `broken` lists the rules that the scheduler has broken."""

    def __init__(self, rng: random.Random, times: Times | None = None) -> None:
        self.rng, self.times = rng, times or Times()
        self.plugins: dict[int, FakePlugin] = {}
        self.starting: Counter[str] = Counter()
        self.starts: list[str] = []
        self.broken: list[str] = []
        self.most_processes = 0
        self.forced = False  # the scheduler closes by force
        self.shared = True  # one process per configuration at a time may start
        self.slow: dict[str, float] = {}
        self.failing: set[str] = set()
        self._pid = 1000

    @property
    def processes(self) -> int:
        return len(self.plugins) + self.starting.total()

    async def start(self, spec: ProviderSpec) -> "FakePlugin":
        name = str(spec.configuration["name"])
        self.starts.append(name)
        self.starting[name] += 1
        self.most_processes = max(self.most_processes, self.processes)
        if self.shared and self.starting[name] > 1:
            self.broken.append(f"two starts of {name} at once")
        try:
            await asyncio.sleep(self.slow.get(name, self.rng.uniform(0, self.times.start_seconds)))
            if name in self.failing or self.rng.random() < self.times.failing_starts:
                raise ProviderStartError(f"{name} cannot start")
            self._pid += 1
            self.plugins[self._pid] = plugin = FakePlugin(self, self._pid, name)
            return plugin
        finally:
            self.starting[name] -= 1

    async def aclose(self) -> None:
        if self.processes:
            self.broken.append("closed before its plugins ended")

    def plugin_of(self, env: Mapping[str, str]) -> "list[FakePlugin]":
        """Plugins that a lease names; those that have exited are left out."""
        entries = msgspec.json.decode(env["TF_REATTACH_PROVIDERS"]).values()
        return [self.plugins[entry["Pid"]] for entry in entries if entry["Pid"] in self.plugins]


class FakePlugin:
    """A running process."""

    def __init__(self, world: World, pid: int, name: str) -> None:
        self.world, self.pid, self.name = world, pid, name
        self.reattach = Reattach(Address(f"/sockets/{pid}", 5), pid)
        self.users = 0
        self.memory_bytes = 1
        self.is_healthy = True
        self.is_replaced = False
        self._ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def is_alive(self) -> bool:
        return self.pid in self.world.plugins

    async def exited(self) -> str:
        return await asyncio.shield(self._ended)

    def end(self, how: str) -> None:
        """The process is gone: it was stopped, or crashes."""
        if self.world.plugins.pop(self.pid, None) is not None:
            self._ended.set_result(how)

    async def stop(self) -> None:
        if self.users and not self.world.forced and self.is_alive():
            self.world.broken.append(f"{self.name} was stopped with {self.users} users")
        await asyncio.sleep(self.world.rng.uniform(0, self.world.times.stop_seconds))
        self.end("stopped")

    async def healthy(self) -> bool:
        return self.is_healthy

    async def replaced_on_disk(self) -> bool:
        return self.is_replaced

    def sample(self) -> Sample:
        return Sample(memory_bytes=self.memory_bytes, cpu_seconds=0.0)
