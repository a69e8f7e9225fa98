"""Real processes as the demo's agents: who they were by a witness that asks none of our services, and what a run of
theirs has to have shown.

The account's command is a launcher that writes down its own number and start, as the kernel gives them, and then
becomes the agent: number and start stay. The end is the kernel's word too, through a handle of the process.
"""

import asyncio
import math
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import httpx2
import msgspec

from slipway_common import processes
from slipway_common.clock import monotonic_seconds, utc_now
from slipway_common.declaration import Declaration
from slipway_common.events import worker as events
from slipway_common.processes import INSTANCE_TAG
from slipway_local.deployment import Deployment
from slipway_local.evidence import Evidence
from slipway_local.guard import guard
from slipway_simulator import facts

AGENT: Final = (sys.executable, "-m", "slipway_client.worker", "run")
# Of /proc/$$/stat it keeps the 22nd field. Without its line no agent runs. $0 is where the line goes.
LAUNCHER: Final = """
set -e
read -r pid name state a b c d e f g h i j k l m n o p q r start rest < /proc/$$/stat
echo "$$ $start $SLIPWAY_INSTANCE_TAG" >> "$0"
exec "$@"
"""
LOGS: Final = "agents"  # a folder in the run's
LOOK_SECONDS: Final = 0.02
LEAVE_SECONDS: Final = 120.0  # ample: a machine that is busy with other things takes long over the last tasks
# What an agent needs, after its word to the provisioner, for its next one to the queue, or to exit.
FOLLOWS_SECONDS: Final = 1.0
TASKS_PER_SECOND_MIN: Final = 0.1  # of the demand's time; a machine that is busy with other things does as much
AGENTS_MIN: Final = 4


class Seen(msgspec.Struct, kw_only=True):
    """An agent's life by the kernel, in epoch seconds; `ended_at` is None while it runs."""

    instance_id: str
    account_id: str
    batch_id: str
    config_id: str
    began_at: float
    ended_at: float | None = None


