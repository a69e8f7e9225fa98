"""Recovery of a restored database: launching stops until a person has decided about orphan instances.

Lock order of a confirmation: orphan instances, pools, revisions, leases and lease requests, batches, workers, launch
stop guard.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from slipway_api.events.alert import AlertIdentity, AlertRaised, AlertResolved, alert_key
from slipway_api.events.lifecycle import State
from slipway_api.http.provisioner.recovery import RecoveryConfirmed, UnlistedAccount
from slipway_common.base.audited import AuditedKind
from slipway_common.base.ids import new_id
from slipway_common.database import audit
from slipway_common.database.postgres import Connection
from slipway_common.messaging import outbox
from slipway_common.messaging.incarnation import Incarnation
from slipway_common.observability.telemetry import current_trace
from slipway_provisioner.apply.plan import cancel
from slipway_provisioner.apply.reaping import kept_alert
from slipway_provisioner.domain.recovery import Action, LiveRevision, Orphan, by_batch, cannot_adopt
from slipway_provisioner.domain.workers import Worker, adopted
from slipway_provisioner.store import (
    accounts,
    batches,
    decisions,
    limits,
    marks,
    orphans,
    pools,
    recovery,
    restores,
    workers,
    workspace_listings,
    workspace_runs,
)
from slipway_provisioner.store.batches import Batch, KnownOutcome

RESTORED: Final[AlertIdentity] = {
    "dedup_key": alert_key("provisioner", "database-restored"),
    "kind": "database-restored",
    "subject_kind": "service",
    "subject_id": "provisioner",
}
Decisions = Mapping[tuple[str, str], Action]
"""Action by account and instance."""


class NotListed(Exception):
    """Accounts have not been listed since the restore; the text names them, and from when a listing counts. Nothing was
    changed."""


class CannotAdopt(Exception):
    """An instance cannot become a worker; the text names it and the reason. Nothing was changed."""


async def stop_until_confirmed(tx: Connection, renewal: Incarnation) -> None:
    """Stop launching and terminating, since the database has lost commits, and raise the alert. The audit has a
    renewal by the relay, unless it follows the report of a person, which it has too."""
    if not renewal.by and await restores.stop(tx) != renewal.reason:
        await audit.record_command(
            tx, AuditedKind.DATABASE, "provisioner", "restored", by="provisioner", reason=renewal.reason
        )
    await restores.begin(tx, renewal.reason, revision_base=renewal.revision_base)
    await limits.forget(tx)
    await workspace_runs.distrust(tx)
    await workspace_listings.distrust(tx)
    alert = AlertRaised(
        **RESTORED,
        summary=f"the database was restored or has lost commits: {renewal.reason}",
        effect="nothing is launched or terminated; running machines continue",
        doing="lists what runs in every account, and waits for a person to confirm",
        command="slipway doctor --after-restore",
    )
    await outbox.enqueue(tx, [alert])


async def confirm(tx: Connection, chosen: Decisions, *, unlisted: Collection[str] = (), by: str) -> RecoveryConfirmed:
    """Adopt, leave or terminate orphan instances, and start launching again. Decisions about instances that do not wait
    any more are ignored, and instances without a decision still wait. `unlisted`: accounts that need not have been
    listed since the restore. Raises NotListed and CannotAdopt."""
    if unknown := [each for each in await recovery.not_listed(tx) if each.account_id not in unlisted]:
        raise NotListed(", ".join(map(_awaited, unknown)))
    waiting = [orphan for orphan in await orphans.lock_all(tx) if _key(orphan) in chosen]
    actions = {action: [each for each in waiting if chosen[_key(each)] is action] for action in Action}
    await _adopt(tx, actions[Action.ADOPT], by)
    for action in Action:
        for account_id in sorted({orphan.account_id for orphan in actions[action]}):
            ids = [orphan.instance_id for orphan in actions[action] if orphan.account_id == account_id]
            if action is not Action.ADOPT:
                await orphans.decide(tx, account_id, ids, action)
            await audit.record_command(
                tx, AuditedKind.ACCOUNT, account_id, f"{action} instances", by=by, reason="confirmed", instances=ids
            )
    still_open = [orphan.account_id for orphan in await orphans.listed(tx) if not orphan.decision]
    done = {orphan.account_id for orphan in waiting if not orphan.decision} - set(still_open)
    await outbox.enqueue(tx, [kept_alert(account_id, 0) for account_id in sorted(done)])
    reason = await restores.stop(tx)
    restored = await restores.confirm(tx)
    if restored:
        await audit.record_command(
            tx, AuditedKind.DATABASE, "provisioner", "confirm", by=by, reason=reason, unlisted=sorted(unlisted) or None
        )
        resolved = AlertResolved(**RESTORED, summary=f"confirmed by {by}")
        await outbox.enqueue(tx, [resolved])
    return RecoveryConfirmed(
        adopted=len(actions[Action.ADOPT]),
        terminating=len(actions[Action.TERMINATE]),
        left=len(actions[Action.LEAVE]),
        open=len(still_open),
        restore=restored,
    )


async def _adopt(tx: Connection, found: Sequence[Orphan], by: str) -> None:
    """Give each instance a worker. That ends no stage of a start: it is no evidence about a launch config. The waiting
    intents of its pool are cancelled, since they were decided without it; the next decision requests those missing."""
    config_ids = {orphan.launch_config_id for orphan in found}
    pool_ids = {revision.pool_id for revision in (await recovery.revisions(tx, config_ids)).values()}
    await recovery.lock_pools(tx, pool_ids)
    revisions = await recovery.lock_revisions(tx, config_ids)
    ended = await recovery.ended(tx, found)
    for orphan in found:
        if obstacle := cannot_adopt(orphan, revisions.get(orphan.launch_config_id), ended):
            raise CannotAdopt(
                f"instance {orphan.instance_id} of {orphan.account_id}: {obstacle}. Nothing was changed; leave or "
                "terminate it instead"
            )
    now = await pools.now(tx)
    await cancel(tx, await recovery.waiting_of(tx, pool_ids), "instances were adopted", now)
    made: list[Worker] = []
    decided: dict[str, str] = {}
    for batch_id, each in by_batch(found).items():
        revision = revisions[each[0].launch_config_id]
        if revision.pool_id not in decided:
            decided[revision.pool_id] = await decisions.adopted(tx, revision.pool_id, by=by)
        await _restore_batch(tx, batch_id, revision, len(each))
        made += [_worker(orphan, revisions[orphan.launch_config_id], decided[revision.pool_id]) for orphan in each]
    for orphan in found:
        await orphans.adopted(tx, orphan)
    await workers.insert(tx, [adopted(worker, now) for worker in sorted(made, key=lambda worker: worker.id)])
    await marks.dirty(tx, set(decided), reason="adopted")


async def _restore_batch(tx: Connection, batch_id: str, revision: LiveRevision, units: int) -> None:
    """Insert the row of a batch that the database has lost, with its outcome."""
    if await batches.lock(tx, batch_id) is not None:
        return
    account = await accounts.get(tx, revision.account_id)
    batch = Batch(
        id=batch_id,
        launch_config_id=revision.id,
        pool_id=revision.pool_id,
        account_id=account.id,
        lease_id="",
        token=f"{account.deployment}-{batch_id}",
        body=await recovery.body(tx, revision.id),
        units=units,
        timeout_seconds=0.0,
        visibility_seconds=0.0,
        repeatable=False,
    )
    await batches.insert(tx, batch)
    await batches.known(tx, [KnownOutcome(batch_id, "adopted", charged=units)])


def _worker(orphan: Orphan, revision: LiveRevision, decision_id: str) -> Worker:
    return Worker(
        id=new_id(),
        pool_id=revision.pool_id,
        launch_config_id=revision.id,
        account_id=orphan.account_id,
        image_revision=revision.image_revision,
        state=State.LAUNCHING,
        decision_id=decision_id,
        batch_id=orphan.batch_id,
        instance_id=orphan.instance_id,
        requested_at=orphan.created_at,
        launched_at=orphan.created_at,
        traceparent=current_trace(),
    )


def _awaited(account: UnlistedAccount) -> str:
    if account.counts_from is None:
        return f"{account.account_id} (not listed yet)"
    return f"{account.account_id} (a listing counts from {account.counts_from:%Y-%m-%d %H:%M:%S} UTC on)"


def _key(orphan: Orphan) -> tuple[str, str]:
    return orphan.account_id, orphan.instance_id
