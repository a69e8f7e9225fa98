"""Agents of a demo with PROVIDER=process: observation independent of the services, and checks of a run.

The account's command is a launcher that logs its own process id and start time, as the kernel reports them, and then
executes the agent, which keeps both. The end of an agent is reported by the kernel too.
"""

import asyncio
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec

from slipway_api.events import worker as events
from slipway_api.percent import decoded, encoded
from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.base.process import identities
from slipway_common.base.process.guard import guard
from slipway_common.base.process.identities import INSTANCE_TAG, TAG_PARTS
from slipway_common.declaration.models import Declaration
from slipway_common.declaration.parsing import parse
from slipway_local.check.evidence import Evidence
from slipway_local.demo.deployment import Deployment
from slipway_local.servers.supervisor import Supervisor
from slipway_simulator import facts

AGENT: Final = (sys.executable, "-m", "slipway_client.worker", "run")
# Field 22 of /proc/$$/stat is the start time. $0 is the log; if the line cannot be written, no agent runs.
LAUNCHER: Final = """
set -e
read -r pid name state a b c d e f g h i j k l m n o p q r start rest < /proc/$$/stat
echo "$$ $start $SLIPWAY_INSTANCE_TAG" >> "$0"
exec "$@"
"""
LOGS: Final = "agents"  # subfolder of the run's folder
OWN_LOGS: Final = Path(".slipway/agents")
"""Logs of other agents than `slipway-worker run`, which are to be read while they run."""
POLL_SECONDS: Final = 0.02
LEAVE_SECONDS: Final = 120.0  # generous: the last tasks take long on a busy machine
# Longest delay between an agent's report to the provisioner and its next request to the queue, or its exit.
CONFIRM_SECONDS: Final = 1.0
CALLS: Final = (facts.Call, facts.Reply)


class AgentProcess(msgspec.Struct, kw_only=True):
    """Start and end of an agent as the kernel reports them, in epoch seconds; `ended_at` is None while it runs."""

    instance_id: str
    account_id: str
    batch_id: str
    config_id: str
    began_at: float
    ended_at: float | None = None


class Agents:
    """Observes the agents of one deployment. When this process ends, for whatever reason, the guard kills the rest."""

    def __init__(self, deployment: Deployment, command: Sequence[str] = ()) -> None:
        """`command`: another agent than `slipway-worker run`."""
        self.deployment = deployment
        self.command = command or AGENT
        self.logs = (OWN_LOGS if command else deployment.folder / LOGS).resolve()
        self.path = deployment.folder / "agents.log"
        self.seen: dict[str, AgentProcess] = {}
        self.left: int | None = None  # agents still running at the end; None until counted
        self.corrected_seconds = 0.0
        self._watching: asyncio.Task[None] | None = None
        self._following: set[asyncio.Task[None]] = set()
        deployment.providers |= self._permitted()

    @property
    def tag(self) -> str:
        return encoded(self.deployment.id) + "/"

    def declared(self, declaration: Declaration) -> Declaration:
        """The declaration with the settings of process accounts for this machine and this run. From now on the guard
        knows the deployment's agents."""
        guard().tagged(f"{INSTANCE_TAG}={self.tag}")
        body = declaration.model_dump(mode="json")
        for account in body["accounts"]:
            if account["provider"] == "process":
                account["identity"] = socket.gethostname()
                account["settings"]["queue_url"] = f"{self.deployment.url('simulator')}/queue"
        return parse(body)

    def left_over(self) -> str:
        return "" if self.left is None else f"Agent processes still running: {self.left}"

    def _permitted(self) -> dict[str, Any]:
        """Operator's settings of the provider of the agents."""
        # A mutated copy of the tree runs agents of that copy.
        environment = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
        environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {
            "command": ["sh", "-c", LAUNCHER, str(self.path), *self.command],
            "work_folder": str(Path.cwd()),
            "log_folder": str(self.logs),
            "environment": environment,
        }
        return {"process": {"entries": {"default": own}}}

    async def start(self, supervisor: Supervisor) -> None:
        """Start to record the start and end of every agent."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        self._watching = asyncio.create_task(self._watch())

    async def play(self) -> None:
        """Nothing: processes have no scenario."""

    async def _watch(self) -> None:
        with self.path.open("rb") as lines:
            while True:
                while line := lines.readline():
                    if not line.endswith(b"\n"):
                        lines.seek(-len(line), os.SEEK_CUR)  # only partly written
                        break
                    self._record(line.decode())
                await asyncio.sleep(POLL_SECONDS)

    async def leave(self) -> None:
        """Wait, at most LEAVE_SECONDS, until no task is left and all agents have exited: idle ones are terminated.

        Raises the exception that ended the observation, if any."""
        deadline = monotonic_seconds() + LEAVE_SECONDS
        while monotonic_seconds() < deadline:
            self._check_observation()
            if not await self._busy():
                break
            await asyncio.sleep(0.1)

    async def count(self) -> None:
        """Count the agents that still run, before they are killed: all processes that carry the tag in /proc, children
        included, and all observed agents, whatever their environment is by now.

        Raises the exception that ended the observation, if any."""
        self._check_observation()
        self.left = self._running()

    def _running(self) -> int:
        tagged = {process.identity for process in identities.tagged(INSTANCE_TAG, self.tag)}
        return len(tagged | {identity for identity in self.seen if identities.alive(identity)})

    def _check_observation(self) -> None:
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
        """The evidence with the observed agents as the cloud's ledger."""
        evidence, self.corrected_seconds = merged(found, [*self.seen.values()])
        return evidence

    def problems(self, found: Evidence) -> list[str]:
        left = [f"agent processes still running at the end: {self.left}"] if self.left else []
        return contradictions(found, [*self.seen.values()]) + left

    def summary(self, found: Evidence) -> str:
        return summary(found, [*self.seen.values()], self.corrected_seconds)

    def _record(self, line: str) -> None:
        pid, start, tag = [*line.split(), ""][:3]
        if len(parts := decoded(tag)) != TAG_PARTS:
            raise ValueError(f"{self.path} has {line!r}: a process was started without {INSTANCE_TAG}")
        _, account_id, batch_id, _, config_id, _ = parts
        identity = identities.identity_of(int(pid), int(start))
        began_at = identities.started_at(int(start)).timestamp()
        seen = AgentProcess(
            instance_id=identity, account_id=account_id, batch_id=batch_id, config_id=config_id, began_at=began_at
        )
        self.seen[identity] = seen
        self._following.add(asyncio.create_task(_follow(seen)))


