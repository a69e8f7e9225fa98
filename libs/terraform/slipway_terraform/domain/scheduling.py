"""Decision of the scheduler: facts about processes and callers in, steps out. Pure; executing a step takes no choices.

Callers are served in the order of their arrival. A caller that waits for a start, or for room under the cap, delays no
later caller that needs neither, but a slot that it needs is not given to later callers. A caller gets all of its
processes at once or none, so that callers that need several never wait for each other.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from slipway_terraform.domain import compatibility
from slipway_terraform.domain.breaker import Breaker
from slipway_terraform.domain.generations import Generation, Reason, State
from slipway_terraform.domain.handle import base_of
from slipway_terraform.domain.policy import Policy


class Waiter(msgspec.Struct, frozen=True, kw_only=True):
    """A caller that waits. `handles` are sorted and distinct. Ids grow in the order of arrival."""

    id: int
    handles: tuple[str, ...]
    deadline: float


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """State of the scheduler: live generations, waiting callers by id, breakers by base handle; `head` is the first
    caller that waited for room in the last decision, `overtakes` how often it has been overtaken."""

    generations: Sequence[Generation]
    waiters: Sequence[Waiter]
    breakers: Mapping[str, Breaker]
    now: float
    head: int | None = None
    overtakes: int = 0


class Refusal(StrEnum):
    """Reason for which a caller is refused."""

    DEADLINE = "deadline"
    TRIPPED = "tripped"
    BUDGET = "budget"


class Grant(msgspec.Struct, frozen=True):
    """Lease on these generations, in the order of the waiter's handles, with its reservation."""

    waiter: int
    generations: tuple[Generation, ...]


class Refuse(msgspec.Struct, frozen=True):
    """Error for a caller, because of one of its handles if it names one."""

    waiter: int
    refusal: Refusal
    handle: str = ""


class Decision(msgspec.Struct, kw_only=True):
    """Steps, to be taken in the order of the fields. `start` names a handle and the caller whose specification is used.
    `wake_at` is the next time at which time alone changes the decision."""

    retire: list[tuple[Generation, Reason]] = []
    stop: list[Generation] = []
    refuse: list[Refuse] = []
    grant: list[Grant] = []
    start: list[tuple[str, int]] = []
    renew: list[Generation] = []
    """Generations whose successors start while they still serve."""
    head: int | None = None
    overtakes: int = 0
    wake_at: float | None = None

    @property
    def steps(self) -> int:
        """Number of steps; after they were taken, another decision may find more."""
        return (
            len(self.retire) + len(self.stop) + len(self.refuse) + len(self.grant) + len(self.start) + len(self.renew)
        )


def decide(facts: Facts, policy: Policy) -> Decision:
    """Steps that are due now."""
    return _Round(facts, policy).decide()


