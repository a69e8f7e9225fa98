"""Claims of workers, and what of a sample is gone by them: each input that once stopped a busy worker or a pool, and
the property over fleets whose reports come late, repeated and out of order."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import permutations
from random import Random
from typing import Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slipway_provisioner.domain.accounting import (
    Departures,
    Sample,
    ends_max,
    gone,
    protected,
    shortfall,
    surplus,
    task_slots,
    tasks,
)
from slipway_provisioner.domain.claims import Claim, End, is_ambiguous, open_claims, with_claim, with_end
from slipway_provisioner.domain.pool import Demand, Fleet, Pool

START: Final = datetime(2030, 1, 1, tzinfo=UTC)
SHORTEST: Final = 5.0
HEARTBEAT: Final = 60.0
CHANCES: Final = st.builds(Random, st.integers(0, 2**32 - 1))
"""Seeded: a world takes more numbers than one example may draw."""


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def claim(task: str, at: float, source: str = "q") -> Claim:
    return Claim(
        source=source, task_id=task, claimed_at=after(at).isoformat(), reported_at=after(at), started_at=after(at)
    )


def end(at: float, task: str = "", claimed: float | None = None, source: str = "q") -> End:
    """The end of a task, which it names with the time of its claim, or of whatever the worker runs."""
    if claimed is None:
        return End(at=after(at), reported_at=after(at), task_id=task)
    return End(at=after(at), reported_at=after(at), task_id=task, source=source, claimed_at=after(claimed).isoformat())


def told(slots: int, *reports: Claim | End) -> list[Claim]:
    """The claims of a worker after these reports."""
    claims: list[Claim] = []
    for report in reports:
        claims = with_claim(claims, report, slots) if isinstance(report, Claim) else with_end(claims, report, slots)
    return claims


def spans(claims: Iterable[Claim]) -> dict[str, tuple[float, float | None]]:
    """Start and end of each task."""
    return {
        each.task_id: (
            (each.started_at - START).total_seconds(),
            None if each.ended_at is None else (each.ended_at - START).total_seconds(),
        )
        for each in claims
    }


def running(claims: Sequence[Claim]) -> list[str]:
    return [each.task_id for each in open_claims(claims)]


# Several tasks on one machine


def test_the_end_of_one_task_leaves_the_other() -> None:
    """Claims of a long and a short task, then the end of the short one: the worker is busy with the long one."""
    claims = told(2, claim("long", 0), claim("short", 1), end(3, "short", 1))
    assert (running(claims), all(each.counted for each in claims)) == (["long"], True)


def test_an_end_without_a_name_ends_none_of_several() -> None:
    """It is ambiguous, and changes nothing; with one task left it is not."""
    both = told(2, claim("long", 0), claim("short", 1))
    assert with_end(both, end(3), 2) == both
    assert is_ambiguous(both, end(3))
    one = with_end(both, end(3, "short", 1), 2)
    assert not is_ambiguous(one, end(9))
    assert running(with_end(one, end(9), 2)) == []
    assert running(with_end(both, end(3, "short"), 2)) == ["long"]  # a name alone is enough where it fits one


def test_a_clock_that_is_set_back_between_two_tasks() -> None:
    """The first was claimed an hour ahead, as far as the worker knew then, and counts from its receipt. The second is
    earlier by the worker's times and later by ours: neither proves that the other has ended, and both may run."""
    ahead = msgspec.structs.replace(claim("first", 3600), started_at=after(5))
    ended = msgspec.structs.replace(end(3700, "first", 3600), at=after(50))
    assert running(told(1, ahead, ended, claim("second", 100))) == ["second"]
    assert running(told(1, ahead, claim("second", 100))) == ["second", "first"]
    assert running(told(1, ahead, claim("second", 100), claim("third", 200))) == ["third", "first"]


@pytest.mark.parametrize("received", [61, 100, 119, 121, 500])
def test_a_clock_that_is_set_back_from_the_right_time(received: float) -> None:
    """The second task is an hour earlier by the worker's times, so that it counts from two minutes before its receipt.
    The first one has not ended it; the next claim does, unless it may have come before."""
    first = told(1, claim("first", 0), end(60, "first", 0))
    second = msgspec.structs.replace(claim("second", received - 3600), started_at=after(received - 120))
    third = msgspec.structs.replace(claim("third", received - 3590), started_at=after(received - 110))
    much_later = claim("fourth", received + 1)
    assert running(with_claim(first, second, 1)) == ["second"]
    assert running(told(1, claim("first", 0), second)) == ["second", "first"]
    assert "third" in running(told(1, second, third))
    assert running(told(1, second, third, much_later))[-1] == "fourth"


