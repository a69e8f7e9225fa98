"""A generation of a scheduler, with its plugin and its task."""

import asyncio

import msgspec

from slipway_terraform import metrics
from slipway_terraform.domain.generations import Event, Generation, Reason, State
from slipway_terraform.domain.handle import shown
from slipway_terraform.domain.port import Plugin
from slipway_terraform.domain.specs import ProviderSpec


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of a process, for people. `handle` is shortened, `age_seconds` counts from its first answer."""

    handle: str
    source: str
    version: str
    tenant: str
    state: State
    reason: Reason | None
    pid: int
    in_use: int
    invocations: int
    age_seconds: float
    memory_bytes: int


class Process:
    """A generation, its specification, its plugin once it has started, and the task that runs it."""

    def __init__(self, generation: Generation, spec: ProviderSpec) -> None:
        self.generation, self.spec = generation, spec
        self.plugin: Plugin | None = None
        self.stopping = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.cpu_seconds = 0.0
        metrics.PROCESSES.labels(generation.state).inc()

    def advance(self, event: Event) -> None:
        """Change the state of the generation; raises IllegalTransition."""
        before = self.generation.state
        self.generation.advance(event)
        metrics.PROCESSES.labels(before).dec()
        metrics.PROCESSES.labels(self.generation.state).inc()

    def measure(self, memory_bytes: int) -> None:
        """Record the memory of the process."""
        metrics.MEMORY_BYTES.inc(memory_bytes - self.generation.memory_bytes)
        self.generation.memory_bytes = memory_bytes

    def status(self, now: float) -> ProcessStatus:
        generation = self.generation
        return ProcessStatus(
            handle=shown(generation.handle),
            source=self.spec.source,
            version=self.spec.version,
            tenant=self.spec.tenant,
            state=generation.state,
            reason=generation.reason,
            pid=self.plugin.reattach.pid if self.plugin else 0,
            in_use=generation.in_use,
            invocations=generation.invocations,
            age_seconds=now - generation.ready_at if self.plugin else 0.0,
            memory_bytes=generation.memory_bytes,
        )
