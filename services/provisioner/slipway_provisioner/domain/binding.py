"""Binding of instances to the intents of a launch batch. Pure.

A provider replies with a set of instances for a set of equal intents. Machines that registered before the reply have
taken the lowest unbound intents; the reply binds the remaining ids, sorted, to the remaining intents.
"""

from collections.abc import Sequence

import msgspec

from slipway_api.events.lifecycle import LIVE
from slipway_provisioner.domain.workers import Worker


class Binding(msgspec.Struct, frozen=True):
    """`bound`: workers with their instance ids, including those that registered before the reply. `unbound`: intents
    without an instance. `orphans`: instances without an intent."""

    bound: Sequence[tuple[Worker, str]]
    unbound: Sequence[Worker]
    orphans: Sequence[str]


def bind(workers: Sequence[Worker], instance_ids: Sequence[str]) -> Binding:
    """Bind instances to `workers`, all intents of the batch in id order. Stopped workers keep theirs."""
    taken = {w.instance_id for w in workers if w.instance_id}
    free = sorted(set(instance_ids) - taken)
    live = [w for w in workers if w.state in LIVE]
    unbound = [w for w in live if w.instance_id is None]
    bound = [(w, w.instance_id) for w in live if w.instance_id is not None]
    bound += list(zip(unbound, free, strict=False))
    return Binding(bound, unbound[len(free) :], free[len(unbound) :])
