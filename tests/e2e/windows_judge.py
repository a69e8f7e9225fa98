"""Did the starts of a run stay within the windows that were published? Pure: facts in, violations out.

Levels come from the simulator's ledger alone: a start is under way from its call on, in its stage and in all later
ones, until the ledger shows that the stage has succeeded; a failure fills its unit until a weight record that has
folded it could be read. Windows, closed circuits and permits come from the weight records, from the instant on at which
the provisioner could read them. A level rises only by a call, so each call is judged: at some moment between its
decision and its arrival there must have been room for everything under way by then.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from slipway_common.events.weight import SharedWindow, WeightChanged
from slipway_simulator import facts

STAGES: Final = ("launch", "boot", "claim")
# Before any record: what was never seen starts small.
UNSEEN: Final = {"launch": 4, "boot": 8, "claim": 64}
SILENT_WINDOW: Final = 4
KINDS: Final = {"launch": "config launch", "boot": "config boot", "claim": "config claim"}
# Of what configs share: kind, which key, stage, and the window before any record.
SHARED: Final = (("image boot", 0, "boot", 8), ("image claim", 0, "claim", 64), ("quota", 1, "launch", 64))


T = TypeVar("T")


class Way(msgspec.Struct, frozen=True):
    """One launch config as declared: its pool, and the keys of what it shares with others."""

    pool_id: str
    image: str
    quota: str
    credential: str

    @property
    def keys(self) -> tuple[str, str, str]:
        return self.image, self.quota, self.credential


class Visible(msgspec.Struct, frozen=True):
    """A weight record, and from when on (epoch seconds) the provisioner could read it."""

    at: float
    record: WeightChanged


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """In seconds of the ledger's clock. `reading` is how long any replica may take to read what it could read; whoever
    took long from a decision to its call may have taken as much longer for that. `boot` is the time after which a
    machine counts as failed, `silent` that after which the calculator counts as away; `attempt` is what lies between
    two attempts of a pool while it is."""

    reading: float
    boot: float
    silent: float
    attempt: float


class Violation(msgspec.Struct, frozen=True):
    """A call that nothing published allowed."""

    at: float
    config_id: str
    what: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to. `reached`: after how many calls a window of that kind was exactly full. `probes` were made
    by permit, `attempts` while the calculator was silent; neither has to fit a window. `peaks`: the highest level."""

    launches: int
    failures: int
    probes: int
    attempts: int
    reached: Mapping[str, int]
    peaks: Mapping[str, int]
    violations: Sequence[Violation]


def judge(
    ledger: Sequence[facts.Fact],
    seen: Sequence[Visible],
    heartbeats: Sequence[float],
    ways: Mapping[str, Way],
    times: Times,
    *,
    decided: Mapping[str, float],
) -> Report:
    """Replay the ledger against what could be known. `decided` says of a call's batch when it was decided: what could
    be read only later is not held against it, and what was in force only before does not excuse it."""
    known, levels = _Known(seen, heartbeats, times), _Levels(ways)
    told: list[Violation] = []
    reached: Counter[str] = Counter()
    peaks: Counter[str] = Counter()
    launches = probes = 0
    spent: set[tuple[str, int]] = set()
    attempts: dict[str, list[float]] = defaultdict(list)
    last = ledger[-1].at if ledger else 0.0
    for at, step in sorted(_steps(ledger, times), key=lambda step: step[0]):
        if at > last:
            break
        levels.move(step)
        if not step.batch:
            continue
        config, units = step.config, step.units
        launches += units
        moments = known.moments(decided.get(step.batch, at), at, levels.sharing(config))
        rooms = [known.rooms(levels, config, moment) for moment in moments]
        fitting = [room for room in rooms if room is not None and min(room.values()) >= 0]
        for kind, level in levels.of(config).items():
            peaks[kind] = max(peaks[kind], level)
        if fitting:
            reached.update(kind for kind, room in fitting[-1].items() if room == 0)
        elif units == 1 and (permit := known.permit(config, moments, spent)) is not None:
            spent.add((config, permit))
            probes += 1
        elif units == 1 and any(known.silent(moment) for moment in moments):
            attempts[ways[config].pool_id].append(at)
        else:
            told.append(Violation(at, config, _why(rooms, units)))
    for pool_id, tried in attempts.items():
        if len(tried) > (most := known.attempts_at_most()):
            told.append(Violation(tried[-1], pool_id, f"{len(tried)} attempts without a calculator, at most {most}"))
    return Report(
        launches=launches,
        failures=levels.failed,
        probes=probes,
        attempts=sum(map(len, attempts.values())),
        reached=reached,
        peaks=peaks,
        violations=told,
    )


