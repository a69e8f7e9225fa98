"""Schedulers whose processes serve many leases, by the steps that `domain.scheduling` decides.

Nothing is locked: decisions are taken and applied without a pause, and each process has a task that starts it, watches
it and stops it.
"""

import asyncio
import copy
import functools
import logging
import random
import secrets
from collections.abc import Sequence
from typing import Final

import msgspec

from slipway_terraform import metrics
from slipway_terraform.domain import breaker, compatibility
from slipway_terraform.domain.breaker import Breaker
from slipway_terraform.domain.errors import (
    ProviderStartError,
    QueueFull,
    QueueTimeout,
    SchedulerClosed,
    TerraformError,
    Unschedulable,
)
from slipway_terraform.domain.generations import Event, Generation, Reason, State, left_behind
from slipway_terraform.domain.handle import base_of, handle_for, handle_of, shown
from slipway_terraform.domain.policy import Policy
from slipway_terraform.domain.port import Plugin, Runner
from slipway_terraform.domain.reattach import VARIABLE, reattach_json
from slipway_terraform.domain.scheduling import Decision, Facts, Refusal, Refuse, Waiter, decide
from slipway_terraform.domain.specs import ProviderSpec
from slipway_terraform.domain.thrash import WANTED
from slipway_terraform.scheduler.lease import SharedLease
from slipway_terraform.scheduler.process import Process, ProcessStatus
from slipway_terraform.scheduler.thrashing import ThrashAlert

LOG = logging.getLogger(__name__)
BREAKERS_MAX: Final = 1000


class _Caller:
    """A waiting caller, its specifications by handle, and its future lease."""

    def __init__(self, waiter: Waiter, specs: dict[str, ProviderSpec], owner: str, since: float) -> None:
        self.waiter, self.specs, self.owner, self.since = waiter, specs, owner, since
        self.lease: asyncio.Future[SharedLease] = asyncio.get_running_loop().create_future()


