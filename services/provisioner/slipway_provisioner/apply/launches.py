"""Launch calls: store a batch before its call, and record the outcome once it is known.

Lock order of a start: config and pool (shared), launch stop guard, safety limits, lease, workers. Of an outcome: batch,
workers, lease; of a repeat the same, after the config, the pool, the guard and the limits.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec

from slipway_api.events.lifecycle import ASKED_TO_STOP, LIVE, State
from slipway_api.events.scopes import lifecycle_of
from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_common.base.ids import new_id
from slipway_common.database.postgres import Connection
from slipway_provisioner.apply import limiting
from slipway_provisioner.apply.leases import release
from slipway_provisioner.domain import user_data
from slipway_provisioner.domain.binding import bind
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.launching import BatchState, LeaseState, call_body
from slipway_provisioner.domain.limits import Tariff
from slipway_provisioner.domain.prices import MachineKind
from slipway_provisioner.domain.workers import Change, Worker, calling, cancelled, delayed, launch_failed, launched
from slipway_provisioner.providers.port import Provider, Refused
from slipway_provisioner.store import batches, configs, leases, limits, pools, starts, workers
from slipway_provisioner.store.batches import Batch, KnownOutcome
from slipway_provisioner.store.leases import Lease
from slipway_provisioner.store.starts import Start


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of every launch call, for accounts and providers that have none of their own."""

    call_timeout_seconds: float
    accepted_timeout_seconds: float
    visibility_seconds: float
    clock_skew_seconds: float
    poll_seconds: float
    register_url: str
    ca: str = ""
    tariff: Tariff = Tariff()

    def timeout(self, account: Account) -> float:
        """Timeout of a call in an account, in seconds."""
        return account.request_timeout_seconds or self.call_timeout_seconds

    def accepted_timeout(self, account: Account) -> float:
        """Time in which an accepted call must end, in seconds."""
        return account.accepted_timeout_seconds or self.accepted_timeout_seconds

    def visibility(self, provider: Provider, account: Account) -> float:
        """Longest time until a new instance is listed, in seconds."""
        own = provider.visibility_seconds(account)
        return self.visibility_seconds if own is None else own

    def suffices(self, lease: Lease, now: datetime, timeout_seconds: float) -> bool:
        """True if a call that starts now ends while the lease is certainly valid."""
        return lease.expires_at - now > timedelta(seconds=timeout_seconds + self.clock_skew_seconds)


async def start(
    tx: Connection, lease_ids: Sequence[str], terms: Terms, providers: Mapping[str, Provider]
) -> list[tuple[Batch, Account]]:
    """Store a batch for each of these leases under which a call may start now; the calls may be made after the commit.

    Of several leases, those are left out that would have to wait for a lock or are under a safety limit: none waits for
    another. Start them alone.
    """
    locked = await starts.lock(tx, lease_ids)
    started, calls, events = [], [], []
    for each in await starts.read(tx, locked, unlimited=len(lease_ids) > 1):
        provider, lease = providers[each.account.provider], each.lease
        if not terms.suffices(lease, each.now, terms.timeout(each.account)):
            await leases.renew_one(tx, lease.id, renewal_pending_seconds=terms.clock_skew_seconds)
            continue
        waiting = each.waiting[: provider.units_max(each.account)]  # the others start under the same lease
        limited = await limits.lock(tx, each.config["pool_id"], each.account.id) if locked[lease.id].limited else []
        admitted = await limiting.admit(tx, limited, _kind(each.config, each.account), len(waiting), terms.tariff)
        if admitted.reached is not None:
            await _cancel(tx, waiting[admitted.units :], admitted.reached.text)
            waiting = waiting[: admitted.units]
        if not waiting:
            continue
        batch = _batch(each, len(waiting), terms, provider, admitted.price)
        started.append((batch, each.account))
        calls += [calling(worker, batch.id) for worker in waiting]
        events += [leases.confirmation(lease)] if lease.state == LeaseState.RESERVED else []
    if started:
        await starts.write(tx, [batch for batch, _ in started], calls, events)
    return started


def _batch(start: Start, units: int, terms: Terms, provider: Provider, price: Decimal | None) -> Batch:
    """The batch of a call."""
    config, account, batch_id = start.config, start.account, new_id()
    body = call_body(config)
    call = provider.call(account, body)
    values = user_data.values_of(
        config, account, register_url=terms.register_url, batch_id=batch_id, source=start.source, ca=terms.ca
    )
    parts = user_data.render(config["user_data"], values)
    return Batch(
        id=batch_id,
        launch_config_id=config["id"],
        pool_id=config["pool_id"],
        account_id=account.id,
        lease_id=start.lease.id,
        token=f"{account.deployment}-{batch_id}",
        body=body | {"user_data": list(parts)} | ({"call": dict(call)} if call else {}),
        units=units,
        timeout_seconds=terms.timeout(account),
        visibility_seconds=terms.visibility(provider, account),
        repeatable=provider.honours_tokens(account),
        price=price,
        minute_seconds=terms.tariff.hour_seconds / 60,
    )


async def may_repeat(tx: Connection, batch: Batch, terms: Terms) -> bool:
    """True if the call of a batch may be made again after the commit, within the deadline of this attempt.

    A repeat may be the call that takes effect, so that it needs what a start needs: a revision that may start, a lease
    that outlives the call, an intent that still wants an instance, and limits that are not exceeded.
    """
    if await configs.startable(tx, batch.launch_config_id) is None:
        return False
    locked = await limits.lock(tx, batch.pool_id, batch.account_id)
    intents = await _unrecorded(tx, batch)
    if intents is None or not any(worker.state is State.LAUNCHING for worker in intents):
        return False
    lease = await leases.lock(tx, batch.lease_id)
    if lease is None or lease.state == LeaseState.ENDED:
        return False
    if not terms.suffices(lease, await pools.now(tx), batch.timeout_seconds):
        return False
    if not await limiting.may_repeat(tx, locked, terms.tariff):
        return False
    await batches.repeated(tx, batch.id)
    return True