class _Round:
    """State of one call of `decide`."""

    def __init__(self, facts: Facts, policy: Policy) -> None:
        self._facts, self._policy = facts, policy
        self._decision = Decision()
        self._room = policy.max_processes - sum(each.live for each in facts.generations)
        self._leaving = sum(each.state is State.STOPPING for each in facts.generations)
        self._ready = {each.handle: each for each in facts.generations if each.state is State.READY}
        self._starting = {each.handle for each in facts.generations if each.state is State.STARTING}
        self._claimed: Counter[str] = Counter()  # slots granted now, or kept for callers who wait
        self._wanted = {handle for waiter in facts.waiters for handle in waiter.handles}
        self._full: set[tuple[str, ...]] = set()  # single handles that have kept a caller waiting in this decision
        # Such a caller can be served by that process alone, so sparing it serves somebody.
        self._wanted_alone = {waiter.handles[0] for waiter in facts.waiters if len(waiter.handles) == 1}
        self._timers: list[float] = []
        self._renewable: list[Generation] = []

    def decide(self) -> Decision:
        for generation in self._facts.generations:
            self._expire(generation)
        for waiter in self._facts.waiters:
            self._serve(waiter)
        for generation in self._renewable:
            self._renew(generation)
        future = [time for time in self._timers if time > self._facts.now]
        self._decision.wake_at = min(future, default=None)
        return self._decision

    def _expire(self, generation: Generation) -> None:
        """Retire what has served its time, and stop what has drained."""
        now, policy = self._facts.now, self._policy
        if generation.state is State.DRAINING and not generation.in_use:
            self._stop(generation)
        if generation.state is not State.READY:
            return
        if reason := self._end_of(generation):
            self._retire(generation, reason)
            return
        self._timers.append(generation.ready_at + generation.max_age_seconds)
        if not generation.in_use and generation.handle not in self._wanted:
            if now >= generation.idle_since + policy.idle_seconds:
                self._retire(generation, Reason.IDLE)
            self._timers.append(generation.idle_since + policy.idle_seconds)

    def _end_of(self, generation: Generation) -> Reason | None:
        """Reason to give a generation no new leases."""
        policy = self._policy
        if generation.memory_bytes >= policy.hard_memory_bytes:
            return Reason.MEMORY_HARD
        if generation.memory_bytes >= policy.soft_memory_bytes:
            return Reason.MEMORY
        if policy.compatible:
            return None  # upjet replaces for invocations only, and only when asked again
        if self._facts.now >= generation.ready_at + generation.max_age_seconds:
            return Reason.AGE
        if (ttl := policy.ttl_invocations) is not None:
            spent = generation.invocations + generation.pending
            if spent >= ttl and (not generation.in_use or spent >= int(ttl * (1 + policy.margin))):
                return Reason.INVOCATIONS
        return None

    def _serve(self, waiter: Waiter) -> None:
        """Grant a caller its lease, refuse it, or prepare what it waits for."""
        if self._facts.now >= waiter.deadline:
            self._decision.refuse.append(Refuse(waiter.id, Refusal.DEADLINE))
            return
        if waiter.handles in self._full:
            self._timers.append(waiter.deadline)
            return  # nothing has become free since, and a thousand callers may wait for it
        if self._policy.compatible and self._refused_as_upjet_does(waiter):
            return
        for handle in waiter.handles:
            if (breaker := self._breaker(handle)) and breaker.tripped and not self._served(handle):
                self._decision.refuse.append(Refuse(waiter.id, Refusal.TRIPPED, handle))
                return
        if self._is_free(waiter):
            self._grant(waiter)
            return
        self._timers.append(waiter.deadline)
        self._claimed.update(waiter.handles)
        if len(waiter.handles) == 1:
            self._full.add(waiter.handles)
        for handle in waiter.handles:
            ready = self._ready.get(handle)
            if ready and ready.in_use >= self._policy.max_concurrency and self._is_due(ready):
                self._retire(ready, Reason.INVOCATIONS)  # callers need not wait for its slots
            if not self._served(handle):
                self._start(waiter, handle)

    def _breaker(self, handle: str) -> Breaker | None:
        """Breaker of a handle if it delays a start now."""
        breaker = self._facts.breakers.get(base_of(handle))
        return breaker if breaker and self._facts.now < breaker.retry_at else None

    def _is_due(self, ready: Generation) -> bool:
        """True if a process has served its invocations and may only serve on until its successor is ready."""
        ttl = self._policy.ttl_invocations
        return not self._policy.compatible and ttl is not None and ready.invocations + ready.pending >= ttl

    def _served(self, handle: str) -> bool:
        """True if a process of the handle takes leases, or will."""
        return handle in self._ready or handle in self._starting

    def _is_free(self, waiter: Waiter) -> bool:
        return all(
            (ready := self._ready.get(handle)) is not None
            and (self._policy.compatible or ready.in_use + self._claimed[handle] < self._policy.max_concurrency)
            and not self._is_spent(ready)
            for handle in waiter.handles
        )

    def _is_spent(self, ready: Generation) -> bool:
        """True if the leases granted in this decision already use up the margin."""
        ttl = self._policy.ttl_invocations
        if ttl is None or self._policy.compatible:
            return False
        spent = ready.invocations + ready.pending + self._claimed[ready.handle]
        return spent >= max(ttl, int(ttl * (1 + self._policy.margin)))

    def _grant(self, waiter: Waiter) -> None:
        generations = tuple(self._ready[handle] for handle in waiter.handles)
        self._decision.grant.append(Grant(waiter.id, generations))
        self._claimed.update(waiter.handles)
        self._decision.overtakes += self._decision.head is not None
        self._renewable += [each for each in generations if self._is_due(each) and each not in self._renewable]

    def _start(self, waiter: Waiter, handle: str) -> None:
        """Start a process for a caller: in free room, or in that of another, or later."""
        if breaker := self._breaker(handle):
            self._timers.append(breaker.retry_at)
            return
        if self._policy.compatible or self._room > 0:
            self._room -= 1
            self._starting.add(handle)
            self._decision.start.append((handle, waiter.id))
            return
        self._starting.add(handle)  # callers after this one wait for the same process
        if first := self._decision.head is None:
            self._decision.head = waiter.id
            self._decision.overtakes = self._facts.overtakes if self._facts.head == waiter.id else 0
        if self._leaving > 0:
            self._leaving -= 1  # this room becomes free by itself
            return
        patient = not first or self._decision.overtakes < self._policy.max_overtakes
        if victim := self._victim(patient=patient):
            if not victim.in_use:
                self._leaving -= 1
            else:
                self._decision.overtakes = 0
            self._retire(victim, Reason.EVICTED)

    def _victim(self, *, patient: bool) -> Generation | None:
        """Process to retire for another handle: the one idle for longest that no caller needs. Unless `patient`, also
        one that callers wait for, or else the one with the fewest leases."""
        candidates = [each for each in self._ready.values() if not self._claimed[each.handle]]
        idle = [each for each in candidates if not each.in_use and not (patient and each.handle in self._wanted_alone)]
        if idle:
            return min(idle, key=lambda each: (each.handle in self._wanted, each.idle_since, each.id))
        if patient or not candidates:
            return None
        return min(candidates, key=lambda each: (each.in_use, each.ready_at, each.id))

    def _renew(self, generation: Generation) -> None:
        """Start the successor of a process that is about to use up its margin, if there is room."""
        if generation.handle in self._starting or generation.handle not in self._ready:
            return
        if self._room > 0 and not self._breaker(generation.handle):
            self._room -= 1
            self._starting.add(generation.handle)
            self._decision.renew.append(generation)

    def _refused_as_upjet_does(self, waiter: Waiter) -> bool:
        assert self._policy.ttl_invocations is not None
        for handle in waiter.handles:
            if ready := self._ready.get(handle):
                verdict = compatibility.verdict(
                    invocations=ready.invocations,
                    in_use=ready.in_use + self._claimed[handle],
                    ttl=self._policy.ttl_invocations,
                )
                if verdict == "refuse":
                    self._decision.refuse.append(Refuse(waiter.id, Refusal.BUDGET, handle))
                    return True
                if verdict == "replace":
                    self._retire(ready, Reason.INVOCATIONS)
        return False

    def _retire(self, generation: Generation, reason: Reason) -> None:
        self._decision.retire.append((generation, reason))
        del self._ready[generation.handle]
        if not generation.in_use:
            self._stop(generation)

    def _stop(self, generation: Generation) -> None:
        self._decision.stop.append(generation)
        self._leaving += 1