class Agents:
    """Those of one deployment. Once this one is gone, however it went, the guard ends all that still run."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.tag = f"{deployment.run_id}/"
        self.path = deployment.folder / "agents.log"
        self.seen: dict[str, Seen] = {}
        self.left: int | None = None
        self.forgiven_seconds = 0.0
        self._watching: asyncio.Task[None] | None = None
        guard().tagged(f"{INSTANCE_TAG}={self.tag}")

    def declared(self, declaration: Declaration) -> Declaration:
        """With what the accounts of processes have to say on this machine, in this run."""
        body = declaration.model_dump(mode="json")
        for account in body["accounts"]:
            if account["provider"] == "process":
                account["identity"] = socket.gethostname()
                account["settings"] |= self._settings()
        return Declaration.model_validate(body)

    def _settings(self) -> dict[str, Any]:
        # On a broken copy of the tree the agents are to be the broken ones.
        environment = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
        return {
            "command": ["sh", "-c", LAUNCHER, str(self.path), *AGENT],
            "queue_url": f"{self.deployment.url('simulator')}/queue",
            "log_folder": str(self.deployment.folder / LOGS),
            "environment": environment,
        }

    def watch(self) -> None:
        """Begin to note every agent that begins, and its end."""
        self.path.touch()
        self._watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        with self.path.open("rb") as lines:
            while True:
                while line := lines.readline():
                    if not line.endswith(b"\n"):
                        lines.seek(-len(line), os.SEEK_CUR)  # it is being written
                        break
                    self._note(line.decode())
                await asyncio.sleep(LOOK_SECONDS)

    async def leave(self) -> None:
        """Wait until there is nothing to do and all have gone: those that are idle are told to leave.

        Raises what ended the witness, if it has ended."""
        deadline = monotonic_seconds() + LEAVE_SECONDS
        while monotonic_seconds() < deadline:
            self._witnessed()
            if not await self._busy():
                break
            await asyncio.sleep(0.1)

    def count(self) -> None:
        """Note how many are left, before anybody ends them: processes that carry the tag, children too, by /proc, and
        agents that have begun, whatever they carry by now. Raises what ended the witness, if it has ended."""
        self._witnessed()
        self.left = self._running()

    def _running(self) -> int:
        carry = {process.identity for process in processes.tagged(INSTANCE_TAG, self.tag)}
        return len(carry | {identity for identity in self.seen if processes.alive(identity)})

    def _witnessed(self) -> None:
        if self._watching is not None and self._watching.done():
            self._watching.result()

    async def _busy(self) -> bool:
        try:
            queue, pools = await asyncio.gather(
                self.deployment.call("GET", "simulator", "/state"), self.deployment.call("GET", "provisioner", "/pools")
            )
        except httpx2.HTTPError:
            return True
        tasks = sum(pool["pending"] + pool["claimed"] for pool in queue["pools"].values())
        return bool(tasks or any(pool["serving"] for pool in pools["items"]) or self._running())

    def merged(self, found: Evidence) -> Evidence:
        told, self.forgiven_seconds = merged(found, [*self.seen.values()])
        return told

    def shortcomings(self, found: Evidence, *, seconds: float) -> list[str]:
        """In a run of `seconds`, 0 for whatever there was to do."""
        problems = shortcomings(found, [*self.seen.values()], seconds=seconds)
        return problems + ([f"{self.left} processes of agents are left"] if self.left else [])

    def summary(self, found: Evidence) -> str:
        return summary(found, [*self.seen.values()], self.forgiven_seconds)

    def _note(self, line: str) -> None:
        pid, start, tag = [*line.split(maxsplit=2), ""][:3]
        if tag.count("/") < 4:
            raise ValueError(f"{self.path} has {line!r}: a process was started without its {INSTANCE_TAG}")
        _, account_id, batch_id, _, config_id = tag.strip().rsplit("/", 4)
        identity = processes.identity_of(int(pid), int(start))
        began_at = processes.started_at(int(start)).timestamp()
        seen = Seen(
            instance_id=identity, account_id=account_id, batch_id=batch_id, config_id=config_id, began_at=began_at
        )
        self.seen[identity] = seen
        try:
            handle = os.pidfd_open(int(pid))
        except ProcessLookupError:
            _end(seen)
            return
        if not processes.alive(identity):  # the handle may be somebody else's
            os.close(handle)
            _end(seen)
            return
        asyncio.get_running_loop().add_reader(handle, self._ended, handle, seen)

    def _ended(self, handle: int, seen: Seen) -> None:
        asyncio.get_running_loop().remove_reader(handle)
        os.close(handle)
        _end(seen)


def _end(seen: Seen) -> None:
    seen.ended_at = utc_now().timestamp()


def merged(found: Evidence, agents: Sequence[Seen]) -> tuple[Evidence, float]:
    """The evidence with the witness's word as the cloud's own ledger, and how many seconds of it were forgiven.

    A lease unit is held from an agent's start until it has registered, a pool's place until it has said that it stops.
    Both are told to the provisioner, who makes use of them at once; the queue hears from the agent, and the process
    ends, a moment later. The earlier instant counts if the later one confirms it soon enough, and the queue has heard
    nothing of the agent in between. The seconds between the two are what is forgiven.
    """
    said_registered = _told(found, events.WorkerRegistered)
    said_stopped = _told(found, events.WorkerStopped)
    by_instance = {row["instance_id"]: row["id"] for row in found.rows.workers if row["instance_id"]}
    began_at = {seen.instance_id: seen.began_at for seen in agents}
    worked_until = _worked_until(found)
    forgiven_seconds = 0.0
    told: list[facts.Fact] = []
    for fact in found.ledger:
        if isinstance(fact, facts.Registered):
            said_at = said_registered.get(by_instance.get(fact.instance_id, ""))
            at = _confirmed(said_at, fact.at, began_at.get(fact.instance_id, fact.at))
            forgiven_seconds += fact.at - at
            fact = msgspec.structs.replace(fact, at=at)
        told.append(fact)
    for seen in agents:
        ended_at = seen.ended_at
        if ended_at is not None:
            said_at = said_stopped.get(by_instance.get(seen.instance_id, ""))
            at = _confirmed(said_at, ended_at, worked_until.get(seen.instance_id, seen.began_at))
            forgiven_seconds += ended_at - at
            ended_at = at
        told += _life(seen, ended_at)
    return msgspec.structs.replace(found, ledger=sorted(told, key=lambda fact: fact.at)), forgiven_seconds


def _worked_until(found: Evidence) -> dict[str, float]:
    """When the queue last heard of each agent. That a claim has run out is no word of the agent's."""
    last: dict[str, float] = {}
    holders: dict[str, str] = {}
    for fact in found.ledger:
        match fact:
            case facts.TaskClaimed():
                holders[fact.task_id] = fact.instance_id
                last[fact.instance_id] = fact.at
            case facts.TaskRenewed() if fact.task_id in holders:
                last[holders[fact.task_id]] = fact.at
            case facts.Registered() | facts.TaskEnded(result="done"):
                last[fact.instance_id] = fact.at
    return last