def _why(rooms: Sequence["dict[str, int] | None"], units: int) -> str:
    """The least that would have been wrong with the call."""
    over = [{kind: -room for kind, room in each.items() if room < 0} for each in rooms if each is not None]
    if not over:
        return f"{units} started although closed, without a permit"
    least = min(over, key=lambda each: sum(each.values()))
    return f"{units} started: " + ", ".join(f"{kind} window exceeded by {n}" for kind, n in least.items())


class _Step(msgspec.Struct, frozen=True):
    """`units` of a config enter (`into`) and leave (`out`) a stage's flight, or fail in it. A call has a `batch`."""

    config: str
    units: int
    out: str = ""
    into: str = ""
    failed: str = ""
    batch: str = ""


def _steps(ledger: Sequence[facts.Fact], times: Times) -> Iterator[tuple[float, _Step]]:
    """What each fact moves, and when.

    A machine that registers counts as registered from its first try: the ledger's line comes with the answer, and the
    provisioner may have counted on it by then. One that does not within its time has failed at the end of it.
    """
    calls: dict[str, facts.Call] = {}
    tokens: set[tuple[str, str]] = set()
    registered = {fact.instance_id for fact in ledger if isinstance(fact, facts.Registered)}
    worked = {fact.instance_id for fact in ledger if isinstance(fact, facts.TaskStarted | facts.TaskClaimed)}
    ended = {fact.instance_id: fact.at for fact in ledger if isinstance(fact, facts.Terminated)}
    created: dict[str, facts.InstanceCreated] = {}
    idle: set[str] = set()
    for fact in ledger:
        match fact:
            case facts.Call() if (fact.account, fact.token) not in tokens:
                tokens.add((fact.account, fact.token))
                calls[fact.call_id] = fact
                yield fact.at, _Step(fact.config, fact.count, into="launch", batch=fact.batch)
            case facts.Reply() if fact.call_id in calls:
                call = calls[fact.call_id]
                refused = call.count - len(fact.instance_ids)
                put_back = fact.code == "RequestLimitExceeded"
                yield fact.at, _Step(call.config, refused, out="launch", failed="" if put_back else "launch")
                yield fact.at, _Step(call.config, len(fact.instance_ids), out="launch", into="boot")
            case facts.InstanceCreated():
                created[fact.instance_id] = fact
                deadline = fact.at + times.boot
                if fact.instance_id in registered:
                    yield max(fact.at, fact.boots_at or 0.0), _Step(fact.config, 1, out="boot", into="claim")
                elif ended.get(fact.instance_id, deadline) < deadline:
                    yield ended[fact.instance_id], _Step(fact.config, 1, out="boot")
                else:
                    yield deadline, _Step(fact.config, 1, out="boot", failed="boot")
            case facts.Registered():
                idle.add(fact.instance_id)
            case facts.TaskStarted() | facts.TaskClaimed() if fact.instance_id in idle:
                idle.discard(fact.instance_id)
                yield fact.at, _Step(created[fact.instance_id].config, 1, out="claim")
            case facts.Told() | facts.Terminated() if fact.instance_id in idle - worked:
                idle.discard(fact.instance_id)
                machine = created[fact.instance_id]
                yield fact.at, _Step(machine.config, 1, out="claim", failed="" if machine.claims else "claim")
            case _:
                pass


class _Levels:
    """What is under way, and what has failed so far, per config and stage."""

    def __init__(self, ways: Mapping[str, Way]) -> None:
        self.ways = ways
        self.in_flight: Counter[tuple[str, str]] = Counter()
        self.failures: Counter[tuple[str, str]] = Counter()
        self.failed = 0
        self.members: dict[str, list[str]] = defaultdict(list)
        for config, way in ways.items():
            for key in way.keys:
                self.members[key].append(config)

    def move(self, step: _Step) -> None:
        if step.out:
            self.in_flight[step.config, step.out] -= step.units
        if step.into:
            self.in_flight[step.config, step.into] += step.units
        if step.failed:
            self.failures[step.config, step.failed] += step.units
            self.failed += step.units

    def sharing(self, config: str) -> list[str]:
        """Everybody, itself too, whose records speak of what this config shares."""
        return sorted({member for key in self.ways[config].keys for member in self.members[key]})

    def arriving(self, config: str, stage: str) -> int:
        """Under way in a stage or before it."""
        return sum(self.in_flight[config, each] for each in STAGES[: STAGES.index(stage) + 1])

    def of(self, config: str) -> dict[str, int]:
        """Every level that counts for a config, without failures."""
        way = self.ways[config]
        levels = {KINDS[stage]: self.arriving(config, stage) for stage in STAGES}
        for kind, place, stage, _ in SHARED:
            levels[kind] = sum(self.arriving(member, stage) for member in self.members[way.keys[place]])
        return levels


