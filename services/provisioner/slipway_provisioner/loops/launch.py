"""Launcher: makes provider calls for admitted intents and records their outcomes. Runs outside every consumer.

Write-ahead: the start statement commits body, token and deadline; only then is the call made. A known outcome is
recorded here; calls of unknown outcome are resolved by loops/resolve.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Final

from slipway_api.events.worker import Scope
from slipway_common.base.clock import monotonic_seconds
from slipway_common.database.postgres import Connection, Database
from slipway_common.observability.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.apply import launches
from slipway_provisioner.domain import user_data
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.loops import contact
from slipway_provisioner.loops.group_commit import GroupCommit
from slipway_provisioner.providers.port import Accepted, CreateRequest, OutcomeUnknown, Provider, Refused
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import batches, leases
from slipway_provisioner.store.batches import Batch

LOG = logger(__name__)
LAUNCH_LOOP: Final = "launch"
TOGETHER_MAX: Final = 16
"""Leases under which calls are started in one transaction."""
ROOM_SECONDS: Final = 1.0
"""Longest wait for the end of a call, so that the loop can be stopped meanwhile."""

# Rejections that precede the provider's token check: they prove nothing about the first call.
REJECTED_BEFORE_TOKEN_CHECK: Final = frozenset({Scope.LIMITER, Scope.CREDENTIAL})

LOCK_SECONDS: Final = 0.05
"""Longest wait for a lock of replies that are recorded together. Then each is recorded alone."""


class Launcher:
    """Starts and records provider calls; at most `calls_in_flight_max` at a time in this process."""

    def __init__(
        self,
        settings: Settings,
        providers: Mapping[str, Provider],
        *,
        wake: Callable[[], None] = lambda: None,
        publish: Callable[[], None] = lambda: None,
        rng: Random | None = None,
    ) -> None:
        """`wake` is called after each commit of starts, and of calls that had no effect; `publish` after each commit of
        instances, for whose events no loop waits. `rng` chooses among many leases, so that replicas start different
        ones [default: the oldest]."""
        self.settings = settings
        self.wake = wake
        self.publish = publish
        self._rng = rng
        self.terms = launches.Terms(
            call_timeout_seconds=settings.call_timeout_seconds,
            accepted_timeout_seconds=settings.accepted_timeout_seconds,
            visibility_seconds=settings.visibility_seconds,
            clock_skew_seconds=settings.clock_skew_seconds,
            poll_seconds=settings.poll_seconds,
            register_url=settings.url_for_machines,
            ca=settings.authorities_for_machines(),
            tariff=settings.tariff(),
        )
        self.providers = providers
        self.calls: set[asyncio.Task[None]] = set()
        self._starting = asyncio.Semaphore(settings.starts_at_once)
        self._replies = GroupCommit(partial(self._record, lock_seconds=LOCK_SECONDS), self._record)

    async def launch_next(self, database: Database) -> bool:
        """Start admitted calls up to the limit; True if there may be more to start before the next wake."""
        free = self.settings.calls_in_flight_max - len(self.calls)
        if not self.settings.launching:
            return False
        if free <= 0:
            return await self._call_ends()
        async with database.acquire() as db:
            candidates = await leases.candidates(
                db,
                call_timeout_seconds=self.terms.call_timeout_seconds,
                clock_skew_seconds=self.terms.clock_skew_seconds,
            )
        most = min(free, TOGETHER_MAX)
        if self._rng is None or len(candidates) <= most:
            chosen = candidates[:most]
        else:
            chosen = self._rng.sample(candidates, most)
        started = await self._begin(database, chosen) if len(chosen) > 1 else []
        # The others, which have to wait for locks, wait beside each other; without those that a replica is starting.
        begun = {batch.lease_id for batch, _ in started}
        alone = [lease_id for lease_id in chosen if lease_id not in begun]
        if alone and len(chosen) > 1:
            async with database.acquire() as db:
                alone = await leases.free(db, alone)
        for each in await asyncio.gather(*(self._begin_alone(database, lease_id) for lease_id in alone)):
            started += each
        if not started:
            return False
        is_all = len(started) == len(candidates) < leases.CANDIDATES_MAX
        return not is_all or any(self._is_full(batch, account) for batch, account in started)

    async def _call_ends(self) -> bool:
        """Wait for the end of a call, which does not wake this loop; False if none is in flight."""
        if not self.calls:
            return False
        await asyncio.wait(self.calls, timeout=ROOM_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        return True

    def _is_full(self, batch: Batch, account: Account) -> bool:
        """True if the call takes no more intents, so that others of its lease may wait."""
        return batch.units == self.providers[account.provider].units_max(account)

    async def _begin_alone(self, database: Database, lease_id: str) -> list[tuple[Batch, Account]]:
        async with self._starting:
            return await self._begin(database, [lease_id])

    async def _begin(self, database: Database, lease_ids: Sequence[str]) -> list[tuple[Batch, Account]]:
        """Start calls under leases in one transaction and begin to make them. Of several leases none is started if one
        of them fails."""
        began = monotonic_seconds()
        try:
            async with database.acquire() as db:
                started = await self._start(db, lease_ids)
        except Exception as error:
            if len(lease_ids) == 1:
                raise
            LOG.info("starting each call alone", error=repr(error))
            return []
        for batch, account in started:
            task = asyncio.create_task(self._call(database, batch, account, began=began))
            self.calls.add(task)
            task.add_done_callback(self.calls.discard)
        if started:
            self.wake()
        return started

    async def _start(self, db: Connection, lease_ids: Sequence[str]) -> list[tuple[Batch, Account]]:
        """Commit batches, after which their calls may be made."""
        async with db.transaction():
            return await launches.start(db, lease_ids, self.terms, self.providers)

    async def _call(self, database: Database, batch: Batch, account: Account, *, began: float) -> None:
        """Make the call and record its outcome if it is certain. Never raises: failures are resolved later."""
        try:
            if monotonic_seconds() - began > self.settings.send_within_seconds:
                await self.put_back(database, batch, "not sent in time", first_only=True)
                return
            await self.call(database, batch, account, began=began)
        except Exception as error:
            LOG.warning("the call's outcome is unknown and will be resolved", batch=batch.id, error=repr(error))

    async def call(
        self, database: Database, batch: Batch, account: Account, *, began: float, repeated: bool = False
    ) -> bool:
        """Make one provider call and record a certain outcome. Ends within its timeout, counted from `began`. False if
        it had no effect and a repeat would prove nothing about an earlier call."""
        provider = self.providers[account.provider]
        looked_up = False
        try:
            async with asyncio.timeout(batch.timeout_seconds - (monotonic_seconds() - began)):
                reply = await provider.create(account, self.request(batch))
        except Refused as refused:
            metrics.CALLS.labels(account.id, "failed", refused.outcome.scope.value).inc()
            if repeated and refused.outcome.scope in REJECTED_BEFORE_TOKEN_CHECK:
                LOG.info(
                    "the repeated call's outcome is still unknown",
                    batch=batch.id,
                    account=account.id,
                    error=str(refused),
                )
            elif repeated and not provider.checks_tokens_first(account):
                looked_up = True
                LOG.info("the refused repeat proves nothing", batch=batch.id, account=account.id, error=str(refused))
            else:
                async with database.acquire() as db, db.transaction():
                    await launches.record_refusal(db, batch, refused)
                self.wake()
            if refused.throttled:
                await contact.throttled(database, account.id, self.settings)
            elif refused.outcome.scope is not Scope.CREDENTIAL:  # which may refuse every other call as well
                await contact.answered(database, account.id)
        except (OutcomeUnknown, TimeoutError) as error:
            metrics.CALLS.labels(account.id, "unknown", "").inc()
            LOG.info("the call's outcome is unknown", batch=batch.id, account=account.id, error=str(error))
            looked_up = isinstance(error, OutcomeUnknown) and error.look_up
            if looked_up:
                await contact.answered(database, account.id)
            else:
                await contact.failed(database, account.id, self.settings, error, began=began)
        else:
            if isinstance(reply, Accepted):
                metrics.CALLS.labels(account.id, "accepted", "").inc()
                async with database.acquire() as db, db.transaction():
                    await launches.accept(db, batch, account, reply.handle, self.terms)
                await contact.answered(database, account.id)
            else:
                metrics.CALLS.labels(account.id, "ok", "").inc()
                await self._replies.commit(database, (batch, reply))
        if looked_up:
            async with database.acquire() as db:
                await batches.not_repeatable(db, batch)
        metrics.CALL_SECONDS.labels(account.id).observe(monotonic_seconds() - began)
        return not looked_up

    def request(self, batch: Batch) -> CreateRequest:
        """Call of a batch, the same for every attempt."""
        secret = self.settings.registration().secret(batch.id)
        return CreateRequest(
            batch_id=batch.id,
            incarnation=batch.body["incarnation"],
            token=batch.token,
            count=batch.units,
            config=batch.body,
            user_data=user_data.complete(batch.body["user_data"], secret),
        )

    async def record(
        self, database: Database, batch: Batch, instance_ids: Sequence[str], *, looked_up: bool = False
    ) -> None:
        """Record the instances of a call, unless its outcome is recorded, and that its account has answered."""
        await self._record(database, [(batch, instance_ids)], looked_up=looked_up)

    async def _record(
        self,
        database: Database,
        replies: Sequence[tuple[Batch, Sequence[str]]],
        *,
        looked_up: bool = False,
        lock_seconds: float | None = None,
    ) -> None:
        async with database.acquire() as db, db.transaction():
            launched, unanswered = await launches.record_instances(
                db, replies, providers=self.providers, looked_up=looked_up, lock_seconds=lock_seconds
            )
        self.publish()
        for worker in launched:
            if worker.launched_at is not None:
                seconds = (worker.launched_at - worker.requested_at).total_seconds()
                metrics.LAUNCH_SECONDS.labels(worker.pool_id).observe(seconds)
        for account_id in sorted(unanswered):
            await contact.answered(database, account_id)

    async def put_back(self, database: Database, batch: Batch, reason: str, *, first_only: bool = False) -> None:
        """Record that a call had no effect, unless its outcome is recorded."""
        async with database.acquire() as db, db.transaction():
            await launches.put_back(db, batch, reason, first_only=first_only)
        self.wake()