# Repeated reports


#    later claim and earlier one: the worker's time and ours; does the later one prove that the earlier has ended?
FOLLOWS = [
    ((10, 10), (0, 0), True),
    ((3600, 20), (0, 0), True),  # from ahead, and counts from later on
    ((3600, 0), (0, 0), True),
    ((3600, 20), (3500, 30), False),
    ((120, 120), (-3600, 0), True),
    ((119, 119), (-3600, 0), False),  # the earlier one was clamped, and may have begun when it was received
]


@pytest.mark.parametrize(("later", "earlier", "follows"), FOLLOWS)
def test_a_later_claim_proves_the_end_of_an_earlier_one(
    later: tuple[float, float], earlier: tuple[float, float], follows: bool
) -> None:
    one, other = (
        msgspec.structs.replace(claim("t", reported), started_at=after(started))
        for reported, started in (later, earlier)
    )
    assert one.follows(other) is follows


def test_a_claim_above_the_slots_takes_none() -> None:
    """A task that begins when another one has ended counts, whatever else the worker claims to run."""
    claims = told(2, claim("a", 0), claim("b", 1), claim("above", 2), end(10, "a", 0), claim("next", 11))
    assert {each.task_id: each.counted for each in claims} == {"a": True, "b": True, "above": False, "next": True}


def test_a_repeated_end_does_not_end_the_next_task() -> None:
    """Claim of A at 1, end at 10, claim of B at 11, and the end at 10 again, with a name and without."""
    for first in (end(10), end(10, "A", 1)):
        claims = told(1, claim("A", 1), first, claim("B", 11), first)
        assert spans(claims) == {"A": (1, 10), "B": (11, None)}
    again = told(1, claim("A", 1), end(10, "A", 1), claim("A", 11), end(10, "A", 1))
    assert running(again) == ["A"]  # the same task, claimed again


def test_a_repeated_end_at_the_time_of_the_next_claim() -> None:
    """An agent writes the end of a task and the claim of the next one at one time, by its clock or a moment apart."""
    for jitter in (0.0, 0.000_001, -0.000_001):
        claims = told(1, claim("A", 1), end(10 + jitter), claim("B", 10), end(10 + jitter))
        assert running(claims) == ["B"]


def test_ends_of_unknown_claims_change_nothing() -> None:
    """Another time, task or source, or a worker without claims."""
    claims = told(1, claim("A", 1))
    for unknown in (end(5, "A", 2), end(5, "B", 1), end(5, "A", 1, source="other"), end(5, "B"), end(0.5)):
        assert with_end(claims, unknown, 1) == claims
    assert told(1, end(5), end(5, "A", 1)) == []


def test_an_end_is_never_before_its_claim() -> None:
    """Its own time does not matter: the claim that it names has ended."""
    assert spans(told(1, claim("A", 5), end(1, "A", 5))) == {"A": (5, 5)}


def test_an_end_after_the_clock_was_set_back() -> None:
    """A start that was clamped by a clock an hour ahead moves no end into the future. The next claim may have come
    before it, as far as is known, and ends nothing."""
    ahead = msgspec.structs.replace(claim("A", 0), started_at=after(3600))
    assert spans(told(1, ahead, end(60, "A", 0))) == {"A": (3600, 60)}
    assert spans(told(1, ahead, claim("B", 70)))["A"] == (3600, None)


