"""Timeline of one worker, for people. Pure."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from slipway_provisioner.domain.claims import Claim
from slipway_provisioner.domain.workers import Worker


class Moment(msgspec.Struct, frozen=True):
    """One entry of a timeline: the event and its detail or reason."""

    at: datetime
    what: str
    detail: str = ""


def timeline(worker: Worker, claims: Sequence[Claim], called_at: datetime | None) -> list[Moment]:
    """Entries of a worker's timeline, oldest first. `called_at`: commit time of its provider call, if any."""
    probe = "" if worker.probe_permit is None else f", probe {worker.probe_permit}"
    moments = [
        (worker.requested_at, "requested", f"on {worker.launch_config_id}{probe}"),
        (called_at, "calling", f"batch {worker.batch_id}"),
        (worker.launched_at, "launched", worker.instance_id or ""),
        (worker.registered_at, "registered", worker.instance_id or ""),
        *(
            (at, what, f"task {claim.task_id} of {claim.source}{'' if claim.counted else ', above its task slots'}")
            for claim in claims
            for at, what in ((claim.started_at, "claimed"), (claim.ended_at, "finished"))
        ),
        (worker.stopping_at, "stopping", worker.reason),
        (worker.ended_at, "stopped", worker.reason),
    ]
    entries = [Moment(at, what, detail) for at, what, detail in moments if at is not None]
    return sorted(entries, key=lambda moment: moment.at)  # stable: equal times keep the order of the lifecycle