async def accept(tx: Connection, batch: Batch, account: Account, handle: str, terms: Terms) -> None:
    """Record that the provider accepted a call and works on it. Its intents stay, and so does their lease, which is
    renewed until the call is resolved."""
    if await _unrecorded(tx, batch) is not None:
        await batches.accepted(
            tx,
            batch.id,
            handle,
            accepted_seconds=terms.accepted_timeout(account),
            poll_seconds=terms.poll_seconds,
        )


async def record_instances(
    tx: Connection,
    replies: Sequence[tuple[Batch, Sequence[str]]],
    *,
    providers: Mapping[str, Provider],
    looked_up: bool = False,
    lock_seconds: float | None = None,
) -> tuple[list[Worker], set[str]]:
    """Record the instances that calls created. The intents without one were refused for lack of capacity. Waits
    `lock_seconds` at most for a lock, if given.

    Returns the workers, and the accounts that may count as not answering, although these calls were answered.
    """
    calls = await batches.lock_calls(tx, [batch.id for batch, _ in replies], lock_seconds=lock_seconds)
    bound: list[Change] = []
    failed: list[Change] = []
    outcomes, unanswered = [], set()
    for batch, instance_ids in replies:
        call = calls.get(batch.id)
        if call is None or call.unanswered:
            unanswered.add(batch.account_id)
        if call is None:
            continue  # a late reply; the instance reaper terminates orphan instances
        provider, binding = providers[call.account.provider], bind(call.intents, instance_ids)
        for worker, instance in binding.bound:
            console = provider.console(call.account, batch.id, instance)
            bound.append(launched(worker, instance, call.now, looked_up=looked_up, console=console))
        partial = provider.failure(call.account, batch.body, "PartialCapacity", Scope.CAPACITY)
        for worker in await release(tx, binding.unbound, "launch_failed"):
            failed.append(launch_failed(worker, partial, call.now))
        outcomes.append(_known(batch, "launched", launched=len(instance_ids), certain=not looked_up))
    if outcomes:
        await workers.save(tx, [*bound, *failed])
        await batches.known(tx, outcomes)
    return [worker for worker, _ in bound], unanswered


async def record_refusal(tx: Connection, batch: Batch, refused: Refused) -> None:
    """Record that the provider refused a call. The intents of a throttled call are put back."""
    intents = await _unrecorded(tx, batch)
    if intents is None:
        return
    now = await pools.now(tx)
    if refused.throttled:
        await _put_back(tx, batch, intents, "throttled", now, certain=True, refused=refused)
        return
    failing = await release(tx, _without_instance(intents), "launch_failed")
    changes = [launch_failed(worker, refused.outcome, now) for worker in failing]
    await _record(tx, batch, refused.outcome.code, changes, launched=len(intents) - len(failing), certain=True)


async def put_back(tx: Connection, batch: Batch, reason: str, *, first_only: bool = False) -> None:
    """Record that a call had no effect, and return its intents to the admission queue.

    `first_only`: this holds for the first attempt only and is dropped if a repeat may have been sent.
    """
    intents = await _unrecorded(tx, batch, first_only=first_only)
    if intents is not None:
        await _put_back(tx, batch, intents, reason, await pools.now(tx), certain=first_only)


async def _unrecorded(tx: Connection, batch: Batch, *, first_only: bool = False) -> list[Worker] | None:
    """Lock the batch and its intents; None if its outcome is recorded, or (`first_only`) another replica took it."""
    stored = await batches.lock(tx, batch.id)
    if stored is None or stored.state == BatchState.KNOWN:
        return None  # a late reply; the instance reaper terminates orphan instances
    if first_only and stored.repeats:
        return None  # another replica may have sent the call
    return await workers.lock_batch(tx, batch.id)


async def _cancel(tx: Connection, intents: Sequence[Worker], reason: str) -> None:
    """Cancel intents of a lease that may not start; the next decision requests what is still needed."""
    now = await pools.now(tx)
    await workers.save(tx, [cancelled(worker, reason, now) for worker in await release(tx, intents, "cancelled")])


async def _record(
    tx: Connection, batch: Batch, outcome: str, changes: Sequence[Change], *, launched: int, certain: bool
) -> None:
    """Record the outcome of a call. Unless it is `certain` that it launched no more, all its machines stay charged:
    what no listing shows may still appear."""
    await workers.save(tx, changes)
    await batches.known(tx, [_known(batch, outcome, launched=launched, certain=certain)])


def _known(batch: Batch, outcome: str, *, launched: int, certain: bool) -> KnownOutcome:
    charged = launched if certain else max(batch.units, launched)
    return KnownOutcome(batch.id, outcome, charged, unproven=charged - launched)


async def _put_back(
    tx: Connection,
    batch: Batch,
    intents: Sequence[Worker],
    reason: str,
    now: datetime,
    *,
    certain: bool,
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
    changes += [launch_failed(worker, no_evidence, now) for worker in stopping]
    launched = len(intents) - len(unbound)
    await _record(tx, batch, reason, changes, launched=launched, certain=certain)


def _kind(config: Mapping[str, Any], account: Account) -> MachineKind:
    return MachineKind(account.provider, config["region"], config["instance_type"], lifecycle_of(config["settings"]))


def _without_instance(intents: Sequence[Worker]) -> list[Worker]:
    return [worker for worker in intents if worker.instance_id is None and worker.state in LIVE]
