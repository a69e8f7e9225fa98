"""Laws of the scheduler's decision, for any facts."""

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slipway_terraform.domain.breaker import Breaker
from slipway_terraform.domain.errors import ProviderStartError
from slipway_terraform.domain.generations import Event, Generation, Reason, State
from slipway_terraform.domain.policy import Policy
from slipway_terraform.domain.scheduling import Decision, Facts, Refusal, Waiter, decide

NOW = 1000.0
HANDLES = "abcd"
POLICIES = st.builds(
    Policy,
    ttl_invocations=st.sampled_from([None, 1, 3, 10]),
    margin=st.sampled_from([0.0, 0.1, 0.5]),
    max_processes=st.integers(3, 5),
    max_concurrency=st.integers(1, 3),
    max_overtakes=st.integers(0, 2),
    idle_seconds=st.sampled_from([0.0, 300.0]),
)


@st.composite
def facts(draw: st.DrawFn) -> tuple[Facts, Policy]:
    """Facts that a scheduler may have: at most one ready and one starting generation per handle, within the limits."""
    policy = draw(POLICIES)
    generations: list[Generation] = []
    # Mostly at the cap, where the decisions are hard.
    most = policy.max_processes
    kind = st.tuples(st.sampled_from(HANDLES), st.sampled_from([*list(State)[:4], State.READY, State.READY]))
    kinds = draw(st.lists(kind, min_size=draw(st.sampled_from([0, most])), max_size=most))
    seen = set()
    for handle, state in kinds:
        if state in (State.READY, State.STARTING) and (handle, state) in seen:
            continue
        seen.add((handle, state))
        in_use = 0 if state in (State.STARTING, State.STOPPING) else draw(st.integers(0, policy.max_concurrency))
        generations.append(
            Generation(
                id=len(generations),
                handle=handle,
                family="f",
                max_age_seconds=draw(st.sampled_from([5000.0, 5000.0, 5000.0, 10.0])),
                state=state,
                ready_at=draw(st.sampled_from([0.0, NOW])),
                idle_since=draw(st.sampled_from([0.0, NOW - 1, NOW])),
                in_use=in_use,
                pending=draw(st.integers(0, in_use)),
                invocations=draw(st.sampled_from([0, 0, 0, 1, 3, 9, 10, 12])),
                memory_bytes=draw(st.sampled_from([0] * 6 + [policy.soft_memory_bytes, policy.hard_memory_bytes])),
            )
        )
    waiters = [
        Waiter(id=100 + number, handles=tuple(sorted(handles)), deadline=deadline)
        for number, (handles, deadline) in enumerate(
            draw(
                st.lists(
                    st.tuples(
                        st.sets(st.sampled_from(HANDLES), min_size=1, max_size=3),
                        st.sampled_from([NOW + 9, NOW + 9, NOW + 9, NOW]),
                    ),
                    max_size=8,
                )
            )
        )
    ]
    breakers = {
        handle: Breaker(failures=1, retry_at=NOW + when, tripped=tripped, error=ProviderStartError("x"))
        for handle, when, tripped in draw(
            st.lists(st.tuples(st.sampled_from(HANDLES), st.sampled_from([-1.0, 5.0]), st.booleans()), max_size=2)
        )
    }
    head = draw(st.sampled_from([None, 100, 101]))
    return (
        Facts(
            generations=generations,
            waiters=waiters,
            breakers=breakers,
            now=NOW,
            head=head,
            overtakes=draw(st.integers(0, 3)),
        ),
        policy,
    )


def take(facts: Facts, decision: Decision) -> Facts:
    """Facts after the steps, as the scheduler takes them."""
    for generation, _ in decision.retire:
        generation.advance(Event.RETIRED)
    for generation in decision.stop:
        generation.advance(Event.EMPTIED)
    for grant in decision.grant:
        for generation in grant.generations:
            generation.reserve("owner")
    started = [handle for handle, _ in decision.start] + [each.handle for each in decision.renew]
    gone = {each.waiter for each in decision.grant} | {each.waiter for each in decision.refuse}
    new = [Generation(id=200 + n, handle=handle, family="f", max_age_seconds=9) for n, handle in enumerate(started)]
    return Facts(
        generations=[*facts.generations, *new],
        waiters=[waiter for waiter in facts.waiters if waiter.id not in gone],
        breakers=facts.breakers,
        now=facts.now,
        head=decision.head,
        overtakes=decision.overtakes,
    )


@given(facts())
def test_no_process_stops_in_use(given: tuple[Facts, Policy]) -> None:
    """Invariant 3. An illegal transition would raise when the steps are taken."""
    decision = decide(*given)
    assert [each.id for each in decision.stop if each.in_use] == []
    granted = {each.id for grant in decision.grant for each in grant.generations}
    assert granted & {each.id for each in decision.stop} == set()
    take(given[0], decision)


@given(facts())
def test_caps(given: tuple[Facts, Policy]) -> None:
    """Invariant 4: processes, and leases of each."""
    known, policy = given
    live = sum(each.live for each in known.generations)
    decision = decide(known, policy)
    started = len(decision.start) + len(decision.renew)
    assert started <= max(0, policy.max_processes - live)
    granted = Counter(each.id for grant in decision.grant for each in grant.generations)
    over = [
        each
        for each in known.generations
        if granted[each.id] and each.in_use + granted[each.id] > policy.max_concurrency
    ]
    assert over == []


