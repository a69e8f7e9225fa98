"""Console output of a machine, derived from the ledger. It contains no secrets. Pure."""

from collections.abc import Iterable

from slipway_simulator.facts import (
    Claimed,
    DrainRequested,
    Fact,
    Idle,
    InstanceCreated,
    Refused,
    Registered,
    TaskEnded,
    TaskStarted,
    Terminated,
)


def console(facts: Iterable[Fact], account: str, instance_id: str) -> list[str]:
    """A line per fact, with the seconds since the machine was created; empty if the account never had it."""
    lines: list[str] = []
    began: float | None = None
    for fact in facts:
        if getattr(fact, "instance_id", "") != instance_id:
            continue
        if isinstance(fact, InstanceCreated) and fact.account == account:
            began = fact.at
        if began is not None and (text := _text(fact)):
            lines.append(f"[{fact.at - began:9.1f}] {text}")
    return lines


def _text(fact: Fact) -> str:
    match fact:
        case InstanceCreated(boots_at=None):
            return f"booting {fact.image} on {fact.instance_type} in {fact.zone}; kernel panic: no init found"
        case InstanceCreated():
            return f"booting {fact.image} on {fact.instance_type} in {fact.zone}"
        case Registered():
            return f"registered as worker {fact.worker_id} of pool {fact.pool_id}"
        case Refused():
            return f"the provisioner refused the registration: HTTP {fact.status}"
        case TaskStarted():
            return f"task {fact.task_id} started"
        case TaskEnded():
            return f"task {fact.task_id} ended: {fact.result}"
        case DrainRequested():
            return "draining at the provisioner's request"
        case Terminated():
            return f"power off by {fact.by}"
        case Claimed() | Idle() if fact.status >= 300:
            return f"the provisioner answered HTTP {fact.status}"
        case _:
            return ""