class SharedScheduler:
    """One process per configuration, for all owners of its tenant. Times are those of the running event loop's clock.

    Belongs to one event loop. `rng` gives the jitter of ages and backoffs, `key` the handles; both are random by
    default.
    """

    def __init__(
        self, runner: Runner, policy: Policy | None = None, *, rng: random.Random | None = None, key: bytes = b""
    ) -> None:
        self._runner, self._policy = runner, policy or Policy()
        self._rng = rng or random.Random()  # noqa: S311 # jitter only
        self._key = key or secrets.token_bytes(32)
        self._processes: dict[int, Process] = {}
        self._callers: dict[int, _Caller] = {}
        self._breakers: dict[str, Breaker] = {}
        self._head: int | None = None
        self._overtakes = 0
        self._waiting_counted = 0
        self._thrash = ThrashAlert(self._policy)
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        self._closed = asyncio.Event()

    async def acquire(self, specs: Sequence[ProviderSpec], *, owner: str, deadline: float) -> SharedLease:
        """Lease a process of every spec; see ProviderScheduler. Raises SpecInvalid, and Unschedulable for specs that
        never fit."""
        if self._closed.is_set():
            raise SchedulerClosed("the scheduler shuts down; retry on another replica")
        _check(specs, self._policy)
        by_handle = {self._handle(spec, owner): spec for spec in specs}
        if len(self._callers) >= self._policy.max_waiters:
            raise QueueFull(f"{len(self._callers)} callers wait for plugins already; retry later, or raise max_waiters")
        self._number += 1
        waiter = Waiter(id=self._number, handles=tuple(sorted(by_handle)), deadline=deadline)
        caller = self._callers[waiter.id] = _Caller(waiter, by_handle, owner, self._now())
        result = "cancelled"
        try:
            self._decide()
            lease = await caller.lease
            result = "leased"
            return lease
        except TerraformError as error:
            result = type(error).__name__
            raise
        except asyncio.CancelledError:
            if caller.lease.done() and not caller.lease.cancelled() and caller.lease.exception() is None:
                caller.lease.result().release()
            raise
        finally:
            metrics.WAIT_SECONDS.labels(result).observe(self._now() - caller.since)
            if self._callers.pop(waiter.id, None) is not None:
                self._decide()

    def processes(self) -> list[ProcessStatus]:
        """Processes that exist, in the order of their starts."""
        return [process.status(self._now()) for process in self._processes.values()]

    @property
    def waiting(self) -> int:
        """Number of callers that wait."""
        return len(self._callers)

    async def aclose(self, drain_seconds: float) -> None:
        """Refuse all callers, wait at most `drain_seconds` for leases to end, and stop every process. One that the
        kernel does not end is left, and reported with its id."""
        self._closed.set()
        for caller in list(self._callers.values()):
            self._refuse(caller, SchedulerClosed("the scheduler shuts down; retry on another replica"))
        for process in list(self._processes.values()):
            if process.generation.state is State.STARTING and process.task is not None:
                process.task.cancel()
            elif process.generation.state is State.READY:
                self._retire(process.generation, Reason.CLOSED)
        self._decide()
        try:
            async with asyncio.timeout(drain_seconds):
                while any(process.generation.in_use for process in self._processes.values()):
                    self._emptied.clear()
                    await self._emptied.wait()
        except TimeoutError:
            LOG.warning("leases were still held after %g s; their plugins are stopped", drain_seconds)
        for process in self._processes.values():
            if process.generation.state is State.DRAINING:
                self._stop(process.generation)
        while tasks := [process.task for process in self._processes.values() if process.task is not None]:
            await asyncio.wait(tasks)
        if self._timer is not None:
            self._timer.cancel()
        await self._runner.aclose()

    # Calls of leases

    def release(self, lease: SharedLease) -> None:
        """End a lease."""
        for generation in lease.generations:
            generation.release(lease.owner, unused=lease.unused, now=self._now())
            metrics.LEASES.dec()
        self._emptied.set()
        self._decide()

    def retire(self, generation: Generation, reason: Reason) -> None:
        """Give a process no new leases."""
        self._retire(generation, reason)
        self._decide()

    def invoked(self, *, first: bool) -> None:
        """An invocation was counted."""
        self._thrash.count(runs=1, now=self._now())
        if not first:  # the first one was expected since the lease began
            self._decide()

    # Decisions

    def _handle(self, spec: ProviderSpec, owner: str) -> str:
        return handle_of(spec, key=self._key)

    def _decide(self) -> None:
        """Take the steps that are due now, and wake when time alone makes others due."""
        for process in self._processes.values() if self._callers else ():
            if process.generation.state is State.READY and process.plugin and not process.plugin.is_alive():
                self._crashed(process)  # its task does not know yet
        while (decision := self._decision()).steps:
            self._take(decision)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        if decision.wake_at is not None:
            self._timer = loop.call_at(decision.wake_at, self._decide)
        metrics.WAITING.inc(len(self._callers) - self._waiting_counted)  # of all schedulers in this process
        self._waiting_counted = len(self._callers)

    def _decision(self) -> Decision:
        facts = Facts(
            generations=[process.generation for process in self._processes.values()],
            waiters=[caller.waiter for caller in self._callers.values()],
            breakers=self._breakers,
            now=self._now(),
            head=self._head,
            overtakes=self._overtakes,
        )
        decision = decide(facts, self._policy)
        self._head, self._overtakes = decision.head, decision.overtakes
        return decision

    def _take(self, decision: Decision) -> None:
        for generation, reason in decision.retire:
            self._retire(generation, reason)
        for generation in decision.stop:
            self._stop(generation)
        for refused in decision.refuse:
            self._refuse(self._callers[refused.waiter], self._error(refused))
        for grant in decision.grant:
            self._grant(self._callers[grant.waiter], grant.generations)
        for handle, number in decision.start:
            self._start(handle, self._callers[number].specs[handle])
        for generation in decision.renew:
            self._start(generation.handle, self._processes[generation.id].spec)

    def _retire(self, generation: Generation, reason: Reason) -> None:
        if generation.state is not State.READY:
            return
        self._processes[generation.id].advance(Event.RETIRED)
        generation.reason = reason
        metrics.REPLACEMENTS.labels(reason).inc()
        self._thrash.count(replacements=reason in WANTED, now=self._now())
        LOG.info("plugin %s retired: %s; %d leases left", shown(generation.handle), reason, generation.in_use)

    def _stop(self, generation: Generation) -> None:
        process = self._processes[generation.id]
        process.advance(Event.EMPTIED)
        process.stopping.set()

    def _refuse(self, caller: _Caller, error: TerraformError) -> None:
        del self._callers[caller.waiter.id]
        if not caller.lease.done():
            caller.lease.set_exception(error)

    def _grant(self, caller: _Caller, generations: Sequence[Generation]) -> None:
        """Reserve and grant in one step. Handles of the waiter and its generations have the same order."""
        del self._callers[caller.waiter.id]
        used, plugins = [], {}
        for handle, generation in zip(caller.waiter.handles, generations, strict=True):
            plugin = self._processes[generation.id].plugin
            assert plugin is not None
            generation.reserve(caller.owner)
            metrics.LEASES.inc()
            used.append((generation, plugin))
            plugins[caller.specs[handle].source] = plugin.reattach
        env = {VARIABLE: reattach_json(plugins)}
        lease = SharedLease(self, used, owner=caller.owner, env=env)
        if caller.owner:
            live = [process.generation for process in self._processes.values()]
            for generation in generations:
                for other in left_behind(live, generation, caller.owner):
                    self._retire(other, Reason.ROTATED)
        if caller.lease.done():  # cancelled in this turn of the loop
            lease.released = True
            for generation in generations:
                generation.release(caller.owner, unused=True, now=self._now())
                metrics.LEASES.dec()
        else:
            caller.lease.set_result(lease)

    def _error(self, refused: Refuse) -> TerraformError:
        caller = self._callers[refused.waiter]
        names = ", ".join(spec.source for spec in caller.specs.values())
        if refused.refusal is Refusal.DEADLINE:
            if starting := [
                process.spec.source
                for process in self._processes.values()
                if process.generation.handle in caller.waiter.handles and process.generation.state is State.STARTING
            ]:
                return QueueTimeout(
                    f"no plugin of {names} was ready within {self._now() - caller.since:.1f} s: that of "
                    f"{', '.join(starting)} is starting; raise the deadline. The log says if it fails to start"
                )
            busy = sum(process.generation.in_use > 0 for process in self._processes.values())
            return QueueTimeout(
                f"no plugin of {names} was free within {self._now() - caller.since:.1f} s: {len(self._processes)} of "
                f"{self._policy.max_processes} processes exist, {busy} are in use and {len(self._callers)} callers "
                "wait; raise the deadline or max_processes"
            )
        if refused.refusal is Refusal.BUDGET:
            spent = next(
                process.generation.invocations
                for process in self._processes.values()
                if process.generation.handle == refused.handle and process.generation.state is State.READY
            )
            assert self._policy.ttl_invocations is not None
            return compatibility.budget_exceeded(invocations=spent, ttl=self._policy.ttl_invocations)
        tripped = self._breakers[base_of(refused.handle)]
        error = copy.copy(tripped.error)
        seconds = tripped.retry_at - self._now()
        error.args = (f"{error.args[0]} (start {tripped.failures} failed; the next one may begin in {seconds:.0f} s)",)
        return error

    # Processes

    def _start(self, handle: str, spec: ProviderSpec) -> None:
        self._number += 1
        generation = Generation(
            id=self._number,
            handle=handle,
            family=f"{spec.tenant}\0{spec.source}",
            max_age_seconds=self._policy.max_age_seconds * (1 - self._policy.age_jitter * self._rng.random()),
        )
        process = self._processes[generation.id] = Process(generation, spec)
        process.task = asyncio.create_task(self._run(process))
        process.task.add_done_callback(functools.partial(self._ended, process))

    async def _run(self, process: Process) -> None:
        """Start, watch and stop one process."""
        generation, began = process.generation, self._now()
        try:
            plugin = process.plugin = await self._runner.start(process.spec)
        except Exception as error:
            self._failed(process, error)
            return
        self._ready(process, began)
        exited = asyncio.create_task(plugin.exited())
        stopping = asyncio.create_task(process.stopping.wait())
        closed = asyncio.create_task(self._closed.wait())
        watching = asyncio.create_task(self._watch(process, plugin))
        try:
            await asyncio.wait({exited, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if exited.done() and generation.state is not State.STOPPING:
                self._crashed(process)
                LOG.warning("plugin %s crashed: %s", shown(generation.handle), exited.result())
            else:
                await plugin.stop()
                if plugin.is_alive():  # the kernel does not end it: it keeps its place until the scheduler closes
                    await asyncio.wait({exited, closed}, return_when=asyncio.FIRST_COMPLETED)
                process.advance(Event.EXITED)
        except asyncio.CancelledError:  # the event loop ends
            await plugin.stop()
            raise
        finally:
            for task in (exited, stopping, closed, watching):
                task.cancel()

    def _ended(self, process: Process, task: asyncio.Task[None]) -> None:
        """Forget a process once its task has ended: by itself, or cancelled by `aclose`, even before its first step."""
        if not task.cancelled() and (error := task.exception()):
            LOG.error("plugin %s lost by an internal error", shown(process.generation.handle), exc_info=error)
        if process.generation.state is State.STARTING:
            process.advance(Event.START_FAILED)
        del self._processes[process.generation.id]
        metrics.PROCESSES.labels(process.generation.state).dec()
        process.measure(0)
        self._emptied.set()
        self._decide()

    def _ready(self, process: Process, began: float) -> None:
        generation, now = process.generation, self._now()
        for other in self._processes.values():
            if other.generation.handle == generation.handle and other.generation.state is State.READY:
                self._retire(other.generation, Reason.INVOCATIONS)
        process.advance(Event.HANDSHAKEN)
        generation.ready_at = generation.idle_since = now
        self._breakers.pop(base_of(generation.handle), None)
        metrics.STARTS.labels("ready").inc()
        metrics.START_SECONDS.observe(now - began)
        if self._closed.is_set():
            self._retire(generation, Reason.CLOSED)
        self._decide()

    def _failed(self, process: Process, error: Exception) -> None:
        """Record a failed start and refuse the callers that wait for it."""
        if not isinstance(error, TerraformError):
            LOG.error("plugin %s not started: internal error", shown(process.generation.handle), exc_info=error)
            error = ProviderStartError(f"{process.spec.source} {process.spec.version}: {type(error).__name__}")
        if self._policy.compatible:
            error = compatibility.start_failed(error, shown(process.generation.handle))
        process.advance(Event.START_FAILED)
        metrics.STARTS.labels(type(error).__name__).inc()
        base, now = base_of(process.generation.handle), self._now()
        kept = copy.copy(error)  # without its traceback, whose frames hold the specification
        self._breakers[base] = breaker.failed(
            self._breakers.pop(base, None), kept, self._policy, now=now, rng=self._rng
        )
        stale = [key for key, each in self._breakers.items() if breaker.expired(each, self._policy, now=now)]
        for key in stale or list(self._breakers)[:-BREAKERS_MAX]:
            del self._breakers[key]
        LOG.warning("plugin %s not started: %s", shown(process.generation.handle), error)
        served = any(
            other.generation.handle == process.generation.handle and other.generation.state is State.READY
            for other in self._processes.values()
        )
        for caller in [] if served else list(self._callers.values()):
            if process.generation.handle in caller.waiter.handles:
                self._refuse(caller, copy.copy(error))

    def _crashed(self, process: Process) -> None:
        """Record an exit, unless it was recorded already."""
        if process.generation.state is not State.CRASHED:
            process.advance(Event.EXITED)
            metrics.CRASHES.labels("busy" if process.generation.in_use else "idle").inc()

    async def _watch(self, process: Process, plugin: Plugin) -> None:
        """Measure a process and ask for its health, at intervals."""
        generation, failures = process.generation, 0
        while True:
            await asyncio.sleep(self._policy.sample_seconds)
            sample = plugin.sample()
            process.measure(sample.memory_bytes)
            metrics.CPU_SECONDS.inc(max(0.0, sample.cpu_seconds - process.cpu_seconds))
            process.cpu_seconds = max(process.cpu_seconds, sample.cpu_seconds)
            if sample.memory_bytes >= self._policy.hard_memory_bytes and generation.state is State.READY:
                metrics.MEMORY_ALARMS.inc()
                LOG.error(
                    "plugin %s of %s uses %d bytes of memory, beyond the hard limit; it is replaced",
                    shown(generation.handle),
                    process.spec.source,
                    sample.memory_bytes,
                )
            self._decide()
            failures = 0 if await plugin.healthy() else failures + 1
            if failures >= self._policy.health_failures:
                self.retire(generation, Reason.HEALTH)
            elif await plugin.replaced_on_disk():
                self.retire(generation, Reason.DIGEST)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _check(specs: Sequence[ProviderSpec], policy: Policy) -> None:
    """Raises Unschedulable for specifications that no lease can have together."""
    sources = [spec.source for spec in specs]
    if twice := {source for source in sources if sources.count(source) > 1}:
        raise Unschedulable(
            f"{', '.join(sorted(twice))} is requested in two configurations; a run reattaches one process per source: "
            "split the module, or use the NoOp scheduler"
        )
    if len(specs) > policy.max_processes:
        raise Unschedulable(
            f"{len(specs)} providers are requested at once and max_processes is {policy.max_processes}; raise it"
        )


class WorkspaceScheduler(SharedScheduler):
    """One process per configuration and owner, which stops after its last lease: the default, as safe as the CLI's own
    plugins. Without an owner, each lease has processes of its own."""

    def __init__(
        self, runner: Runner, policy: Policy | None = None, *, rng: random.Random | None = None, key: bytes = b""
    ) -> None:
        limits = msgspec.structs.replace(policy or Policy(), idle_seconds=0.0, ttl_invocations=None, compatible=False)
        super().__init__(runner, limits, rng=rng, key=key)

    def _handle(self, spec: ProviderSpec, owner: str) -> str:
        return handle_for(super()._handle(spec, owner), owner or f"lease-{self._number}")
