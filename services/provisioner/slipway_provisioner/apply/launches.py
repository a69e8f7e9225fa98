"""Launch calls: store a batch before its call, and record the outcome once it is known.

Lock order of a start: config and pool (shared), launch stop guard, lease, workers. Of an outcome: batch, workers,
lease; of a repeat the same, after the config, the pool and the guard.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_common.events.lifecycle import ASKED_TO_STOP, LIVE, State
from slipway_common.events.worker import Outcome, Result, Scope, Stage
from slipway_provisioner.apply.leases import release
from slipway_provisioner.domain.binding import bind
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.launching import BatchState, LeaseState, call_body
from slipway_provisioner.domain.workers import Change, Worker, calling, delayed, launch_failed, launched
from slipway_provisioner.providers.port import Provider, Refused
from slipway_provisioner.store import accounts, batches, configs, leases, pools, workers
from slipway_provisioner.store.batches import Batch


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of every launch call."""

    call_timeout_seconds: float
    clock_skew_seconds: float

    @property
    def margin_seconds(self) -> float:
        """Remaining lease time required to start a call, in seconds."""
        return self.call_timeout_seconds + self.clock_skew_seconds


async def start(tx: Connection, lease_id: str, terms: Terms) -> tuple[Batch, Account] | None:
    """Store a batch; its call may be made after the commit. None if nothing may start under the lease now."""
    config = await configs.startable(tx, await leases.config_of(tx, lease_id))
    if config is None:
        return None
    lease = await leases.lock(tx, lease_id, skip_locked=True)
    if lease is None or lease.state == LeaseState.ENDED:
        return None
    waiting = await workers.lock_leased(tx, lease_id)
    if not waiting:
        return None
    now = await pools.now(tx)
    if lease.expires_at - now <= timedelta(seconds=terms.margin_seconds):
        await leases.renew_one(tx, lease_id, renewal_pending_seconds=terms.clock_skew_seconds)
        return None
    account = await accounts.get(tx, config["account_id"])
    batch_id = new_id()
    batch = Batch(
        id=batch_id,
        launch_config_id=config["id"],
        account_id=account.id,
        lease_id=lease_id,
        token=f"{account.deployment}-{batch_id}",
        body=call_body(config),
        units=len(waiting),
    )
    await batches.insert(tx, batch, call_timeout_seconds=terms.call_timeout_seconds)
    await workers.save_without_events(tx, [calling(worker, batch_id) for worker in waiting])
    if lease.state == LeaseState.RESERVED:
        await leases.request_confirmation(tx, lease)
    return batch, account


async def may_repeat(tx: Connection, batch: Batch, terms: Terms) -> bool:
    """True if the call of a batch may be made again after the commit, within the deadline of this attempt.

    A repeat may be the call that takes effect, so that it needs what a start needs: a revision that may start, a lease
    that outlives the call, and an intent that still wants an instance.
    """
    if await configs.startable(tx, batch.launch_config_id) is None:
        return False
    intents = await _unrecorded(tx, batch)
    if intents is None or not any(worker.state is State.LAUNCHING for worker in intents):
        return False
    lease = await leases.lock(tx, batch.lease_id)
    if lease is None or lease.state == LeaseState.ENDED:
        return False
    return lease.expires_at - await pools.now(tx) > timedelta(seconds=terms.margin_seconds)


async def record_instances(
    tx: Connection, batch: Batch, instance_ids: Sequence[str], *, providers: Mapping[str, Provider], looked_up: bool
) -> list[Worker]:
    """Record the instances that a call created; returns their workers. The intents without one were refused for lack
    of capacity."""
    intents = await _unrecorded(tx, batch)
    if intents is None:
        return []
    now = await pools.now(tx)
    binding = bind(intents, instance_ids)
    account = await accounts.get(tx, batch.account_id)
    provider = providers[account.provider]
    console = partial(provider.console, account, batch.id)
    changes = [
        launched(worker, instance, now, looked_up=looked_up, console=console(instance))
        for worker, instance in binding.bound
    ]
    partial_capacity = provider.failure(account, batch.body, "PartialCapacity", Scope.CAPACITY)
    failed = await release(tx, binding.unbound, "launch_failed")
    await _record(tx, batch, "launched", [*changes, *(launch_failed(w, partial_capacity, now) for w in failed)])
    return [worker for worker, _ in changes]


async def record_refusal(tx: Connection, batch: Batch, refused: Refused) -> None:
    """Record that the provider refused a call. The intents of a throttled call are put back."""
    intents = await _unrecorded(tx, batch)
    if intents is None:
        return
    now = await pools.now(tx)
    if refused.throttled:
        await _put_back(tx, batch, intents, "throttled", now, refused=refused)
        return
    failing = await release(tx, _without_instance(intents), "launch_failed")
    await _record(tx, batch, refused.outcome.code, [launch_failed(worker, refused.outcome, now) for worker in failing])


async def put_back(tx: Connection, batch: Batch, reason: str, *, first_only: bool = False) -> None:
    """Record that a call had no effect, and return its intents to the admission queue.

    `first_only`: this holds for the first attempt only and is dropped if a repeat may have been sent.
    """
    intents = await _unrecorded(tx, batch, first_only=first_only)
    if intents is not None:
        await _put_back(tx, batch, intents, reason, await pools.now(tx))


async def _unrecorded(tx: Connection, batch: Batch, *, first_only: bool = False) -> list[Worker] | None:
    """Lock the batch and its intents; None if its outcome is recorded, or (`first_only`) another replica took it."""
    stored = await batches.lock(tx, batch.id)
    if stored is None or stored.state == BatchState.KNOWN:
        return None  # a late reply; the instance reaper terminates orphan instances
    if first_only and stored.repeats:
        return None  # another replica may have sent the call
    return await workers.lock_batch(tx, batch.id)


async def _record(tx: Connection, batch: Batch, outcome: str, changes: Sequence[Change]) -> None:
    await workers.save(tx, changes)
    await batches.known(tx, batch.id, outcome)


async def _put_back(
    tx: Connection,
    batch: Batch,
    intents: Sequence[Worker],
    reason: str,
    now: datetime,
    *,
    refused: Refused | None = None,
) -> None:
    """Return intents to the admission queue; fail those that are stopping. Registered workers stay as they are."""
    retry = refused.retry_after_seconds if refused is not None else None
    evidence: dict[str, Any] = {"throttled": refused is not None, "retry_after_seconds": retry}
    unbound = _without_instance(intents)
    launching = await release(tx, [w for w in unbound if w.state is State.LAUNCHING], reason, **evidence)
    stopping = await release(tx, [w for w in unbound if w.state in ASKED_TO_STOP], reason, **evidence)
    not_before = now + timedelta(seconds=retry) if retry else None
    no_evidence = Outcome(Stage.LAUNCH, Result.FAILED, Scope.NOTHING, "", reason)
    changes = [delayed(worker, reason, not_before=not_before) for worker in launching]
    await _record(tx, batch, reason, [*changes, *(launch_failed(worker, no_evidence, now) for worker in stopping)])


def _without_instance(intents: Sequence[Worker]) -> list[Worker]:
    return [worker for worker in intents if worker.instance_id is None and worker.state in LIVE]
