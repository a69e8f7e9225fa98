"""Check that all launches of a run stayed within the published windows. Pure: facts in, violations out.

Levels come from the simulator's ledger alone: a start is in flight from its call on, in its stage and all later ones,
until the ledger shows that the stage has succeeded; a failure occupies its unit until a weight record that has folded
it could be read. Windows, health states and permits come from the weight records, from the time at which the
provisioner could read them. A level rises only by a call, so each call is judged: at some moment between its decision
and its arrival, the windows must have had room for everything in flight by then.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from slipway_api.events.scopes import NEW_SHARED_WINDOWS, NEW_WINDOWS, Key
from slipway_api.events.weight import SharedWindow, WeightChanged
from slipway_simulator import facts

STAGES: Final = ("launch", "boot", "claim")
UNAVAILABLE_WINDOW: Final = 4
KINDS: Final = {"launch": "config launch", "boot": "config boot", "claim": "config claim"}
# Windows of shared keys: kind, index of the key, and its kind and stage.
SHARED: Final = (
    ("image boot", 0, ("image", "boot")),
    ("image claim", 0, ("image", "claim")),
    ("quota", 1, ("quota", "launch")),
    ("capacity", 3, ("capacity", "launch")),
)

T = TypeVar("T")


class ConfigKeys(msgspec.Struct, frozen=True):
    """Pool and shared keys of one revision of a launch config."""

    pool_id: str
    image: Key
    quota: Key
    credential: Key
    capacity: Key

    @property
    def shared(self) -> tuple[Key, Key, Key, Key]:
        return self.image, self.quota, self.credential, self.capacity


class Visible(msgspec.Struct, frozen=True):
    """A weight record and the time (epoch seconds) from which the provisioner could read it."""

    at: float
    record: WeightChanged


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds of the ledger's clock.

    `reading`: a replica reads any record within this time; one that took longer from a decision to its call may have
    needed as much more. `boot`: time after which a machine has failed to boot. `unavailable`: time without a heartbeat
    after which the calculator is unavailable. `attempt`: interval between attempts of a pool while it is.
    """

    reading: float
    boot: float
    unavailable: float
    attempt: float


