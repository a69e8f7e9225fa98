"""What a listing of a cloud says about our rows: instances nobody asked for, workers whose instance is gone. Pure.

The listing is taken before the rows are read: whatever it lacks was created later, or is gone.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from slipway_common.lifecycle import State
from slipway_provisioner.domain.cloud import Instance
from slipway_provisioner.domain.workers import Worker

IMPLAUSIBLE_SHARE: Final = 0.2  # more than this gone in one pass is a broken listing until proven otherwise


class Findings(msgspec.Struct, frozen=True):
    """`surplus`: instances to end. `missing`: ids of workers whose instance was not listed. `implausible`: why
    `missing` may not be believed; empty when it may."""

    surplus: Sequence[str]
    missing: Sequence[str]
    implausible: str


def judge(
    listed: Sequence[Instance],
    workers: Sequence[Worker],
    batches: Mapping[str, str],
    *,
    listed_at: datetime,
    settled_seconds: float,
    identity_matches: bool,
) -> Findings:
    """Compare a listing with the workers that have instances, or had those that are listed. A stranger's listing says
    nothing of ours.

    `batches` maps each listed tag to its state, absent for unknown tags. An instance is surplus when its batch's
    outcome is known (or the batch is unknown) and no worker has it; `settled_seconds` protects the youngest, and those
    whose worker has ended since or just before the listing: they end by themselves, or are found in a later pass.
    """
    young = listed_at - timedelta(seconds=settled_seconds)
    bound = {w.instance_id for w in workers if w.ended_at is None or w.ended_at >= young}
    live = [w for w in workers if w.state is not State.STOPPED]
    surplus = [
        i.id for i in listed if i.id not in bound and i.created_at < young and batches.get(i.batch_id) != "calling"
    ]
    present = {i.id for i in listed}
    expected = [w for w in live if w.instance_id is not None and _since(w) < young]
    missing = [w for w in expected if w.instance_id not in present]
    vanished = [w for w in missing if w.state is not State.STOPPING]
    implausible = ""
    if not identity_matches:
        implausible = "the cloud says that we are somebody else"
    elif vanished and not listed:
        implausible = "the listing is empty"
    elif len(vanished) > IMPLAUSIBLE_SHARE * len(expected):
        implausible = f"{len(vanished)} of {len(expected)} workers vanished in one pass"
    return Findings(surplus if identity_matches else [], [w.id for w in missing], implausible)


def _since(worker: Worker) -> datetime:
    return worker.launched_at or worker.registered_at or worker.requested_at
