"""Decision on the next action of a machine. Pure: `now` is an argument, state is the ledger folded.

A machine boots, registers, runs tasks one after another, and leaves when it is drained or has run its number of tasks.
Its reports to the provisioner are sent in order, however long that takes; its task still ends on time. machine_loop.py
performs and retries the actions.
"""

from typing import Any, Literal

import msgspec

from slipway_simulator.facts import (
    Claimed,
    ClaimUnknown,
    DrainRequested,
    Fact,
    Idle,
    InstanceCreated,
    Refused,
    Registered,
    TaskEnded,
    TaskStarted,
    Unknown,
)
from slipway_simulator.scenario import Scenario


class PendingReport(msgspec.Struct, frozen=True):
    """A report that the provisioner has not acknowledged yet; `at` is the time of the event. The end of a task names
    its claim, which was at `claimed_at`."""

    what: Literal["claimed", "idle", "stopped"]
    at: float
    task_id: str = ""
    claimed_at: float | None = None


class Machine(msgspec.Struct):
    """One machine, from its creation until its instance is gone.

    `claim` is the claim of its task. `is_unknown`: it has to register again; `rejoining`: it has done so, and none of
    its reports has been answered since."""

    instance_id: str
    account: str
    user_data: dict[str, Any]
    boots_at: float | None
    claims: bool
    worker_id: str = ""
    pool_id: str = ""
    token: str = ""
    refused: bool = False
    draining: bool = False
    task_id: str = ""
    claim: PendingReport | None = None
    is_unknown: bool = False
    rejoining: bool = False
    tasks_done: int = 0
    pending_reports: list[PendingReport] = []

    @property
    def free(self) -> bool:
        """True if the machine may take a task now."""
        busy = self.task_id or self.pending_reports or self.draining or self.refused
        return bool(self.pool_id and self.claims and not busy)

    @property
    def tasks_at_most(self) -> float:
        return float((self.user_data.get("settings") or {}).get("tasks_per_worker") or "inf")

    def fold(self, fact: Fact) -> None:
        match fact:
            case Registered():
                self.worker_id, self.pool_id, self.token = fact.worker_id, fact.pool_id, fact.token
                self.is_unknown = False
                if self.rejoining and self.claim is not None and self.claim not in self.pending_reports:
                    self.pending_reports.insert(0, self.claim)
            case Unknown():
                self.is_unknown = self.rejoining = True
            case ClaimUnknown() if self.claim is not None:
                self.pending_reports.append(self.claim)
            case Refused():
                self.refused = True
                self.pending_reports.clear()
            case TaskStarted():
                self.task_id = fact.task_id
                self.claim = PendingReport("claimed", fact.at, fact.task_id)
                self.pending_reports.append(self.claim)
            case TaskEnded(result="interrupted"):
                self.task_id, self.claim = "", None
            case TaskEnded():
                claimed_at = None if self.claim is None else self.claim.at
                self.task_id, self.claim = "", None
                self.tasks_done += 1
                last = self.draining or self.tasks_done >= self.tasks_at_most
                end = PendingReport("idle", fact.at, fact.task_id, claimed_at)
                self.pending_reports.append(PendingReport("stopped", fact.at) if last else end)
            case Claimed() | Idle():
                self.pending_reports.pop(0)
                self.rejoining = False
            case DrainRequested() if not self.draining:
                self.draining = True
                if not self.task_id and not any(report.what == "stopped" for report in self.pending_reports):
                    self.pending_reports.append(PendingReport("stopped", fact.at))
            case _:
                pass


def created(fact: InstanceCreated) -> Machine:
    return Machine(fact.instance_id, fact.account, fact.user_data, fact.boots_at, fact.claims)


class Wait(msgspec.Struct, frozen=True):
    """Wait until `until` (None: indefinitely), or until a fact changes the machine or work arrives."""

    until: float | None


class Register(msgspec.Struct, frozen=True):
    """Register with the batch secret."""


class Take(msgspec.Struct, frozen=True):
    """Take a task from the queue."""


class SendReport(msgspec.Struct, frozen=True):
    """Send the oldest pending report to the provisioner. After `stopped` the machine terminates itself."""

    report: PendingReport


class Poll(msgspec.Struct, frozen=True):
    """Ask the provisioner whether to drain, with or without a heartbeat."""

    heartbeat: bool


Act = Wait | Register | Take | SendReport | Poll


class Contact(msgspec.Struct):
    """Times of the last poll and the last heartbeat. Not in the ledger, because a restarted machine may poll again."""

    polled_at: float
    heartbeat_at: float


def next_act(machine: Machine, contact: Contact, rules: Scenario, *, work: bool, now: float) -> Act:
    """The next action. `work`: the queue of the machine's pool has something to start."""
    if machine.refused or (not machine.pool_id and machine.boots_at is None):
        return Wait(None)
    if machine.is_unknown:
        return Register()
    if not machine.pool_id:
        return Register() if machine.boots_at is not None and machine.boots_at <= now else Wait(machine.boots_at)
    if machine.pending_reports:
        return SendReport(machine.pending_reports[0])
    if work and machine.free:
        return Take()
    heartbeat_at = contact.heartbeat_at + rules.heartbeat_seconds
    if heartbeat_at <= now:
        return Poll(heartbeat=True)
    if machine.task_id:
        return Wait(heartbeat_at)
    poll_at = contact.polled_at + rules.poll_seconds
    return Poll(heartbeat=False) if poll_at <= now else Wait(min(poll_at, heartbeat_at))