class Violation(msgspec.Struct, frozen=True):
    """A call that no published record allowed."""

    at: float
    config_id: str
    text: str


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Results of a run.

    `reached`: number of calls after which a window of that kind was exactly full; `peaks`: highest level by kind.
    `probes` were made by permit, `attempts` while the calculator was unavailable; neither needs room in a window.
    """

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
    configs: Mapping[str, ConfigKeys],
    times: Times,
    *,
    decided: Mapping[str, float],
) -> Report:
    """Replay the ledger against the records readable at each time.

    `decided` maps a batch to the time of its decision: its calls are judged by records readable between then and the
    call, neither by later nor by earlier ones.
    """
    readable, levels = _Readable(seen, heartbeats, times), _Levels(configs)
    violations: list[Violation] = []
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
        moments = readable.moments(decided.get(step.batch, at), at, levels.sharing(config))
        free = [readable.free_units(levels, config, moment) for moment in moments]
        fitting = [units_free for units_free in free if units_free is not None and min(units_free.values()) >= 0]
        for kind, level in levels.of(config).items():
            peaks[kind] = max(peaks[kind], level)
        if fitting:
            reached.update(kind for kind, number in fitting[-1].items() if number == 0)
        elif units == 1 and (permit := readable.permit(config, moments, spent)) is not None:
            spent.add((config, permit))
            probes += 1
        elif units == 1 and any(readable.unavailable(moment) for moment in moments):
            attempts[configs[config].pool_id].append(at)
        else:
            violations.append(Violation(at, config, _reason(free, units)))
    for pool_id, tried in attempts.items():
        if len(tried) > (most := readable.attempts_max()):
            violations.append(
                Violation(tried[-1], pool_id, f"{len(tried)} attempts without a calculator, at most {most}")
            )
    return Report(
        launches=launches,
        failures=levels.failed,
        probes=probes,
        attempts=sum(map(len, attempts.values())),
        reached=reached,
        peaks=peaks,
        violations=violations,
    )


def _reason(free: Sequence["dict[str, int] | None"], units: int) -> str:
    """Text of the smallest excess of a call over all its moments."""
    over = [{kind: -number for kind, number in each.items() if number < 0} for each in free if each is not None]
    if not over:
        return f"{units} started although tripped, without a permit"
    least = min(over, key=lambda each: sum(each.values()))
    return f"{units} started: " + ", ".join(f"{kind} window exceeded by {n}" for kind, n in least.items())


class _Step(msgspec.Struct, frozen=True):
    """Units of a config that enter (`into`), leave (`out`) or fail in a stage. A call has a `batch`."""

    config: str
    units: int
    out: str = ""
    into: str = ""
    failed: str = ""
    batch: str = ""


def _steps(ledger: Sequence[facts.Fact], times: Times) -> Iterator[tuple[float, _Step]]:
    """Steps of all facts, with their times.

    A machine that registers counts as registered from its first try, since the ledger's line is written with the answer
    and the provisioner may know earlier. A machine that does not register has failed at the end of its boot time.
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
                is_throttled = fact.code == "RequestLimitExceeded"
                yield fact.at, _Step(call.config, refused, out="launch", failed="" if is_throttled else "launch")
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
            case facts.DrainRequested() | facts.Terminated() if fact.instance_id in idle - worked:
                idle.discard(fact.instance_id)
                machine = created[fact.instance_id]
                yield fact.at, _Step(machine.config, 1, out="claim", failed="" if machine.claims else "claim")
            case _:
                pass


class _Levels:
    """Units in flight and failures so far, by config and stage."""

    def __init__(self, configs: Mapping[str, ConfigKeys]) -> None:
        self.configs = configs
        self.in_flight: Counter[tuple[str, str]] = Counter()
        self.failures: Counter[tuple[str, str]] = Counter()
        self.failed = 0
        self.members: dict[Key, list[str]] = defaultdict(list)
        for config, keys in configs.items():
            for key in keys.shared:
                self.members[key].append(config)

    def move(self, step: _Step) -> None:
        """Apply one step."""
        if step.out:
            self.in_flight[step.config, step.out] -= step.units
        if step.into:
            self.in_flight[step.config, step.into] += step.units
        if step.failed:
            self.failures[step.config, step.failed] += step.units
            self.failed += step.units

    def sharing(self, config: str) -> list[str]:
        """All configs, including this one, that share a key with it."""
        return sorted({member for key in self.configs[config].shared for member in self.members[key]})

    def arriving(self, config: str, stage: str) -> int:
        """Units in flight in a stage or an earlier one."""
        return sum(self.in_flight[config, each] for each in STAGES[: STAGES.index(stage) + 1])

    def of(self, config: str) -> dict[str, int]:
        """All levels that count for a config, without failures."""
        keys = self.configs[config]
        levels = {KINDS[stage]: self.arriving(config, stage) for stage in STAGES}
        for kind, place, (_, stage) in SHARED:
            levels[kind] = sum(self.arriving(member, stage) for member in self.members[keys.shared[place]])
        return levels


