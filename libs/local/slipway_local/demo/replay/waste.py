"""Wasted launches and waits of tasks, counted from a ledger. Pure."""

from collections.abc import Iterable

import msgspec

from slipway_simulator import facts as recorded
from slipway_simulator.facts import Fact


class Waste(msgspec.Struct, frozen=True, kw_only=True):
    """Launches in a ledger until some time, and how many of them were wasted.

    `launches` counts machines requested in answered create calls; throttled calls are repeated and count once they are
    accepted. `failed` counts machines that the cloud refused or that ended without registering; `unused` counts those
    that registered and ended without a task. Machines that boot, work or wait at that time are not wasted.
    `waited_seconds` is the mean time between a task's arrival and its first start (or that time), in product time; it
    belongs to the comparison because a rule that launches nothing wastes nothing.
    """

    launches: int
    failed: int
    unused: int
    waited_seconds: float

    @property
    def share(self) -> float:
        return (self.failed + self.unused) / self.launches if self.launches else 0.0

    def __str__(self) -> str:
        wasted = f"{self.failed} failed and {self.unused} unused of {self.launches} launches"
        return f"{wasted} ({self.share:.1%}); tasks waited {self.waited_seconds:.0f} s"


def waste(ledger: Iterable[Fact], *, until: float) -> Waste:
    """Count the facts up to `until` (epoch seconds)."""
    speed = 1.0
    requested: dict[str, int] = {}
    launches = failed = unused = 0
    registered: set[str] = set()
    worked: set[str] = set()
    arrived: dict[str, float] = {}
    started: dict[str, float] = {}
    for fact in ledger:
        if fact.at > until:
            continue
        match fact:
            case recorded.ScenarioLoaded():
                speed = fact.scenario.speed
            case recorded.Call():
                requested[fact.call_id] = fact.count
            case recorded.Reply() if not fact.repeated and fact.code != "RequestLimitExceeded":
                launches += requested[fact.call_id]
                failed += requested[fact.call_id] - len(fact.instance_ids)
            case recorded.Registered():
                registered.add(fact.instance_id)
            case recorded.TaskArrived():
                arrived[fact.task_id] = fact.at
            case recorded.TaskStarted() | recorded.TaskClaimed():
                worked.add(fact.instance_id)
                started.setdefault(fact.task_id, fact.at)
            case recorded.Terminated() if fact.instance_id not in worked:
                unused += fact.instance_id in registered
                failed += fact.instance_id not in registered
            case _:
                pass
    waits = [started.get(task, until) - at for task, at in arrived.items()]
    waited = speed * sum(waits) / len(waits) if waits else 0.0
    return Waste(launches=launches, failed=failed, unused=unused, waited_seconds=waited)
