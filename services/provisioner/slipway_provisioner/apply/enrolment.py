"""Enrolment of machines that their provider attests: what must hold before one of them may register.

A machine may register before the reply of its launch call is recorded, which may be lost. Then the tag of its batch,
which no machine can give to itself, proves where it is from. Nothing here holds a connection or a lock during a call.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from math import inf
from typing import Final

from slipway_common.base.clock import monotonic_seconds
from slipway_common.database.postgres import Database
from slipway_provisioner.apply.registration import Enrolment, UnknownBatch
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.deadlines import DefaultDeadlines
from slipway_provisioner.domain.identity import Attested, IdentityRefused, Proof, Reason, check_instance
from slipway_provisioner.domain.launching import BatchState
from slipway_provisioner.providers.port import OutcomeUnknown, Provider
from slipway_provisioner.store import accounts, batches, deadlines, instances
from slipway_provisioner.store.batches import Batch

AGAIN_SECONDS: Final = 2.0
"""Shortest time between two listings of one batch by one replica."""
ANSWER_SECONDS: Final = 7.0
"""Longest wait for a listing; agents wait for 10 s."""
LISTINGS_MAX: Final = 8
BATCHES_MAX: Final = 1000


class NotVisible(Exception):
    """The provider does not list the instance as one of its batch yet, and may soon. The text says so."""


class Listed:
    """Instances of one batch that were listed so far, the time of the newest attempt, and that of the newest listing
    that succeeded."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.instance_ids: set[str] = set()
        self.tried_at = -inf
        self.at = -inf


class BatchInstances:
    """Instances by the tag of their batch. One listing serves all machines of a batch, however often they ask; the
    newest BATCHES_MAX batches are remembered."""

    def __init__(self, *, clock: Callable[[], float] = monotonic_seconds) -> None:
        self._clock = clock
        self._listed: OrderedDict[str, Listed] = OrderedDict()
        self._free = asyncio.Semaphore(LISTINGS_MAX)

    async def unlisted_seconds(
        self, provider: Provider, account: Account, batch_id: str, instance_id: str
    ) -> float | None:
        """None if the instance has the tag of the batch, else the age of the newest listing without it, which proves
        nothing about what became visible since. Raises OutcomeUnknown."""
        listed = self._listed.setdefault(batch_id, Listed())
        self._listed.move_to_end(batch_id)
        if len(self._listed) > BATCHES_MAX:
            self._listed.popitem(last=False)
        try:
            async with asyncio.timeout(ANSWER_SECONDS), listed.lock:
                if instance_id not in listed.instance_ids and self._clock() - listed.tried_at >= AGAIN_SECONDS:
                    async with self._free:
                        await self._list(listed, provider, account, batch_id)
        except TimeoutError:
            raise OutcomeUnknown(f"account {account.id} has not listed its instances in {ANSWER_SECONDS:g} s") from None
        return None if instance_id in listed.instance_ids else self._clock() - listed.at

    async def _list(self, listed: Listed, provider: Provider, account: Account, batch_id: str) -> None:
        began = listed.tried_at = self._clock()
        found = await provider.instances(account, batch_id=batch_id)
        listed.instance_ids.update(instance.id for instance in found)
        listed.at = began


class Enroller:
    """Checks machines before they register. A document enrols one until the registration deadline of its launch config
    and `grace_seconds` have passed since its start."""

    def __init__(self, providers: Mapping[str, Provider], *, deadlines: DefaultDeadlines, grace_seconds: float) -> None:
        self._providers = providers
        self._deadlines, self._grace_seconds = deadlines, grace_seconds
        self.instances = BatchInstances()

    async def check(self, database: Database, batch_id: str, instance_id: str, proof: Proof | None) -> Enrolment | None:
        """Enrolment of a machine that its provider attests; None if machines of its account prove nothing beyond the
        secret of their batch. Raises UnknownBatch, IdentityRefused, NotVisible, OutcomeUnknown."""
        async with database.acquire() as db:
            batch = await batches.get(db, batch_id)
            if batch is None:
                raise UnknownBatch(batch_id)
            account = await accounts.get(db, batch.account_id)
            bound_to = await instances.batch_of(db, account.id, instance_id)
            seconds = await deadlines.registration_seconds(db, batch.launch_config_id, self._deadlines)
        provider = self._providers[account.provider]
        attested = provider.attested(account, str(batch.body["image"]), proof)
        if attested is None:
            return None
        check_instance(attested, instance_id)
        # Once the outcome of the call is recorded, its instances are, and the registration finds those that are not.
        if bound_to is None and batch.state == BatchState.CALLING:
            unlisted = await self.instances.unlisted_seconds(provider, account, batch.id, instance_id)
            if unlisted is not None:
                await self._refuse_unlisted(database, batch, attested, unlisted)
        return Enrolment(attested, (seconds or 0.0) + self._grace_seconds)

    async def _refuse_unlisted(
        self, database: Database, batch: Batch, attested: Attested, unlisted_seconds: float
    ) -> None:
        async with database.acquire() as db:
            age = await deadlines.age(db, attested.pending_at)
        text = f"{attested.instance_id} has no tag of batch {batch.id}"
        if age.uptime_seconds - unlisted_seconds <= batch.visibility_seconds:
            raise NotVisible(f"{text} in the listing yet; try again")
        raise IdentityRefused(Reason.FOREIGN_BATCH, f"{text}; only instances of a batch register with its secret")