class _History(Generic[T]):
    """Values with the times from which they could be read, ascending."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.values: list[T] = []

    def append(self, at: float, value: T) -> None:
        self.at.append(at)
        self.values.append(value)

    def newest(self, moment: float) -> T | None:
        """Newest value readable at a moment."""
        place = bisect_right(self.at, moment)
        return self.values[place - 1] if place else None


class _Readable:
    """State readable at a moment: newest record of each config and shared key, and availability of the calculator."""

    def __init__(self, seen: Sequence[Visible], heartbeats: Sequence[float], times: Times) -> None:
        self.times = times
        self.heartbeats = sorted(heartbeats)
        self.timeouts = [beat + times.unavailable for beat in self.heartbeats]  # passed if no heartbeat has followed
        self.records: dict[str, _History[WeightChanged]] = defaultdict(_History)
        self.shared: dict[Key, dict[str, _History[SharedWindow]]] = defaultdict(lambda: defaultdict(_History))
        for visible in sorted(seen, key=lambda visible: visible.at):
            self.records[visible.record.launch_config_id].append(visible.at, visible.record)
            for window in visible.record.shared:
                history = self.shared[Key(window.kind, window.id)][window.stage]
                if not history.values or history.values[-1].version < window.version:
                    history.append(visible.at, window)

    def moments(self, decided: float, at: float, configs: Sequence[str]) -> list[float]:
        """Moments whose records may have led to a call at `at`; between them nothing changes for these configs."""
        decided = min(decided, at)
        since = decided - (at - decided) - self.times.reading
        changes = [self.heartbeats, self.timeouts, *(self.records[config].at for config in configs)]
        later = {when for each in changes for when in each[bisect_right(each, since) : bisect_right(each, at)]}
        return [since, *sorted(later)]

    def unavailable(self, moment: float) -> bool:
        """True if the calculator counts as unavailable."""
        place = bisect_right(self.heartbeats, moment)
        return place > 0 and moment - self.heartbeats[place - 1] >= self.times.unavailable

    def attempts_max(self) -> int:
        """Most attempts: one at the start of each calculator outage and one per interval, with time to read its end."""
        gaps = [b - a for a, b in zip(self.heartbeats, self.heartbeats[1:], strict=False)]
        outages = [gap - self.times.unavailable + self.times.reading for gap in gaps if gap > self.times.unavailable]
        return sum(1 + int(outage / self.times.attempt) for outage in outages)

    def tripped(self, keys: ConfigKeys, config: str, moment: float) -> bool:
        record = self.records[config].newest(moment)
        shares = [share for key in keys.shared for share in self.shared[key].values()]
        newest = [record, *(share.newest(moment) for share in shares)]
        return any(each is not None and each.state != "healthy" for each in newest)

    def free_units(self, levels: _Levels, config: str, moment: float) -> dict[str, int] | None:
        """Free units by kind of window at a moment, with units in flight now; None if the config was tripped."""
        keys, record = levels.configs[config], self.records[config].newest(moment)
        if self.tripped(keys, config, moment):
            return None
        free = {}
        for stage in STAGES:
            window = record.stages[stage].window if record is not None else NEW_WINDOWS[stage]
            free[KINDS[stage]] = self._capped(window, moment) - self._level(levels, config, stage, moment)
        for kind, place, (of, stage) in SHARED:
            key = keys.shared[place]
            known = self.shared[key][stage].newest(moment)
            level = sum(self._level(levels, member, stage, moment) for member in levels.members[key])
            free[kind] = self._capped(NEW_SHARED_WINDOWS[of, stage] if known is None else known.window, moment) - level
        return free

    def _level(self, levels: _Levels, config: str, stage: str, moment: float) -> int:
        """Units in flight now, plus failures that no record readable at the moment has folded."""
        record = self.records[config].newest(moment)
        folded = record.stages[stage].failures_folded if record is not None else 0
        return levels.arriving(config, stage) + max(0, levels.failures[config, stage] - folded)

    def _capped(self, window: int, moment: float) -> int:
        return min(window, UNAVAILABLE_WINDOW) if self.unavailable(moment) else window

    def permit(self, config: str, moments: Sequence[float], spent: set[tuple[str, int]]) -> int | None:
        """A permit readable at one of the moments and not spent by an earlier call."""
        for moment in moments:
            record = self.records[config].newest(moment)
            permit = record.probe_permit if record is not None and record.probe_ready else None
            if permit is not None and (config, permit) not in spent:
                return permit
        return None
