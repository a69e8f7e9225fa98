"""Provider that accepts every call, works on it, and answers polls: like a tool that deploys machines in minutes."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from slipway_api.events.worker import Scope
from slipway_common.base.clock import utc_now
from slipway_provisioner.domain.cloud import Account, Instance, InstanceState
from slipway_provisioner.providers.port import (
    Accepted,
    CreateRequest,
    OutcomeUnknown,
    Provider,
    ProviderSettings,
    Refused,
)

POLLS: Final = 2
"""Polls of a job during which the site still works on it."""


class Machine(msgspec.Struct):
    """A machine of the site and its tags."""

    deployment: str
    account_id: str
    instance: Instance


class Job(msgspec.Struct):
    """An accepted call. `ids` are its machines once it has ended, none of them for lack of capacity."""

    account: Account
    request: CreateRequest
    polls: int = 0
    ids: list[str] | None = None


class Site(msgspec.Struct):
    """Machines and jobs, which outlive their provider objects. While it is `down`, nothing answers."""

    capacity: int = 3
    identity: str = "site-1"
    jobs: dict[str, Job] = {}
    machines: dict[str, Machine] = {}
    started: int = 0
    held: asyncio.Event | None = None

    def end(self, job: Job) -> list[str]:
        """End a job: launch as many machines as there is capacity for."""
        if job.ids is None:
            job.ids = []
            for _ in range(min(job.request.count, self.capacity - len(self.machines))):
                self.started += 1
                instance = Instance(
                    id=f"machine-{self.started}",
                    batch_id=job.request.batch_id,
                    launch_config_id=job.request.config["id"],
                    created_at=utc_now(),
                    state=InstanceState.RUNNING,
                )
                self.machines[instance.id] = Machine(job.account.deployment, job.account.id, instance)
                job.ids.append(instance.id)
        return job.ids


class Accepting(Provider):
    """Provider of a site. A token names its job, so that a repeated call finds it."""

    real = False
    accepts_calls = True

    def __init__(self, settings: ProviderSettings, site: Site) -> None:
        self.settings = settings
        self.site = site

    def problem(self, account_settings: Mapping[str, Any], region: str) -> str:
        unknown = sorted(account_settings.keys() - {"down"})
        return f"unknown setting {unknown[0]}; the site has none" if unknown else ""

    def honours_tokens(self, account: Account) -> bool:
        return True

    def console(self, account: Account, batch_id: str, instance_id: str) -> str:
        return ""

    async def create(self, account: Account, request: CreateRequest) -> Sequence[str] | Accepted:
        self._check(account)
        self.site.jobs.setdefault(request.token, Job(account, request))
        if self.site.held is not None:
            await self.site.held.wait()
        return Accepted(request.token)

    async def poll(self, account: Account, request: CreateRequest, handle: str) -> Sequence[str] | None:
        self._check(account)
        job = self.site.jobs.get(handle)
        if job is None:
            raise OutcomeUnknown(f"no job {handle}")
        job.polls += 1
        if job.ids is None and job.polls <= POLLS:
            return None
        if ids := self.site.end(job):
            return list(ids)
        outcome = self.failure(account, request.config, "InsufficientCapacity", Scope.CAPACITY)
        raise Refused(outcome, "no machine is free")

    async def pages(self, account: Account, *, batch_id: str | None = None) -> AsyncIterator[Sequence[Instance]]:
        self._check(account)
        here = (account.deployment, account.id)
        own = [m.instance for m in self.site.machines.values() if (m.deployment, m.account_id) == here]
        for instance in own:
            if batch_id in (None, instance.batch_id):
                yield [instance]

    async def exists(self, account: Account, instance_id: str, *, launched_at: Any) -> bool:
        self._check(account)
        return instance_id in self.site.machines

    async def terminate(self, account: Account, instance_ids: Sequence[str]) -> None:
        self._check(account)
        for instance_id in instance_ids:
            self.site.machines.pop(instance_id, None)

    async def identity(self, account: Account) -> str:
        self._check(account)
        return self.site.identity

    def _check(self, account: Account) -> None:
        if account.settings.get("down"):
            raise OutcomeUnknown("the site does not answer")
