"""The simulator's pure core as a cloud provider with machines; its facts are the ground truth of a simulation."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import msgspec

from slipway_provisioner.domain.cloud import Account, Instance, InstanceState, Protected
from slipway_provisioner.loops.launch import REJECTED_BEFORE_TOKEN_CHECK
from slipway_provisioner.providers.port import (
    Accepted,
    CreateRequest,
    OutcomeUnknown,
    Provider,
    Refused,
    TerminationRefused,
)
from slipway_provisioner.providers.simulated import ERRORS
from slipway_simulator import user_data, world
from slipway_simulator.cloud import decide_create, latency_seconds
from slipway_simulator.facts import Call, Fact, InstanceCreated, Reply, ScenarioLoaded
from slipway_simulator.scenario import Scenario
from slipway_simulator.world import World

JOB_SECONDS: Final = (5.0, 90.0)
THROTTLED_JOB_SECONDS: Final = 10.0
JOB_LISTED_SECONDS: Final = 240.0
"""Longest time from a call that is accepted to a listing with its instances: a job waits while it is throttled."""
UNDYING_EVERY: Final = 3  # machines
ACCEPTANCES_LOST: Final = 0.3
"""Share of accepted calls whose reply is lost, while there are faults."""


class Waiting(msgspec.Struct):
    """A call that takes effect at `due_at`; its reply waits for the step `answer`."""

    due_at: float
    call: Call
    request: CreateRequest
    reply: Reply | Accepted | None = None


class Job(msgspec.Struct):
    """An accepted call, which is worked on until `ends_at`; its reply is that of a poll."""

    ends_at: float
    call: Call
    request: CreateRequest
    reply: Reply | None = None


class Machine(msgspec.Struct):
    """One machine; it runs one task, and after it another one if it `goes_on`."""

    instance_id: str
    boots_at: float | None
    user_data: dict[str, Any]
    worker_id: str = ""
    token: str = ""
    refused: bool = False
    rejoining: bool = False  # it was unknown, and has registered again
    stop_requested: bool = False
    task: str = ""
    ends_at: float = 0.0
    polled_at: float = 0.0
    claimed_at: str = ""
    claim_reported: bool = False
    goes_on: bool = False


class Cloud(Provider):
    """Provider of all accounts. Calls take effect after a latency and are answered by a step; while it is `late`, they
    take effect with the answer, which may be after they were looked up. Accounts that are `dead` answer no call, some
    of which take effect. Those that are `accepting` only accept calls, as `jobs` by token, whose end is polled;
    `polled` counts the ends that were told. Until `undying_until` every third machine cannot be terminated, nor does it
    leave when it is asked to; `refused` are those that were to be terminated. `interrupted`: tasks whose machine was
    terminated by a call, and `interrupted_workers`: the workers of those whose claim was known."""

    real = False

    def __init__(self, scenario: Scenario, now: Callable[[], float], chance: Random) -> None:
        self.now = now
        self.chance = chance
        self.world = World()
        self.facts: list[Fact] = []
        self.machines: dict[str, Machine] = {}
        self.waiting: dict[asyncio.Task[Any], Waiting] = {}
        self.late = False
        self.arrived: dict[asyncio.Task[Any], asyncio.Future[Reply | Accepted]] = {}
        self.dead: set[str] = set()
        self.accepting: set[str] = set()
        self.jobs: dict[str, Job] = {}
        self.polled = 0
        self.undying_until = 0.0
        self.refused: set[str] = set()
        self.unanswered = 0
        self.interrupted: list[str] = []
        self.interrupted_workers: set[str] = set()
        self.pending: deque[str] = deque()
        self.done: list[str] = []
        self.record([ScenarioLoaded(at=now(), scenario=scenario)])

    def record(self, facts: Sequence[Fact]) -> None:
        """Append facts and apply them to the world."""
        for fact in facts:
            self.facts.append(fact)
            self.world.fold(fact)
            if isinstance(fact, InstanceCreated):
                self.machines[fact.instance_id] = Machine(fact.instance_id, fact.boots_at, fact.user_data)

    def terminate_now(self, instance_id: str, by: Any) -> None:
        """Terminate an instance; its task, if any, waits again."""
        machine = self.machines.pop(instance_id, None)  # None: of another deployment
        if machine is not None and machine.task:
            self.pending.appendleft(machine.task)
            self.interrupted += [machine.task] if by == "api" else []
            self.interrupted_workers |= {machine.worker_id} if by == "api" and machine.claim_reported else set()
        self.record(list(world.end_instance(self.world, instance_id, by, now=self.now())))

    @property
    def claimed(self) -> int:
        return sum(bool(machine.task) for machine in self.machines.values())

    # Provider port

    def problem(self, account_settings: Mapping[str, Any], region: str) -> str:
        return ""

    def honours_tokens(self, account: Account) -> bool:
        return bool(account.settings.get("honours_tokens"))

    def visibility_seconds(self, account: Account) -> float | None:
        return JOB_LISTED_SECONDS if account.id in self.accepting else None

    def console(self, account: Account, batch_id: str, instance_id: str) -> str:
        return ""

    async def create(self, account: Account, request: CreateRequest) -> Sequence[str] | Accepted:
        call = Call(
            at=self.now(),
            call_id=f"call-{len(self.facts)}",
            account=account.id,
            token=request.token,
            deployment=account.deployment,
            batch=request.batch_id,
            config=request.config["id"],
            count=request.count,
            zone=request.config["zone"],
            instance_type=request.config["instance_type"],
            image=request.config["image"],
            request=request.token,
        )
        self.record([call])
        if account.id in self.dead and self.chance.random() < 0.5:
            self.take(call, request)
        self.check_answers(account)
        task = asyncio.current_task()
        assert task is not None
        reply: Reply | Accepted
        if task.get_name() == "resolve":
            reply = self.take(call, request)
        else:
            latency = latency_seconds(self.world.cloud, account.id, self.chance)
            self.waiting[task] = Waiting(self.now() + latency, call, request)
            self.arrived[task] = asyncio.get_running_loop().create_future()
            reply = await self.arrived[task]
        if isinstance(reply, Reply):
            return self._told(account, request, reply)
        if self.world.faults and self.chance.random() < ACCEPTANCES_LOST:
            raise OutcomeUnknown("no reply")
        return reply

    async def poll(self, account: Account, request: CreateRequest, handle: str) -> Sequence[str] | None:
        """The first poll after the end of a job gets no answer if the reply of its call would have been lost."""
        self.check_answers(account)
        job = self.jobs[handle]
        if job.reply is None:
            return None
        reply, job.reply = job.reply, msgspec.structs.replace(job.reply, lost=False)
        self.polled += not reply.lost
        return self._told(account, request, reply)

    def _told(self, account: Account, request: CreateRequest, reply: Reply) -> Sequence[str]:
        """Instances of a reply. Raises what it says instead."""
        if reply.lost:
            raise OutcomeUnknown("no reply")
        if reply.code == "OK":
            return reply.instance_ids
        outcome = self.failure(account, request.config, reply.code, ERRORS.get(reply.code))
        raise Refused(outcome, "no", retry_after_seconds=reply.retry_after_seconds)

    def take(self, call: Call, request: CreateRequest) -> Reply | Accepted:
        """Apply a call, or accept it. A call with a token that is known is the same job."""
        if call.account not in self.accepting:
            return self.effect(call, request)
        if request.token not in self.jobs:
            self.jobs[request.token] = Job(self.now() + self.chance.uniform(*JOB_SECONDS), call, request)
        return Accepted(request.token)

    def effect(self, call: Call, request: CreateRequest) -> Reply:
        """Apply a call and return its reply."""
        found = user_data.found(request.user_data)
        secret = {name: found[name] for name in ("batch_id", "secret")}
        facts = decide_create(
            self.world.cloud, call, secret, effects=self.world.effects(self.now()), now=self.now(), rng=self.chance
        )
        self.record(facts)
        reply = facts[-1]
        assert isinstance(reply, Reply)
        return reply

    async def called(self, calls: Set[asyncio.Task[None]]) -> None:
        """Wait until each of some calls waits for its answer or has ended; raises what ended it."""
        await asyncio.sleep(0)  # they start
        if ended := calls - self.waiting.keys():
            await asyncio.wait(ended)
            for call in ended:
                call.result()

    def apply_calls(self) -> None:
        """Let due calls take effect, unless they are late, and end the jobs that are due."""
        for waiting in self.waiting.values():
            if not self.late and waiting.reply is None and waiting.due_at <= self.now():
                waiting.reply = self.take(waiting.call, waiting.request)
        for job in self.jobs.values():
            if job.reply is None and job.ends_at <= self.now():
                reply = self.effect(job.call, job.request)
                if ERRORS.get(reply.code) in REJECTED_BEFORE_TOKEN_CHECK:
                    job.ends_at = self.now() + THROTTLED_JOB_SECONDS
                else:
                    job.reply = reply

    async def answer(self) -> None:
        """Answer all due calls, one after another."""
        for task in [task for task, waiting in self.waiting.items() if waiting.due_at <= self.now()]:
            waiting = self.waiting.pop(task)
            self.arrived.pop(task).set_result(waiting.reply or self.take(waiting.call, waiting.request))
            await asyncio.wait({task})
            task.result()

    def forget_caller(self) -> None:
        """Drop the calls of a process that died; some of them still take effect."""
        for waiting in self.waiting.values():
            if waiting.reply is None and self.chance.random() < 0.5:
                self.take(waiting.call, waiting.request)
        self.waiting.clear()
        self.arrived.clear()

    def check_answers(self, account: Account) -> None:
        """Raise OutcomeUnknown if an account is dead."""
        if account.id in self.dead:
            self.unanswered += 1
            raise OutcomeUnknown(f"{account.id} does not answer")

    async def pages(self, account: Account, *, batch_id: str | None = None) -> AsyncIterator[Sequence[Instance]]:
        self.check_answers(account)
        yield [
            Instance(
                id=i.instance_id,
                batch_id=i.batch,
                launch_config_id=i.config,
                created_at=datetime.fromtimestamp(i.created_at, UTC),
                state=InstanceState(i.state(self.now())),
            )
            for i in self.world.cloud.listed(account.id, account.deployment, batch_id, now=self.now())
        ]

    async def exists(self, account: Account, instance_id: str, *, launched_at: datetime | None) -> bool:
        self.check_answers(account)
        return instance_id in self.world.cloud.instances

    def is_undying(self, instance_id: str) -> bool:
        """True if a machine cannot be terminated now."""
        return self.now() < self.undying_until and int(instance_id.removeprefix("i-")) % UNDYING_EVERY == 0

    async def terminate(self, account: Account, instance_ids: Sequence[str]) -> None:
        self.check_answers(account)
        refused = [id_ for id_ in instance_ids if id_ in self.machines and self.is_undying(id_)]
        for instance_id in instance_ids:
            if instance_id not in refused:
                self.terminate_now(instance_id, "api")
        if refused:
            self.refused |= {*refused}
            raise TerminationRefused(dict.fromkeys(refused, Protected("it is protected", "wait")))

    async def identity(self, account: Account) -> str:
        self.check_answers(account)
        return account.id
