"""Effects of findings of the instance reaper: missing instances, running instances, and instances kept for a person."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved, alert_identity
from slipway_api.events.lifecycle import ASKED_TO_STOP, IN_FLIGHT, LIVE
from slipway_api.events.worker import Outcome, WorkerRegistered
from slipway_common.base.text import listed
from slipway_common.database.postgres import Connection
from slipway_common.messaging import outbox
from slipway_provisioner.apply import consoles
from slipway_provisioner.apply.leases import release
from slipway_provisioner.domain.reaping import Findings, Kept
from slipway_provisioner.domain.workers import lost, seen_running, stopped
from slipway_provisioner.store import demand, instances, orphans, pools, workers

NO_ENDINGS: Final[Mapping[str, Outcome]] = MappingProxyType({})
EVIDENCE_MAX: Final = 10  # instances named in an alert


async def record_gone(
    tx: Connection, worker_ids: Sequence[str], reason: str, endings: Mapping[str, Outcome] = NO_ENDINGS
) -> None:
    """Record that instances are gone: stopping workers become stopped, others lost. Releases their lease units.
    `endings`: outcomes of those that died while they booted, by worker, as far as their provider knows the reason."""
    live = [worker for worker in await workers.lock(tx, sorted(worker_ids)) if worker.state in LIVE]
    now = await pools.now(tx)
    await demand.close_claims(tx, [worker.id for worker in live], now)
    released = await release(tx, live, "gone")
    await workers.save(
        tx,
        [
            stopped(worker, reason, now)
            if worker.state in ASKED_TO_STOP
            else lost(worker, reason, now, endings.get(worker.id) if worker.state in IN_FLIGHT["boot"] else None)
            for worker in released
        ],
    )
    await consoles.request(tx, [worker for worker in released if worker.state in IN_FLIGHT["boot"]], reason, endings)


async def record_running(tx: Connection, worker_ids: Sequence[str]) -> list[WorkerRegistered]:
    """Record boots confirmed by the provider; returns their events. Releases lease units, as a registration does."""
    locked = await workers.lock(tx, sorted(worker_ids))
    booted = [worker for worker in locked if worker.state in IN_FLIGHT["boot"]]
    now = await pools.now(tx)
    changes = [seen_running(worker, now) for worker in await release(tx, booted, "registered")]
    await workers.save(tx, changes)
    return [event for _, event in changes]


async def keep(tx: Connection, account_id: str, findings: Findings, *, unlisted: Sequence[str]) -> None:
    """Store missing instances, and the orphan instances that wait for a person; `unlisted` ones still exist. Raise an
    alert when there are more of these, and resolve it once none waits any more."""
    await instances.record_missing(tx, account_id, [worker.id for worker in findings.missing])
    before, now = await orphans.record(tx, account_id, findings.kept, remaining=[*findings.orphans, *unlisted])
    if now > before:
        await outbox.enqueue(tx, [kept_alert(account_id, now, findings.kept)])
    elif before and not now:
        await outbox.enqueue(tx, [kept_alert(account_id, 0)])


async def forget_unlisted(db: Connection) -> bool:
    """Delete the orphan and missing instances of an account that is listed no more, since no pass would, and resolve
    their alert; False, without a transaction, if there are none."""
    account_id = await orphans.unlisted_account(db)
    if account_id is None:
        return False
    async with db.transaction():
        await keep(db, account_id, Findings(orphans=[], kept=[], missing=[], implausible=""), unlisted=())
    return True


def kept_alert(account_id: str, waiting: int, kept: Sequence[Kept] = ()) -> Alert:
    """Alert on the number of orphan instances that wait for a person; resolved if none does."""
    number = "1 orphan instance" if waiting == 1 else f"{waiting} orphan instances"
    reasons = listed(sorted({each.reason for each in kept}))
    return (AlertRaised if waiting else AlertResolved)(
        **alert_identity("provisioner", "orphans-kept", "account", account_id),
        summary=f"{number} in {account_id}: {reasons}" if waiting else "",
        effect="they run and cost money, and their tasks may be started again elsewhere",
        doing="terminates none of them before a person has decided",
        command="slipway db confirm",
        evidence=tuple(each.instance.id for each in kept[:EVIDENCE_MAX]),
    )
