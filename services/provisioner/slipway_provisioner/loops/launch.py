"""Admitted intents become provider calls, and calls become recorded facts. Runs outside every consumer.

Intent before action: the start statement commits body, token and deadline; only then is the call made. Its outcome
is recorded by a transition; an outcome nobody knows is loops/resolve's.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from slipway_common import outbox
from slipway_common.clock import monotonic_seconds
from slipway_common.events.lease import LeaseConfirmRequested
from slipway_common.events.worker import Outcome, Result, Scope, Stage, WorkerLaunched
from slipway_common.ids import new_id
from slipway_common.lifecycle import State
from slipway_common.postgres import Connection, Pool
from slipway_common.telemetry import logger
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

# Said before a repeated call is compared with its token: it proves nothing of the first one.
TURNED_AWAY: Final = frozenset({Scope.LIMITER, Scope.CREDENTIAL})


class Launcher:
    """Starts and records provider calls; at most `calls_in_flight_max` at a time in this process."""

    def __init__(self, settings: Settings, providers: Mapping[str, Provider]) -> None:
        self.settings = settings
        self.providers = providers
        self.calls: set[asyncio.Task[None]] = set()

    @property
    def margin_seconds(self) -> float:
        """What must be left of a lease for a call to start under it."""
        return self.settings.call_timeout_seconds + self.settings.clock_skew_seconds

    async def launch_next(self, pool: Pool) -> bool:
        """Start what may start; False when nothing was admitted or every place is taken."""
        free = self.settings.calls_in_flight_max - len(self.calls)
        if free <= 0 or not self.settings.launching:
            return False
        async with pool.acquire() as db:
            candidates = await leases.candidates(
                db, min(free, 16), margin_seconds=self.margin_seconds, asked_seconds=self.settings.clock_skew_seconds
            )
            started = False
            for lease_id in candidates:
                began = monotonic_seconds()
                if (start := await self._start(db, lease_id)) is not None:
                    started = True
                    task = asyncio.create_task(self._call(pool, *start, began=began))
                    self.calls.add(task)
                    task.add_done_callback(self.calls.discard)
        return started

    async def drain(self) -> None:
        """Let calls under way end and be recorded; what is cut off is resolved by the next process."""
        if self.calls:
            await asyncio.wait(self.calls, timeout=4)

    async def _start(self, db: Connection, lease_id: str) -> tuple[Batch, Account] | None:
        """The start statement: the one commit after which a call may be made. None: not now."""
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
                await leases.renew_one(db, lease_id, asked_seconds=settings.clock_skew_seconds)
                return None
            account = await accounts.get(db, config["account_id"])
            batch_id = new_id()
            # The body is committed, the secret is not part of it.
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
            await workers.save_silently(db, [calling(worker, batch_id) for worker in waiting])
            if lease.state == "reserved":
                confirm = LeaseConfirmRequested(
                    lease_pool_id=lease.lease_pool_id, lease_id=lease_id, fencing_token=lease.fencing_token
                )
                await outbox.enqueue(db, [outbox.Traced(confirm, lease.traceparent)])
        return batch, account

    async def _call(self, pool: Pool, batch: Batch, account: Account, *, began: float) -> None:
        """Make the call and record what is certain of it. Never raises: what fails here is resolved later."""
        try:
            if monotonic_seconds() - began > self.settings.send_within_seconds:
                await self.record(pool, batch, put_back="not sent in time", first_only=True)
                return
            await self.call(pool, batch, account, began=began)
        except Exception as error:
            LOG.warning("outcome will be looked up", batch=batch.id, error=repr(error))

    async def call(self, pool: Pool, batch: Batch, account: Account, *, began: float, repeated: bool = False) -> None:
        """One provider call and its record; an unknown outcome stays unknown. Ends within the time-out of `began`."""
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
            if repeated and refused.outcome.scope in TURNED_AWAY:
                LOG.info("outcome still unknown", batch=batch.id, account=account.id, error=str(refused))
            else:
                await self.record(pool, batch, refused=refused)
        except (OutcomeUnknown, TimeoutError) as error:
            metrics.CALLS.labels(account.id, "unknown", "").inc()
            LOG.info("outcome unknown", batch=batch.id, account=account.id, error=str(error))
        else:
            metrics.CALLS.labels(account.id, "ok", "").inc()
            await self.record(pool, batch, instance_ids=ids)
        metrics.CALL_SECONDS.labels(account.id).observe(monotonic_seconds() - began)

    async def record(
        self,
        pool: Pool,
        batch: Batch,
        *,
        instance_ids: Any = None,
        refused: Refused | None = None,
        put_back: str = "",
        looked_up: bool = False,
        first_only: bool = False,
    ) -> None:
        """Record a certain outcome: ids, a refusal, or that the call had no effect (`put_back`). Once only.

        `first_only`: it is certain of the first attempt alone, and nothing once a repeat may have been sent.
        """
        async with pool.acquire() as db, db.transaction():
            stored = await batches.lock(db, batch.id)
            if stored is None or stored.state == "known":
                return  # a late reply; instances that nobody asked for are the reaper's
            if first_only and stored.repeats:
                return  # whoever took it meanwhile may have sent it
            everybody = await workers.lock_batch(db, batch.id)
            intents = [worker for worker in everybody if worker.state is not State.STOPPED]
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
                binding = bind(everybody, instance_ids)
                account = await accounts.get(db, batch.account_id)
                console = partial(self.providers[account.provider].console, account, batch.id)
                changes = [
                    launched(w, instance, now, looked_up=looked_up, console=console(instance))
                    for w, instance in binding.bound
                ]
                # Fewer than asked for is a refusal of the rest, for want of capacity.
                short = Outcome(
                    Stage.LAUNCH,
                    Result.FAILED,
                    Scope.CAPACITY,
                    f"{batch.body['instance_type']}/{batch.body['zone']}/on-demand",
                    "PartialCapacity",
                )
                left = await leases.release(db, binding.left, "launch_failed")
                changes += [launch_failed(worker, short, now) for worker in left]
            await workers.save(db, changes)
            await batches.known(db, batch.id, outcome)
        for worker, event in changes:
            if isinstance(event, WorkerLaunched):
                metrics.LAUNCH_SECONDS.labels(worker.pool_id).observe((now - worker.requested_at).total_seconds())

    async def _put_back(
        self, db: Connection, intents: Sequence[Worker], reason: str, refused: Refused | None
    ) -> list[Change]:
        """Intents wait for admission again; those that registered or were told to leave meanwhile stay as they are."""
        retry = refused.retry_after_seconds if refused is not None else None
        free = [worker for worker in intents if worker.instance_id is None and worker.state is State.LAUNCHING]
        gone = [worker for worker in intents if worker.instance_id is None and worker.state is State.STOPPING]
        evidence: dict[str, Any] = {"throttled": refused is not None, "retry_after_seconds": retry}
        free = await leases.release(db, free, reason, **evidence)
        gone = await leases.release(db, gone, reason, **evidence)
        now = await pools.now(db)
        not_before = now + timedelta(seconds=retry) if retry else None
        unneeded = Outcome(Stage.LAUNCH, Result.FAILED, Scope.NOTHING, "", reason)
        return [delayed(worker, reason, not_before=not_before) for worker in free] + [
            launch_failed(worker, unneeded, now) for worker in gone
        ]
