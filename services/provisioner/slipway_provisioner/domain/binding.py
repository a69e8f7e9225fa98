"""Which instance belongs to which intent of a launch batch. Pure.

A provider answers with a set of instances for a set of equal intents. Machines that registered before the reply have
taken the lowest unbound intents; the reply binds the remaining ids, sorted, to the rest.
"""

from collections.abc import Sequence

import msgspec

from slipway_common.lifecycle import State
from slipway_provisioner.domain.workers import Worker


class Binding(msgspec.Struct, frozen=True):
    """`bound` pairs workers with instance ids, those that registered first included; `left` got none; `surplus` are
    instances that no intent asked for."""

    bound: Sequence[tuple[Worker, str]]
    left: Sequence[Worker]
    surplus: Sequence[str]


def bind(workers: Sequence[Worker], instance_ids: Sequence[str]) -> Binding:
    """`workers` are all intents of the batch in id order; an instance of one that has ended is nobody else's."""
    taken = {w.instance_id for w in workers if w.instance_id}
    free = sorted(set(instance_ids) - taken)
    live = [w for w in workers if w.state is not State.STOPPED]
    unbound = [w for w in live if w.instance_id is None]
    bound = [(w, w.instance_id) for w in live if w.instance_id is not None]
    bound += list(zip(unbound, free, strict=False))
    return Binding(bound, unbound[len(free) :], free[len(unbound) :])
