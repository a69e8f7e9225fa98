"""Launcher: makes provider calls for admitted intents and records their outcomes. Runs outside every consumer.

Write-ahead: the start statement commits body, token and deadline; only then is the call made. A known outcome is
recorded here; calls of unknown outcome are resolved by loops/resolve.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection, Database
from slipway_common.events.lease import LeaseConfirmRequested
from slipway_common.events.lifecycle import State
from slipway_common.events.worker import Outcome, Result, Scope, Stage, WorkerLaunched
from slipway_common.messaging import outbox
from slipway_common.observability.telemetry import logger
from slipway_provisioner import metrics
from slipway_provisioner.domain.binding import bind
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.registration import batch_secret
from slipway_provisioner.domain.workers import Change, Worker, calling, delayed, launch_failed, launched
from slipway_provisioner.providers.port import CreateRequest, OutcomeUnknown, Provider, Refused
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import accounts, batches, configs, leases, pools, workers
from slipway_provisioner.store.batches import Batch

LOG = logger(__name__)

# Rejections that precede the provider's token check: they prove nothing about the first call.
REJECTED_BEFORE_TOKEN_CHECK: Final = frozenset({Scope.LIMITER, Scope.CREDENTIAL})


class Launcher:
    """Starts and records provider calls; at most `calls_in_flight_max` at a time in this process."""

    def __init__(self, settings: Settings, providers: Mapping[str, Provider]) -> None:
        self.settings = settings
        self.providers = providers
        self.calls: set[asyncio.Task[None]] = set()

    @property
    def margin_seconds(self) -> float:
        """Remaining lease time required to start a call, in seconds."""
        return self.settings.call_timeout_seconds + self.settings.clock_skew_seconds

    async def launch_next(self, database: Database) -> bool:
        """Start admitted calls up to the limit; False if none was started."""
        free = self.settings.calls_in_flight_max - len(self.calls)
        if free <= 0 or not self.settings.launching:
            return False
        async with database.acquire() as db:
            candidates = await leases.candidates(
                db,
                min(free, 16),
                margin_seconds=self.margin_seconds,
                renewal_pending_seconds=self.settings.clock_skew_seconds,
            )
            started = False
            for lease_id in candidates:
                began = monotonic_seconds()
                if (start := await self._start(db, lease_id)) is not None:
                    started = True
                    task = asyncio.create_task(self._call(database, *start, began=began))
                    self.calls.add(task)
                    task.add_done_callback(self.calls.discard)
        return started

    async def drain(self) -> None:
        """Wait up to 4 s for calls in flight to be recorded; the next process resolves the rest."""
        if self.calls:
            await asyncio.wait(self.calls, timeout=4)

    async def _start(self, db: Connection, lease_id: str) -> tuple[Batch, Account] | None:
        """Commit the batch, after which its call may be made. None if nothing may start under the lease now."""
        settings = self.settings
        async with db.transaction():
            config = await configs.startable(db, await leases.config_of(db, lease_id))
            if config is None:
                return None
            lease = await leases.lock(db, lease_id, skip_locked=True)
            if lease is None or lease.state == "ended":
                return None
            waiting = await workers.lock_leased(db, lease_id)
            if not waiting:
                return None
            now = await pools.now(db)
            if lease.expires_at - now <= timedelta(seconds=self.margin_seconds):
                await leases.renew_one(db, lease_id, renewal_pending_seconds=settings.clock_skew_seconds)
                return None
            account = await accounts.get(db, config["account_id"])
            batch_id = new_id()
            # The registration secret is derived from the batch id and never stored, so it is not part of the body.
            body = {
                "id": config["id"],
                "zone": config["zone"],
                "instance_type": config["instance_type"],
                "image": config["image_revision"],
                "settings": config["settings"],
            }
            batch = Batch(
                id=batch_id,
                launch_config_id=config["id"],
                account_id=account.id,
                lease_id=lease_id,
                token=f"{settings.deployment}-{batch_id}",
                body=body,
                units=len(waiting),
            )
            await batches.insert(db, batch, call_timeout_seconds=settings.call_timeout_seconds)
            await workers.save_without_events(db, [calling(worker, batch_id) for worker in waiting])
            if lease.state == "reserved":
                confirm = LeaseConfirmRequested(
                    lease_pool_id=lease.lease_pool_id, lease_id=lease_id, fencing_token=lease.fencing_token
                )
                await outbox.enqueue(db, [outbox.Traced(confirm, lease.traceparent)])
        return batch, account

    async def _call(self, database: Database, batch: Batch, account: Account, *, began: float) -> None:
        """Make the call and record its outcome if it is certain. Never raises: failures are resolved later."""
        try:
            if monotonic_seconds() - began > self.settings.send_within_seconds:
                await self.record(database, batch, put_back="not sent in time", first_only=True)
                return
            await self.call(database, batch, account, began=began)
        except Exception as error:
            LOG.warning("the call's outcome is unknown and will be resolved", batch=batch.id, error=repr(error))

    async def call(
        self, database: Database, batch: Batch, account: Account, *, began: float, repeated: bool = False
    ) -> None:
        """Make one provider call and record a certain outcome. Ends within the call timeout, counted from `began`."""
        settings = self.settings
        request = CreateRequest(
            batch_id=batch.id,
            token=batch.token,
            count=batch.units,
            config=batch.body,
            secret=batch_secret(settings.registration_key, batch.id),
        )
        try:
            async with asyncio.timeout(settings.call_timeout_seconds - (monotonic_seconds() - began)):
                ids = await self.providers[account.provider].create(account, request)
        except Refused as refused:
            metrics.CALLS.labels(account.id, "failed", refused.outcome.scope.value).inc()
            if repeated and refused.outcome.scope in REJECTED_BEFORE_TOKEN_CHECK:
                LOG.info(
                    "the repeated call's outcome is still unknown",
                    batch=batch.id,
                    account=account.id,
                    error=str(refused),
                )
            else:
                await self.record(database, batch, refused=refused)
        except (OutcomeUnknown, TimeoutError) as error:
            metrics.CALLS.labels(account.id, "unknown", "").inc()
            LOG.info("the call's outcome is unknown", batch=batch.id, account=account.id, error=str(error))
        else:
            metrics.CALLS.labels(account.id, "ok", "").inc()
            await self.record(database, batch, instance_ids=ids)
        metrics.CALL_SECONDS.labels(account.id).observe(monotonic_seconds() - began)

    async def record(
        self,
        database: Database,
        batch: Batch,
        *,
        instance_ids: Any = None,
        refused: Refused | None = None,
        put_back: str = "",
        looked_up: bool = False,
        first_only: bool = False,
    ) -> None:
        """Record a certain outcome once: instance ids, a refusal, or that the call had no effect (`put_back`).

        `first_only`: the outcome holds for the first attempt only and is dropped if a repeat may have been sent.
        """
        async with database.acquire() as db, db.transaction():
            stored = await batches.lock(db, batch.id)
            if stored is None or stored.state == "known":
                return  # a late reply; the instance reaper terminates orphan instances
            if first_only and stored.repeats:
                return  # another replica took the batch and may have sent the call
            batch_workers = await workers.lock_batch(db, batch.id)
            intents = [worker for worker in batch_workers if worker.state is not State.STOPPED]
            now = await pools.now(db)
            changes: list[Change] = []
            if refused is not None and not refused.throttled:
                failing = await leases.release(db, [w for w in intents if w.instance_id is None], "launch_failed")
                changes = [launch_failed(worker, refused.outcome, now) for worker in failing]
                outcome = refused.outcome.code
            elif refused is not None or put_back:
                outcome = put_back or "throttled"
                changes = await self._put_back(db, intents, outcome, refused)
            else:
                outcome = "launched"
                binding = bind(batch_workers, instance_ids)
                account = await accounts.get(db, batch.account_id)
                provider = self.providers[account.provider]
                console = partial(provider.console, account, batch.id)
                changes = [
                    launched(w, instance, now, looked_up=looked_up, console=console(instance))
                    for w, instance in binding.bound
                ]
                # Fewer instances than requested: the rest was refused for lack of capacity.
                capacity_key = provider.capacity_key(account, batch.body)
                partial_capacity = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, capacity_key, "PartialCapacity")
                unbound = await leases.release(db, binding.unbound, "launch_failed")
                changes += [launch_failed(worker, partial_capacity, now) for worker in unbound]
            await workers.save(db, changes)
            await batches.known(db, batch.id, outcome)
        for worker, event in changes:
            if isinstance(event, WorkerLaunched):
                metrics.LAUNCH_SECONDS.labels(worker.pool_id).observe((now - worker.requested_at).total_seconds())

    async def _put_back(
        self, db: Connection, intents: Sequence[Worker], reason: str, refused: Refused | None
    ) -> list[Change]:
        """Return intents to the admission queue; fail those that are stopping. Registered workers stay as they are."""
        retry = refused.retry_after_seconds if refused is not None else None
        launching = [worker for worker in intents if worker.instance_id is None and worker.state is State.LAUNCHING]
        stopping = [worker for worker in intents if worker.instance_id is None and worker.state is State.STOPPING]
        evidence: dict[str, Any] = {"throttled": refused is not None, "retry_after_seconds": retry}
        launching = await leases.release(db, launching, reason, **evidence)
        stopping = await leases.release(db, stopping, reason, **evidence)
        now = await pools.now(db)
        not_before = now + timedelta(seconds=retry) if retry else None
        no_evidence = Outcome(Stage.LAUNCH, Result.FAILED, Scope.NOTHING, "", reason)
        return [delayed(worker, reason, not_before=not_before) for worker in launching] + [
            launch_failed(worker, no_evidence, now) for worker in stopping
        ]
