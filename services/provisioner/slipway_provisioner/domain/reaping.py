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
from slipway_provisioner.domain.workers import Worker

IMPLAUSIBLE_SHARE: Final = 0.2  # a larger share of missing instances in one pass suggests a broken listing


class Findings(msgspec.Struct, frozen=True):
    """`orphans`: instances to terminate. `missing`: ids of workers whose instance was not listed. `implausible`: reason
    to distrust `missing`; empty if there is none."""

    orphans: Sequence[str]
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
) -> Findings:
    """Compare a listing with the workers that have instances, or had those that are listed.

    `batches` maps each listed tag to its state; unknown tags are absent. An instance is an orphan if its batch's
    outcome is known (or the batch is unknown) and no worker has it. Instances younger than `settled_seconds`, and those
    whose worker stopped that recently, are no orphans: they end by themselves, or are found in a later pass. The
    listing of another account (`identity_matches` is false) yields no orphans.
    """
    young = listed_at - timedelta(seconds=settled_seconds)
    bound = {w.instance_id for w in workers if w.ended_at is None or w.ended_at >= young}
    live = [w for w in workers if w.state in LIVE]
    orphans = [
        i.id
        for i in listed
        if i.id not in bound and i.created_at < young and batches.get(i.batch_id) != BatchState.CALLING
    ]
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
    return Findings(orphans if identity_matches else [], [w.id for w in missing], implausible)


def _since(worker: Worker) -> datetime:
    return worker.launched_at or worker.registered_at or worker.requested_at