@pytest.mark.parametrize("at", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_a_claim_at_the_edge_of_time(at: datetime) -> None:
    """An end without a name is compared with it; one of year 9999 has no later one."""
    edge = msgspec.structs.replace(claim("A", 0), reported_at=at)
    assert running(with_end([edge], end(1), 1)) == (["A"] if at > START else [])


def test_one_slot_runs_one_task() -> None:
    """A later claim ends the one before it at that time; the end that comes late is the true one."""
    claims = told(1, claim("A", 1), claim("B", 11))
    assert spans(claims) == {"A": (1, 11), "B": (11, None)}
    assert spans(with_end(claims, end(10, "A", 1), 1)) == {"A": (1, 10), "B": (11, None)}
    assert spans(told(1, claim("B", 11), claim("A", 1))) == spans(claims)
    assert spans(told(2, claim("A", 1), claim("A", 11))) == {"A": (11, None)}  # also one task that is claimed again


def test_claims_above_the_slots_count_nowhere() -> None:
    """They run, so that they protect the worker. One that began after another has ended is within the slots, in
    whatever order the two were reported."""
    claims = told(2, *(claim(name, at) for at, name in enumerate("ABC")))
    assert {each.task_id: each.counted for each in claims} == {"A": True, "B": True, "C": False}
    assert len(running(claims)) == 3
    reports: list[Claim | End] = [claim("A", 0), claim("B", 1), end(5, "A", 0), claim("C", 6), end(12, "C", 6)]
    for order in permutations(range(5)):
        if order.index(0) < order.index(2) and order.index(3) < order.index(4):
            assert all(each.counted for each in told(2, *(reports[place] for place in order)))


@given(st.integers(1, 3), st.lists(st.tuples(st.integers(0, 60), st.integers(1, 20)), max_size=6), st.randoms())
def test_claims_do_not_depend_on_the_order_of_reports(slots: int, drawn: list[tuple[int, int]], chance: Random) -> None:
    """Reports that are late, repeated and reordered leave the same claims, if each claim comes before its end."""
    begun = dict(drawn)
    claims = {at: claim(f"t{at}", at) for at in begun}
    ends = {at: end(at + length, f"t{at}", at) for at, length in begun.items()}
    in_order = told(slots, *(report for at in sorted(begun) for report in (claims[at], ends[at])))
    places = [(chance.random(), chance.random(), at) for at in begun]
    sent = [(min(places_), claims[at]) for *places_, at in places] + [
        (max(places_), ends[at]) for *places_, at in places
    ]
    copies = [(place + chance.random(), report) for place, report in sent for _ in range(chance.randrange(3))]
    late = [report for _, report in sorted([*sent, *copies], key=lambda each: each[0])]
    assert told(slots, *late) == in_order


def test_task_slots_of_a_ratio() -> None:
    """As many tasks as the ratio gives a worker, rounded up, exactly."""
    ratios = {"1": 1, "2": 1, "1/2": 2, "0.4": 3, "1/3": 3, "0.05": 20, "0": 1}
    assert {ratio: task_slots(Fraction(ratio)) for ratio in ratios} == ratios


# What is gone from a sample


def sample(pending: int, claimed: int, seconds: float = 0.0, source: str = "q") -> Sample:
    return Sample(source=source, pending=pending, claimed=claimed, age_seconds=seconds)


def left(
    worker: str, slots: int = 1, source: str = "q", *, before: int = 0, at_sample: int = 0, after: int = 0
) -> Departures:
    return Departures(
        source=source, worker_id=worker, task_slots=slots, before=before, at_sample=at_sample, after=after
    )


def test_made_up_claims_do_not_stop_a_pool() -> None:
    """396 claims by the token of one worker, while 30 tasks wait: it is bounded by what its one slot can have ended."""
    forged = [left("forger", after=396)]
    assert gone([sample(30, 1, 12.0)], forged) == {"q": 3}
    assert gone([sample(2, 1, 12.0)], forged) == {"q": 2}
    demand = [Demand(source="q", pending=30, claimed=1, gone=3, stale=False)]
    pool = Pool(id="p", min_capacity=0, max_capacity=100, scaling_ratio=Fraction(1))
    assert shortfall(pool, tasks(demand, trust_stale=False), Fleet(serving=1, leaving=0)) == 27
    assert surplus(pool, protected(demand), Fleet(serving=31, leaving=0)) == 0


#         the sample, what left it, what is gone
SAMPLES = [
    (sample(0, 10, 9), [left("w", after=1)], 0),  # it began and ended after the sample, which never had it
    (sample(1, 10, 9), [left("w", after=1)], 1),
    (sample(5, 0, 9), [left("w", before=1)], 0),
    (sample(5, 2, 9), [left("v", before=1), left("w", after=1)], 2),
    (sample(1, 0, 9), [left("w", at_sample=1)], 1),  # it began at the time of the sample: either pending or claimed
    (sample(0, 1, 9), [left("w", at_sample=1)], 1),
    (sample(0, 1, 9), [left("v", before=1), left("w", at_sample=1)], 1),
    (sample(9, 9, 4.9), [left("w", before=2)], 1),
    (sample(9, 9, 5.0), [left("w", before=2)], 2),
    (sample(9, 9, -3.0), [left("w", before=2)], 1),  # observed by a clock ahead of ours
    (sample(9, 9, 5.0), [left("w", 3, before=9)], 6),
    (sample(9, 9, 5.0), [left("v", before=3), left("w", before=3)], 4),
]


@pytest.mark.parametrize(("given_sample", "departures", "expected"), SAMPLES)
def test_gone(given_sample: Sample, departures: list[Departures], expected: int) -> None:
    """Of a worker at most what its slots can have ended, and of the claimed and pending tasks at most all."""
    assert gone([given_sample], departures) == {"q": expected}


def test_the_bound_of_a_worker_holds_over_all_sources() -> None:
    """Claims of many sources are no way around it; the youngest sample counts first."""
    samples = [sample(99, 0, 30, source="old"), sample(99, 0, 5, source="young"), sample(99, 0, 30, source="other")]
    forged = [left("w", source=name, after=50) for name in ("old", "young", "other")]
    assert gone(samples, forged) == {"young": 2, "old": 5, "other": 0}


COUNTS = st.integers(0, 30)
LEFT = st.builds(
    left,
    st.sampled_from("abc"),
    st.integers(1, 3),
    st.sampled_from(["q", "r"]),
    before=COUNTS,
    at_sample=COUNTS,
    after=COUNTS,
)


@given(
    st.lists(LEFT, max_size=6, unique_by=lambda each: (each.worker_id, each.source)),
    COUNTS,
    COUNTS,
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_gone_is_within_every_bound(
    departures: list[Departures], pending: int, claimed: int, age: int, other_age: int
) -> None:
    """For every fleet, honest or not."""
    samples = [sample(pending, claimed, age), sample(claimed, pending, other_age, source="r")]
    found = gone(samples, departures)
    for each in samples:
        mine = [one for one in departures if one.source == each.source]
        assert 0 <= found[each.source] <= min(each.pending + each.claimed, sum(one.total for one in mine))
        assert found[each.source] <= sum(ends_max(one.task_slots, each.age_seconds) for one in mine)
        if not any(one.before or one.at_sample for one in mine):
            assert found[each.source] <= each.pending
        if not any(one.after or one.at_sample for one in mine):
            assert found[each.source] <= each.claimed


# The property


class Task(msgspec.Struct, frozen=True):
    """A task of the model, by the truth."""

    name: str
    arrived: float
    worker: int
    began: float
    ended: float


class World(msgspec.Struct):
    """50 workers that take the tasks of a queue, oldest first, and leave at `leaves`, taking no more."""

    slots: int
    leaves: list[float]
    tasks: list[Task]

    @classmethod
    def drawn(cls, chance: Random, *, last: float, workers: int = 50, seconds: int = 240) -> "World":
        """`last`: time of the last arrival."""
        slots = chance.choice((1, 1, 2, 3))
        leaves = [chance.uniform(30, seconds) if chance.random() < 0.2 else 1e9 for _ in range(workers)]
        free = sorted((chance.uniform(0, 20), worker) for worker in range(workers) for _ in range(slots))
        done = []
        for number, arrived in enumerate(sorted(chance.uniform(0, last) for _ in range(chance.randint(5, 400)))):
            takers = [(max(at, arrived), worker) for at, worker in free if max(at, arrived) < leaves[worker]]
            if not takers:
                done.append(Task(f"t{number}", arrived, -1, 1e9, 1e9))
                continue
            began, worker = min(takers)
            free.remove(next(each for each in free if each[1] == worker and max(each[0], arrived) == began))
            ended = began + chance.choice((SHORTEST, 7.0, 20.0, 90.0))
            free.append((ended, worker))
            done.append(Task(f"t{number}", arrived, worker, began, ended))
        return cls(slots, leaves, done)

    def sample(self, at: float) -> tuple[list[Task], list[Task]]:
        """Pending and claimed tasks."""
        return (
            [task for task in self.tasks if task.arrived <= at < task.began],
            [task for task in self.tasks if task.began <= at <= task.ended],
        )

    def gone(self, observed: float, now: float) -> Counter[int]:
        """Tasks of a sample that have ended since, or run on workers that leave, by worker."""
        pending, claimed = self.sample(observed)
        return Counter(
            task.worker
            for task in [*pending, *claimed]
            if task.ended <= now or (task.began <= now and self.leaves[task.worker] <= now)
        )

    def reports(self, now: float, chance: Random, *, late: float) -> dict[int, list[Claim | End]]:
        """Reports that have arrived by now, by worker: each up to `late` seconds after its time, some more than once,
        in the order of their arrival. The end of a claim is sent once the claim was answered."""
        arrived: dict[int, list[tuple[float, Claim | End]]] = {}
        for task in self.tasks:
            if task.began > now:
                continue
            sent = task.began + chance.uniform(0, late)
            deliveries: list[tuple[float, Claim | End]] = [(sent, claim(task.name, task.began))]
            if task.ended <= now:
                sent = max(sent, task.ended + chance.uniform(0, late))
                deliveries.append((sent, end(task.ended, task.name, task.began)))
            deliveries += [
                (at + chance.uniform(0, HEARTBEAT), report) for at, report in deliveries if chance.random() < 0.3
            ]
            arrived.setdefault(task.worker, []).extend(each for each in deliveries if each[0] <= now)
        return {
            worker: [report for _, report in sorted(each, key=lambda one: one[0])] for worker, each in arrived.items()
        }


def departed(claims: dict[int, list[Claim]], slots: int, leaving: set[int], observed: float) -> list[Departures]:
    """Departures from a sample by the claims of workers, as the store counts them."""
    found = []
    for worker, known in claims.items():
        left_ = [
            each
            for each in known
            if each.counted and (worker in leaving if each.ended_at is None else each.ended_at >= after(observed))
        ]
        at = after(observed)
        if left_:
            counts = left(
                str(worker),
                slots,
                before=sum(each.started_at < at for each in left_),
                at_sample=sum(each.started_at == at for each in left_),
                after=sum(each.started_at > at for each in left_),
            )
            found.append(counts)
    return found


def launches(world: World, wanted_tasks: int, serving: int) -> int:
    pool = Pool(id="p", min_capacity=0, max_capacity=1000, scaling_ratio=Fraction(1, world.slots))
    return shortfall(pool, wanted_tasks, Fleet(serving=serving, leaving=0))


@settings(max_examples=60, deadline=None)
@given(CHANCES, st.floats(0, 200), st.sampled_from((1.0, 5.0, 10.0, 30.0, 60.0)))
def test_gone_is_the_truth(chance: Random, observed: float, age: float) -> None:
    """With 50 workers whose reports are repeated and reordered: exactly what has left the sample, for tasks of five
    seconds and more, if none arrived after it; if some did, exactly as many launches. Reports that are late by a
    heartbeat make no more of it, but for tasks of leaving workers that had ended before it and run as far as is known.
    No worker with a task is idle."""
    world = World.drawn(chance, last=chance.choice((observed, 240.0)))
    now = observed + age
    pending, claimed = (len(each) for each in world.sample(observed))
    leaving = {worker for worker, at in enumerate(world.leaves) if at <= now}
    left_ = world.gone(observed, now)
    truth = left_.total()
    # A worker that is told to leave just after the end of a task counts for the bound of its slots, not for one more.
    bounded = sum(min(count, ends_max(world.slots, age)) for count in left_.values())
    assert bounded == truth or leaving
    given_sample = sample(pending, claimed, age)
    newer = any(observed < task.arrived and task.began <= now for task in world.tasks)
    serving = len(world.leaves) - len(leaving)
    for late in (0.0, HEARTBEAT):
        claims = {
            worker: told(world.slots, *reports) for worker, reports in world.reports(now, chance, late=late).items()
        }
        found = gone([given_sample], departed(claims, world.slots, leaving, observed))["q"]
        ended = [task for task in world.tasks if task.worker in leaving and task.ended < observed]
        unheard = sum(task.name in running(claims.get(task.worker, ())) for task in ended)
        if not newer:
            assert found <= bounded + unheard if late else found == bounded
        elif not late and not leaving:
            needed = pending + claimed - truth
            assert launches(world, pending + claimed - found, serving) == launches(world, needed, serving)
        arrived = {(worker, each.task_id) for worker, known in claims.items() for each in known}
        for task in world.tasks:
            if task.began <= now < task.ended and task.worker >= 0 and (task.worker, task.name) in arrived:
                assert task.name in running(claims[task.worker]), f"{task} is over for its provisioner"


@settings(max_examples=60, deadline=None)
@given(
    CHANCES,
    st.floats(20, 200),
    st.sampled_from((1.0, 5.0, 10.0, 30.0, 60.0)),
    st.integers(1, 5),
)
def test_forgers_are_bounded(chance: Random, observed: float, age: float, forgers: int) -> None:
    """Of k workers with made-up claims: gone exceeds the truth of the others by at most k times the bound of one, and
    the tasks that protect workers are those of the sample."""
    world = World.drawn(chance, last=chance.choice((observed, 240.0)))
    now = observed + age
    pending, claimed = (len(each) for each in world.sample(observed))
    leaving = {worker for worker, at in enumerate(world.leaves) if at <= now}
    claims = {worker: told(world.slots, *reports) for worker, reports in world.reports(now, chance, late=0.0).items()}
    given_sample = sample(pending, claimed, age)
    honest = gone([given_sample], departed(claims, world.slots, leaving, observed))["q"]
    for forger in range(forgers):
        made_up: list[Claim | End] = []
        for number in range(chance.randrange(60)):
            at = chance.uniform(observed - 20, now)
            made_up.append(claim(f"forged{number}", at))
            if chance.random() < 0.8:
                made_up.append(end(min(now, at + chance.uniform(0, 5)), f"forged{number}", at))
        claims[forger] = told(world.slots, *made_up)
        assert sum(each.counted for each in open_claims(claims[forger])) <= world.slots
    forged = gone([given_sample], departed(claims, world.slots, leaving, observed))["q"]
    assert forged <= honest + forgers * ends_max(world.slots, age)
    demand = [Demand(source="q", pending=pending, claimed=claimed, gone=forged, stale=False)]
    assert protected(demand) == pending + claimed


BOOT: Final = 40


@pytest.mark.parametrize("interval", [5, 10, 30, 60])
@pytest.mark.parametrize("seed", [1, 2])
def test_no_needless_launches(interval: int, seed: int) -> None:
    """500 tasks, each on a worker of its own, with a report every so many seconds: 500 launches, also where a task
    begins or ends at the very time of a report."""
    chance = Random(seed)
    pool = Pool(id="p", min_capacity=0, max_capacity=1000, scaling_ratio=Fraction(1))
    arrivals = sorted(chance.randrange(3000) for _ in range(500))
    pending: list[int] = []
    boots: list[int] = []
    idle = launched = 0
    observed, last = 0, sample(0, 0)
    begun: list[tuple[int, int]] = []  # start and end of each task
    for now in range(3000 + 500):
        running_now = [each for each in begun if each[1] >= now]
        if now % interval == 0:
            observed, last = now, sample(len(pending), len(running_now))
        pending += [at for at in arrivals if at == now]
        idle += sum(at == now for at in boots)
        while pending and idle:
            pending.pop(0)
            idle -= 1
            begun.append((now, now + chance.choice((5, 8, 20, 90))))
        left_ = [
            left(str(number), before=int(at < observed), at_sample=int(at == observed), after=int(at > observed))
            for number, (at, end_) in enumerate(begun)
            if observed <= end_ <= now
        ]
        found = gone([msgspec.structs.replace(last, age_seconds=now - observed)], left_)["q"]
        demand = [Demand(source="q", pending=last.pending, claimed=last.claimed, gone=found, stale=False)]
        serving = sum(at > now for at in boots) + idle + sum(each[1] > now for each in begun)
        units = shortfall(pool, tasks(demand, trust_stale=False), Fleet(serving=serving, leaving=0))
        boots += [now + BOOT] * units
        launched += units
    assert (launched, len(begun), pending) == (500, 500, [])