@given(facts())
def test_leases_are_complete_and_on_ready_processes(given: tuple[Facts, Policy]) -> None:
    """Invariants 2 and 7: all handles of a caller or none, each on a process that takes leases."""
    decision = decide(*given)
    waiters = {waiter.id: waiter for waiter in given[0].waiters}
    retired = {each.id for each, _ in decision.retire}
    for grant in decision.grant:
        assert tuple(each.handle for each in grant.generations) == waiters[grant.waiter].handles
        assert all(each.state is State.READY and each.id not in retired for each in grant.generations)
    answered = [each.waiter for each in decision.grant] + [each.waiter for each in decision.refuse]
    assert len(answered) == len(set(answered))


@given(facts())
def test_one_start_per_handle(given: tuple[Facts, Policy]) -> None:
    """Invariant 5: no second process of a handle starts, and none before its backoff has passed."""
    known, policy = given
    decision = decide(known, policy)
    starts = [handle for handle, _ in decision.start] + [each.handle for each in decision.renew]
    running = {each.handle for each in known.generations if each.state is State.STARTING}
    assert len(starts) == len(set(starts))
    assert not running & set(starts)
    assert not {handle for handle in starts if (b := known.breakers.get(handle)) and b.retry_at > NOW}


@given(facts())
def test_order_of_arrival(given: tuple[Facts, Policy]) -> None:
    """Invariant 6: of two callers who want the same, the first one is served first; it ends at its deadline or at a
    tripped handle, never for a spent budget."""
    known, policy = given
    decision = decide(known, policy)
    served = {grant.waiter for grant in decision.grant}
    refused = {step.waiter: step.refusal for step in decision.refuse}
    assert set(refused.values()) <= {Refusal.DEADLINE, Refusal.TRIPPED}
    for place, first in enumerate(known.waiters):
        for second in known.waiters[place + 1 :]:
            if first.handles == second.handles and first.id not in refused:
                assert second.id not in served or first.id in served
    late = {waiter.id for waiter in known.waiters if waiter.deadline <= NOW}
    assert late == {waiter for waiter, refusal in refused.items() if refusal is Refusal.DEADLINE}


@given(facts())
def test_victims_are_needed_by_nobody_before(given: tuple[Facts, Policy]) -> None:
    """A process is evicted only for a caller who waits for room, and never one that this caller or one before needs."""
    decision = decide(*given)
    evicted = {each.handle for each, reason in decision.retire if reason is Reason.EVICTED}
    if evicted:
        assert decision.head is not None
        answered = {each.waiter for each in decision.grant} | {each.waiter for each in decision.refuse}
        before = [w for w in given[0].waiters if w.id <= decision.head and w.id not in answered]
        assert not evicted & {handle for waiter in before for handle in waiter.handles}


@given(facts())
def test_decisions_settle(given: tuple[Facts, Policy]) -> None:
    """Steps that are taken lead to no steps without end, and whatever still waits is woken by time or by an event."""
    known, policy = given
    for _ in range(20):
        decision = decide(known, policy)
        if not decision.steps:
            break
        known = take(known, decision)
    assert not decision.steps
    assert decision.wake_at is None or decision.wake_at > NOW
    if known.waiters:
        assert decision.wake_at is not None


@given(facts())
def test_room_is_used(given: tuple[Facts, Policy]) -> None:
    """Nobody waits for a start while there is room: a caller whose handle has no process gets one started."""
    known, policy = given
    for _ in range(20):
        decision = decide(known, policy)
        if not decision.steps:
            break
        known = take(known, decision)
    room = policy.max_processes - sum(each.live for each in known.generations)
    running = {each.handle for each in known.generations if each.state in (State.READY, State.STARTING)}
    waiting = {handle for waiter in known.waiters for handle in waiter.handles} - running
    assert room <= 0 or all((b := known.breakers.get(handle)) and b.retry_at > NOW for handle in waiting)


def ready(number: int, handle: str, **fields: Any) -> Generation:
    return Generation(id=number, handle=handle, family="f", max_age_seconds=1e9, state=State.READY, **fields)


def waiter(number: int, *handles: str) -> Waiter:
    return Waiter(id=number, handles=handles, deadline=NOW + 9)


def test_slots_of_one_decision() -> None:
    """Callers of one decision share the slots that are free before it."""
    known = Facts(
        generations=[ready(1, "a", in_use=1)], waiters=[waiter(n, "a") for n in range(4)], breakers={}, now=NOW
    )
    decision = decide(known, Policy(max_concurrency=3))
    assert [grant.waiter for grant in decision.grant] == [0, 1]


def test_a_caller_who_waits_keeps_what_it_needs() -> None:
    """Room is made in a process that it does not need, though that was used later; and later callers do not take it."""
    known = Facts(
        generations=[ready(1, "a", idle_since=1.0), ready(2, "b", idle_since=2.0)],
        waiters=[waiter(3, "a", "c"), waiter(4, "a")],
        breakers={},
        now=NOW,
    )
    decision = decide(known, Policy(max_processes=2, max_concurrency=1, idle_seconds=1e9))
    assert [(each.handle, reason) for each, reason in decision.retire] == [("b", Reason.EVICTED)]
    assert decision.grant == []
    assert decision.head == 3