def _life(seen: Seen, ended_at: float | None) -> Iterator[facts.Fact]:
    """One call, its reply, the instance, and its end."""
    at, id_, account = seen.began_at, seen.instance_id, seen.account_id
    body = {"deployment": "", "batch": seen.batch_id, "config": seen.config_id}
    kind = {"zone": "", "instance_type": "", "image": "", "request": "", "token": ""}
    yield facts.Call(at=at, call_id=id_, account=account, count=1, **body, **kind)
    yield facts.Reply(at=at, call_id=id_, account=account, code="OK", instance_ids=(id_,))
    yield facts.InstanceCreated(
        at=at,
        instance_id=id_,
        call_id=id_,
        account=account,
        visible_at=at,
        boots_at=None,
        claims=True,
        user_data={},
        **body,
        **kind,
    )
    if ended_at is not None:
        yield facts.Terminated(at=max(at, ended_at), instance_id=id_, account=account, by="self")


def _told(found: Evidence, kind: type[events.WorkerRegistered | events.WorkerStopped]) -> dict[str, float]:
    """When the topic says it of each worker."""
    return {
        record.event.worker_id: record.envelope.time.timestamp()
        for record in found.published
        if isinstance(record.event, kind) and record.envelope is not None
    }


def _confirmed(told_at: float | None, seen_at: float, not_before: float) -> float:
    if told_at is None or not max(not_before, seen_at - FOLLOWS_SECONDS) <= told_at <= seen_at:
        return seen_at
    return told_at


def shortcomings(found: Evidence, agents: Sequence[Seen], *, seconds: float) -> list[str]:
    """What the queue and the kernel say against each other, and what a run of `seconds` must have shown: only tasks
    that were done within that time of the first arrival count, and each config that had an agent in the first half of
    it must have done one."""
    lives = {seen.instance_id: seen for seen in agents}
    claims = [fact for fact in found.ledger if isinstance(fact, facts.TaskClaimed)]
    done = [fact for fact in found.ledger if isinstance(fact, facts.TaskEnded) and fact.result == "done"]
    on_a_worker: list[facts.TaskClaimed | facts.TaskEnded] = [*claims, *done]
    ghosts = sorted({fact.task_id for fact in on_a_worker if not _lived(lives.get(fact.instance_id), fact.at)})
    arrived = [fact.at for fact in found.ledger if isinstance(fact, facts.TaskArrived)]
    least = min(math.ceil(TASKS_PER_SECOND_MIN * seconds), len(arrived))
    began_at = min(arrived, default=0.0)
    in_time = [fact for fact in done if fact.at <= began_at + seconds]
    worked = {lives[fact.instance_id].config_id for fact in in_time if fact.instance_id in lives}
    expected = {seen.config_id for seen in agents if seen.began_at < began_at + seconds / 2}
    return [
        text
        for is_so, text in (
            (ghosts, f"{len(ghosts)} tasks ran on a process that did not exist then, such as {ghosts[:2]}"),
            (len(in_time) < least, f"{len(in_time)} of {len(arrived)} tasks were done in time; at least {least}"),
            (seconds and expected - worked, f"configs {sorted(expected - worked)} have done no task in time"),
            (seconds and len(agents) < AGENTS_MIN, f"{len(agents)} agents were started; at least {AGENTS_MIN}"),
            (not claims, "no task was claimed"),
        )
        if is_so
    ]


def _lived(seen: Seen | None, at: float) -> bool:
    return seen is not None and seen.began_at <= at and (seen.ended_at is None or at <= seen.ended_at)


def summary(found: Evidence, agents: Sequence[Seen], forgiven_seconds: float) -> str:
    """Counted by the witness and by the queue. `forgiven_seconds`: by how much agents were taken for registered, or
    gone, before the queue or the kernel said so."""
    tasks = [fact for fact in found.ledger if isinstance(fact, facts.TaskEnded) and fact.result == "done"]
    ended = sum(seen.ended_at is not None for seen in agents)
    worked = f"tasks={len(tasks)} on {len({f.instance_id for f in tasks})} of them"
    return f"agents={len(agents)} ended={ended} {worked} forgiven={forgiven_seconds:.1f} s"
