"""Lives of the machines: boot, run, shut down, terminate in moto.

A machine is pending, runs, boots, and has a process until it powers off or is shut down. What happens when is decided
when its instance is created; this module waits for it.
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

from slipway_common.observability.telemetry import logger
from slipway_local.ec2 import boot, cloud
from slipway_local.ec2.cloud import Instance
from slipway_local.ec2.facts import (
    EndedBy,
    Exited,
    InstanceCreated,
    Notice,
    Noticed,
    ShuttingDown,
    Started,
    Stopped,
    Terminated,
)
from slipway_local.ec2.history import History
from slipway_local.ec2.machines import Machines
from slipway_local.ec2.moto import Moto, Scope
from slipway_simulator.runtime import spawn

log = logger(__name__)
TICK_SECONDS: Final = 0.1


class Lives:
    """Lives of all machines, one task each."""

    def __init__(self, history: History, moto: Moto, machines: Machines) -> None:
        self.machines = machines
        self.user_data: dict[str, bytes] = {}
        self.descriptions: dict[str, str] = {}
        self.interfaces: dict[str, str] = {}  # that end with their instances
        self.scopes: dict[tuple[str, str], Scope] = {}  # by account and region, for the stand-in's own calls
        self._history = history
        self._moto = moto
        self._ending: dict[str, asyncio.Event] = {}  # of live instances: set once they shut down
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Task[None]] = {}
        self._ticking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._ticking = spawn(self._tick())

    async def stop(self) -> None:
        """Terminate all machines and forget them, without a trace in moto: the run is over."""
        tasks = [*self._lives.values(), *self._ends.values(), *([self._ticking] if self._ticking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for known in (self._lives, self._ends, self._ending, self.user_data, self.descriptions, self.interfaces):
            known.clear()
        self.scopes.clear()

    def begin(self, created: Sequence[InstanceCreated], user_data: bytes) -> None:
        """Begin the lives of new instances."""
        for fact in created:
            self.user_data[fact.instance_id] = user_data
            self._ending[fact.instance_id] = asyncio.Event()
            self._lives[fact.instance_id] = spawn(self._live(fact))

    async def _live(self, created: InstanceCreated) -> None:
        """Life of a machine, until its process has ended or it is shut down."""
        instance_id = created.instance_id
        instance, ending = self._history.cloud.instances[instance_id], self._ending[instance_id]
        if await self._set_before(ending, created.runs_at):
            return
        if created.dies:
            self.end(instance_id, "fault", created.dies)
            return
        if created.boots_at is None or await self._set_before(ending, created.boots_at):
            return
        try:
            user_data = self.user_data[instance_id]
            plan = boot.plan(user_data, str(self.machines.home(instance_id)))
            if created.breaks:
                plan = boot.broken(user_data, instance_id, created.image)
            if plan is None:
                return
            machine = await self.machines.start(instance_id, plan)
        except (boot.UnusableUserData, OSError) as error:
            log.warning("machine cannot boot", instance=instance_id, error=str(error))
            return
        if not created.breaks:
            self._history.record([Started(at=self._history.now(), instance_id=instance_id, pid=machine.pid)])
        ended, told = asyncio.ensure_future(machine.ended()), asyncio.ensure_future(ending.wait())
        try:
            await asyncio.wait({ended, told}, return_when=asyncio.FIRST_COMPLETED)
            if not instance.lives:
                await machine.shut_down(0.0 if instance.ended_by == "fault" else self._history.cloud.rules.stop_seconds)
            code = await ended
        finally:
            told.cancel()
            if not ended.done():
                machine.kill()
        self._history.record([Exited(at=self._history.now(), instance_id=instance_id, exit_code=code)])
        if not machine.is_off or not instance.lives:
            return
        if created.stays_when_off:
            self._history.record([Stopped(at=self._history.now(), instance_id=instance_id)])
        else:
            self.end(instance_id, "self")

    def end(self, instance_id: str, by: EndedBy, reason: str = "") -> None:
        """Terminate an instance; does nothing if it is already shutting down."""
        instance = self._history.cloud.instances.get(instance_id)
        if instance is None or not instance.lives:
            return
        why = ShuttingDown(at=self._history.now(), instance_id=instance_id, by=by, reason=reason or cloud.REASONS[by])
        self._history.record([why])
        if instance.created.seeded:
            self._terminated(instance.created, why)
            return
        self._ending.pop(instance_id).set()
        self._ends[instance_id] = spawn(self._end(instance.created, why))

    async def _end(self, created: InstanceCreated, why: ShuttingDown) -> None:
        await asyncio.wait({self._lives.pop(created.instance_id)})
        await self._terminate_in_moto(created)
        self._ends.pop(created.instance_id)
        self._terminated(created, why)

    def _terminated(self, created: InstanceCreated, why: ShuttingDown) -> None:
        ids = {"instance_id": created.instance_id, "account": created.account}
        self._history.record([Terminated(at=self._history.now(), by=why.by, reason=why.reason, **ids)])

    async def _terminate_in_moto(self, created: InstanceCreated) -> None:
        """Terminate in moto, which leaves the first network interface behind, unlike EC2."""
        scope = self.scopes[created.account, created.region]
        await self._moto.call(scope, "TerminateInstances", {"InstanceId.1": created.instance_id})
        if interface := self.interfaces.pop(created.instance_id, ""):
            await self._moto.call(scope, "DeleteNetworkInterface", {"NetworkInterfaceId": interface})

    def notify(self, instances: Iterable[Instance], kind: Notice) -> list[str]:
        """Send a notice to machines that have none of its kind; returns their ids."""
        now = self._history.now()
        told = [instance for instance in instances if instance.lives and kind not in instance.notices]
        self._history.record(cloud.notice(self._history.cloud, instance, kind, now=now) for instance in told)
        return [instance.id for instance in told]

    async def _tick(self) -> None:
        """End machines whose notice is over, give the notices of faults, and forget what is no longer shown."""
        while True:
            now = self._history.now()
            self._history.record(list(cloud.interrupted(self._history.cloud, self._history.effects(), now=now)))
            for instance in list(self._history.cloud.instances.values()):
                interruption: Noticed | None = instance.notices.get("interruption")
                if interruption is not None and interruption.ends_at <= now:
                    self.end(instance.id, "spot")
            for instance_id in self._history.cloud.forget(now):
                del self.descriptions[instance_id]
                self.user_data.pop(instance_id, None)
            await asyncio.sleep(TICK_SECONDS)

    async def _set_before(self, event: asyncio.Event, at: float) -> bool:
        """Wait until a time, or until the event is set; True if it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, at - self._history.now())):
                await event.wait()
        return event.is_set()