async def _follow(seen: AgentProcess) -> None:
    await identities.ended(seen.instance_id)
    seen.ended_at = utc_now().timestamp()


def merged(
    found: Evidence, agents: Sequence[AgentProcess], calls: Sequence[facts.Fact] | None = None
) -> tuple[Evidence, float]:
    """The evidence with the observed agents as the cloud's ledger, and the total correction in seconds. `calls`: launch
    calls and their replies; without them, each agent was a call of its own.

    An agent uses a lease unit from its start until it has registered, and counts towards its pool until it has reported
    that it stops. It reports both to the provisioner, which reuses them at once; the agent's next request to the queue,
    or its exit, follows a moment later. The earlier time counts if the later one confirms it within CONFIRM_SECONDS and
    the queue received nothing from the agent in between. The difference is the correction.
    """
    registered_at = _event_times(found, events.WorkerRegistered)
    stopped_at = _event_times(found, events.WorkerStopped)
    by_instance = {row["instance_id"]: row["id"] for row in found.rows.workers if row["instance_id"]}
    began_at = {seen.instance_id: seen.began_at for seen in agents}
    worked_until = _worked_until(found)
    corrected_seconds = 0.0
    ledger: list[facts.Fact] = []
    for fact in found.ledger:
        if isinstance(fact, facts.Registered):
            reported_at = registered_at.get(by_instance.get(fact.instance_id, ""))
            at = _confirmed(reported_at, fact.at, began_at.get(fact.instance_id, fact.at))
            corrected_seconds += fact.at - at
            fact = msgspec.structs.replace(fact, at=at)
        ledger.append(fact)
    for seen in agents:
        ended_at = seen.ended_at
        if ended_at is not None:
            reported_at = stopped_at.get(by_instance.get(seen.instance_id, ""))
            at = _confirmed(reported_at, ended_at, worked_until.get(seen.instance_id, seen.began_at))
            corrected_seconds += ended_at - at
            ended_at = at
        ledger += (fact for fact in _facts_of(seen, ended_at) if calls is None or not isinstance(fact, CALLS))
    ledger += calls or ()
    return msgspec.structs.replace(found, ledger=sorted(ledger, key=lambda fact: fact.at)), corrected_seconds


def _worked_until(found: Evidence) -> dict[str, float]:
    """Time of the last request of each agent to the queue. The expiry of a claim is not a request."""
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


def _facts_of(seen: AgentProcess, ended_at: float | None) -> Iterator[facts.Fact]:
    """An agent as ledger facts: one call, its reply, the instance, and its termination."""
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


def _event_times(found: Evidence, kind: type[events.WorkerRegistered | events.WorkerStopped]) -> dict[str, float]:
    """Time of this event of each worker, by the topic."""
    return {
        record.event.worker_id: record.envelope.time.timestamp()
        for record in found.published
        if isinstance(record.event, kind) and record.envelope is not None
    }


def _confirmed(reported_at: float | None, seen_at: float, not_before: float) -> float:
    if reported_at is None or not max(not_before, seen_at - CONFIRM_SECONDS) <= reported_at <= seen_at:
        return seen_at
    return reported_at


def contradictions(found: Evidence, agents: Sequence[AgentProcess]) -> list[str]:
    """Contradictions between the queue and the kernel: tasks on processes that did not exist at that time."""
    lives = {seen.instance_id: seen for seen in agents}
    on_a_worker = [
        fact
        for fact in found.ledger
        if isinstance(fact, facts.TaskClaimed) or (isinstance(fact, facts.TaskEnded) and fact.result == "done")
    ]
    absent = sorted({fact.task_id for fact in on_a_worker if not _ran(lives.get(fact.instance_id), fact.at)})
    return [f"tasks ran on processes that did not exist at that time: {absent[:2]}"] if absent else []


def _ran(seen: AgentProcess | None, at: float) -> bool:
    return seen is not None and seen.began_at <= at and (seen.ended_at is None or at <= seen.ended_at)


def summary(found: Evidence, agents: Sequence[AgentProcess], corrected_seconds: float) -> str:
    """One line on agents and their tasks. `corrected_seconds`: see `merged`."""
    tasks = [fact for fact in found.ledger if isinstance(fact, facts.TaskEnded) and fact.result == "done"]
    ended = sum(seen.ended_at is not None for seen in agents)
    worked = f"{len(tasks)} task{'' if len(tasks) == 1 else 's'} done by {len({f.instance_id for f in tasks})} of them"
    return f"agents: {len(agents)} started, {ended} ended, {worked}; times corrected by {corrected_seconds:.1f} s"
