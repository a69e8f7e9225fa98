"""Comparison of a provider's listing with the worker rows: orphan and missing instances. Pure.

The listing is taken before the rows are read: an instance that it lacks was created later, or is gone.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from slipway_common.events.lifecycle import ASKED_TO_STOP, LIVE
from slipway_provisioner.domain.cloud import Instance
from slipway_provisioner.domain.launching import BatchState
from slipway_provisioner.domain.recovery import Action, Orphan
from slipway_provisioner.domain.workers import Worker

IMPLAUSIBLE_SHARE: Final = 0.2  # a larger share of missing or orphan instances in one pass suggests a broken listing
ORPHANS_MAX: Final = 20  # of a pass; more are terminated only if they are few among the instances of the account
UNKNOWN_BATCH: Final = "its launch batch is unknown to this database"


class Kept(msgspec.Struct, frozen=True):
    """An orphan instance that waits for a person, and the reason."""

    instance: Instance
    reason: str


class Findings(msgspec.Struct, frozen=True):
    """`orphans`: ids of instances to terminate; `kept`: those that wait for a person. `missing`: ids of workers whose
    instance was not listed. `implausible`: reason to distrust `missing`; empty if there is none."""

    orphans: Sequence[str]
    kept: Sequence[Kept]
    missing: Sequence[str]
    implausible: str


def compare(
    listed: Sequence[Instance],
    workers: Sequence[Worker],
    batches: Mapping[str, str],
    *,
    listed_at: datetime,
    settled_seconds: float,
    identity_matches: bool,
    asked: Sequence[Orphan] = (),
    unconfirmed: str = "",
) -> Findings:
    """Compare a listing with the workers that have instances, or had those that are listed.

    `batches` maps each listed tag to its state; unknown tags are absent. An instance is an orphan if no worker has it,
    unless the outcome of its batch is unknown. Instances younger than `settled_seconds`, and those whose worker stopped
    that recently, are no orphans: they end by themselves, or are found in a later pass. Those of an unknown batch are
    orphans at any age, since a batch is committed before its call, and what a restored database has lost is younger
    than its newest pass; so are those that an earlier pass has `asked` about, whose batch is known once another of its
    instances is adopted. The listing of another account (`identity_matches` is false) yields no orphans.

    An orphan is kept for a person if its batch is unknown, if there are too many, or while a restore is `unconfirmed`
    (the reason). Those that an earlier pass has `asked` about stay so, for its reason, whatever their number is now,
    until a person decides to end them.
    """
    young = listed_at - timedelta(seconds=settled_seconds)
    bound = {w.instance_id for w in workers if w.ended_at is None or w.ended_at >= young}
    live = [w for w in workers if w.state in LIVE]
    questions = {orphan.instance_id for orphan in asked}
    found = [
        i
        for i in listed
        if i.id not in bound
        and (i.batch_id not in batches or i.id in questions or i.created_at < young)
        and batches.get(i.batch_id) != BatchState.CALLING
    ]
    orphans, kept = _judged(found if identity_matches else [], len(listed), batches, asked, unconfirmed)
    present = {i.id for i in listed}
    expected = [w for w in live if w.instance_id is not None and _since(w) < young]
    missing = [w for w in expected if w.instance_id not in present]
    unexpected = [w for w in missing if w.state not in ASKED_TO_STOP]
    implausible = ""
    if not identity_matches:
        implausible = "the credentials belong to another account"
    elif unexpected and not listed:
        implausible = "the listing is empty"
    elif len(unexpected) > IMPLAUSIBLE_SHARE * len(expected):
        implausible = f"{len(unexpected)} of {len(expected)} instances went missing in one pass"
    return Findings(orphans, kept, [w.id for w in missing], implausible)


def _judged(
    found: Sequence[Instance],
    listed: int,
    batches: Mapping[str, str],
    asked: Sequence[Orphan],
    unconfirmed: str,
) -> tuple[list[str], list[Kept]]:
    """Orphans to terminate, and those that are kept for a person."""
    reasons = {orphan.instance_id: orphan.reason for orphan in asked}
    to_terminate = {orphan.instance_id for orphan in asked if orphan.decision == Action.TERMINATE}
    decided = [i for i in found if i.id in to_terminate]
    open_ = [i for i in found if i.id not in to_terminate]
    known = [i for i in open_ if i.batch_id in batches and i.id not in reasons]
    kept = [Kept(i, UNKNOWN_BATCH) for i in open_ if i.batch_id not in batches]
    kept += [Kept(i, reasons[i.id]) for i in open_ if i.batch_id in batches and i.id in reasons]
    reason = unconfirmed
    if not reason and len(known) > ORPHANS_MAX and len(known) > IMPLAUSIBLE_SHARE * listed:
        reason = f"{len(known)} of {listed} instances have no worker, too many for one pass"
    if reason:
        kept += [Kept(i, reason) for i in known]
        known = []
    if unconfirmed:
        kept += [Kept(i, unconfirmed) for i in decided]
        decided = []
    return [i.id for i in (*decided, *known)], kept


def _since(worker: Worker) -> datetime:
    return worker.launched_at or worker.registered_at or worker.requested_at
