"""What a machine does next. Pure: `now` is an argument, state is the ledger folded.

A machine boots, registers, takes tasks one after another and leaves when it is told to or has run its number of
tasks. What its provisioner has to hear of it is *owed* and told in order, however long that takes; its task ends on
time meanwhile. Who performs these acts, and retries them, is machine_loop.py's matter.
"""

from typing import Any, Literal

import msgspec

from slipway_simulator.facts import (
    Claimed,
    Fact,
    Idle,
    InstanceCreated,
    Refused,
    Registered,
    TaskEnded,
    TaskStarted,
    Told,
)
from slipway_simulator.scenario import Scenario


class Owed(msgspec.Struct, frozen=True):
    """A fact that the provisioner has not heard yet; `at` is when it became true."""

    what: Literal["claimed", "idle", "stopped"]
    at: float
    task_id: str = ""


class Machine(msgspec.Struct):
    """One machine, from its creation until its instance is gone."""

    instance_id: str
    account: str
    user_data: dict[str, Any]
    boots_at: float | None
    claims: bool
    worker_id: str = ""
    pool_id: str = ""
    token: str = ""
    refused: bool = False
    told: bool = False
    task_id: str = ""
    tasks_done: int = 0
    owed: list[Owed] = []

    @property
    def free(self) -> bool:
        """May take a task now."""
        busy = self.task_id or self.owed or self.told or self.refused
        return bool(self.pool_id and self.claims and not busy)

    @property
    def tasks_at_most(self) -> float:
        return float((self.user_data.get("settings") or {}).get("tasks_per_worker") or "inf")

    def fold(self, fact: Fact) -> None:
        match fact:
            case Registered():
                self.worker_id, self.pool_id, self.token = fact.worker_id, fact.pool_id, fact.token
            case Refused():
                self.refused = True
                self.owed.clear()
            case TaskStarted():
                self.task_id = fact.task_id
                self.owed.append(Owed("claimed", fact.at, fact.task_id))
            case TaskEnded(result="interrupted"):
                self.task_id = ""
            case TaskEnded():
                self.task_id = ""
                self.tasks_done += 1
                last = self.told or self.tasks_done >= self.tasks_at_most
                self.owed.append(Owed("stopped" if last else "idle", fact.at))
            case Claimed() | Idle():
                self.owed.pop(0)
            case Told() if not self.told:
                self.told = True
                if not self.task_id and not any(owed.what == "stopped" for owed in self.owed):
                    self.owed.append(Owed("stopped", fact.at))
            case _:
                pass


def created(fact: InstanceCreated) -> Machine:
    return Machine(fact.instance_id, fact.account, fact.user_data, fact.boots_at, fact.claims)


class Wait(msgspec.Struct, frozen=True):
    """Nothing before `until` (None: nothing at all), unless a fact changes the machine or work arrives."""

    until: float | None


class Register(msgspec.Struct, frozen=True):
    """Report in with the batch secret."""


class Take(msgspec.Struct, frozen=True):
    """Ask the queue for a task."""


class Tell(msgspec.Struct, frozen=True):
    """Tell the provisioner the oldest fact it is owed. After `stopped` the machine ends itself."""

    owed: Owed


class Ask(msgspec.Struct, frozen=True):
    """Ask whether to leave: by a heartbeat, or only by asking."""

    heartbeat: bool


Act = Wait | Register | Take | Tell | Ask


class Contact(msgspec.Struct):
    """When the machine last spoke to its provisioner unasked. Not in the ledger: a restart may ask anew."""

    asked_at: float
    heartbeat_at: float


def next_act(machine: Machine, contact: Contact, rules: Scenario, *, work: bool, now: float) -> Act:
    """The one thing to do now. `work`: the queue of its pool has something to start."""
    if machine.refused or (not machine.pool_id and machine.boots_at is None):
        return Wait(None)
    if not machine.pool_id:
        return Register() if machine.boots_at is not None and machine.boots_at <= now else Wait(machine.boots_at)
    if machine.owed:
        return Tell(machine.owed[0])
    if work and machine.free:
        return Take()
    heartbeat_at = contact.heartbeat_at + rules.heartbeat_seconds
    if heartbeat_at <= now:
        return Ask(heartbeat=True)
    if machine.task_id:
        return Wait(heartbeat_at)
    ask_at = contact.asked_at + rules.poll_seconds
    return Ask(heartbeat=False) if ask_at <= now else Wait(min(ask_at, heartbeat_at))