class _History(Generic[T]):
    """Values in the order in which they could be read."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.values: list[T] = []

    def append(self, at: float, value: T) -> None:
        self.at.append(at)
        self.values.append(value)

    def newest(self, moment: float) -> T | None:
        place = bisect_right(self.at, moment)
        return self.values[place - 1] if place else None


class _Known:
    """What could be known at a moment: the newest readable record of each config and of each share, and silence."""

    def __init__(self, seen: Sequence[Visible], heartbeats: Sequence[float], times: Times) -> None:
        self.times = times
        self.heartbeats = sorted(heartbeats)
        self.silences = [beat + times.silent for beat in self.heartbeats]  # if none has followed by then
        self.records: dict[str, _History[WeightChanged]] = defaultdict(_History)
        self.shared: dict[str, dict[str, _History[SharedWindow]]] = defaultdict(lambda: defaultdict(_History))
        for visible in sorted(seen, key=lambda visible: visible.at):
            self.records[visible.record.launch_config_id].append(visible.at, visible.record)
            for window in visible.record.shared:
                history = self.shared[window.key][window.stage]
                if not history.values or history.values[-1].version < window.version:
                    history.append(visible.at, window)

    def moments(self, decided: float, at: float, configs: Sequence[str]) -> list[float]:
        """What a call at `at` may have been decided by: instants between which nothing changes for these configs."""
        decided = min(decided, at)
        since = decided - (at - decided) - self.times.reading
        changes = [self.heartbeats, self.silences, *(self.records[config].at for config in configs)]
        later = {when for each in changes for when in each[bisect_right(each, since) : bisect_right(each, at)]}
        return [since, *sorted(later)]

    def silent(self, moment: float) -> bool:
        place = bisect_right(self.heartbeats, moment)
        return place > 0 and moment - self.heartbeats[place - 1] >= self.times.silent

    def attempts_at_most(self) -> int:
        """One when silence begins, and one per interval of it, with the time that hearing of its end may take."""
        gaps = [b - a for a, b in zip(self.heartbeats, self.heartbeats[1:], strict=False)]
        silences = [gap - self.times.silent + self.times.reading for gap in gaps if gap > self.times.silent]
        return sum(1 + int(silence / self.times.attempt) for silence in silences)

    def closed(self, way: Way, config: str, moment: float) -> bool:
        record = self.records[config].newest(moment)
        shares = [share for key in way.keys for share in self.shared[key].values()]
        newest = [record, *(share.newest(moment) for share in shares)]
        return any(each is not None and each.state == "closed" for each in newest)

    def rooms(self, levels: _Levels, config: str, moment: float) -> dict[str, int] | None:
        """Room that each kind of window had left, counting what is under way now; None if the config was closed."""
        way, record = levels.ways[config], self.records[config].newest(moment)
        if self.closed(way, config, moment):
            return None
        rooms = {}
        for stage in STAGES:
            window = record.stages[stage].window if record is not None else UNSEEN[stage]
            rooms[KINDS[stage]] = self._capped(window, moment) - self._level(levels, config, stage, moment)
        for kind, place, stage, unseen in SHARED:
            key = way.keys[place]
            known = self.shared[key][stage].newest(moment)
            level = sum(self._level(levels, member, stage, moment) for member in levels.members[key])
            rooms[kind] = self._capped(unseen if known is None else known.window, moment) - level
        return rooms

    def _level(self, levels: _Levels, config: str, stage: str, moment: float) -> int:
        """Under way by now, and failed without a record that could be read at the moment and has folded it."""
        record = self.records[config].newest(moment)
        folded = record.stages[stage].failures_folded if record is not None else 0
        return levels.arriving(config, stage) + max(0, levels.failures[config, stage] - folded)

    def _capped(self, window: int, moment: float) -> int:
        return min(window, SILENT_WINDOW) if self.silent(moment) else window

    def permit(self, config: str, moments: Sequence[float], spent: set[tuple[str, int]]) -> int | None:
        """A permit that could be read at one of the moments and that no earlier call has spent."""
        for moment in moments:
            record = self.records[config].newest(moment)
            permit = record.probe_permit if record is not None and record.probe_ready else None
            if permit is not None and (config, permit) not in spent:
                return permit
        return None
