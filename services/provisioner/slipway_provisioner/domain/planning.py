"""One decision for one pool: launches, cancellations and workers to stop, with reasons. Pure; calls accounting,
windows, capping, choice, freezing, scale_down and surplus, and adds only their order."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from slipway_provisioner.domain import (
    accounting,
    ageing,
    capping,
    choice,
    fairness,
    freezing,
    headroom,
    reasons,
    scale_down,
    surplus,
    windows,
)
from slipway_provisioner.domain.ageing import Ageing
from slipway_provisioner.domain.fairness import Wait
from slipway_provisioner.domain.headroom import Launch
from slipway_provisioner.domain.limits import Reached
from slipway_provisioner.domain.pool import Config, Observed, Share, Shared, Waiting
from slipway_provisioner.domain.surplus import Surplus

LAUNCHING_MODES = ("enforce", "canary")
RECONSIDERED = 1 / 60
"""Part of an hour after which a pool whose launches a safety limit stops is planned again."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Steps and their reasons. `cancel`, `stop` and `drain` are worker ids: waiting ones, idle ones that are not
    wanted, and idle ones of draining revisions; so are `mark` and `unmark`, busy ones that are to leave after their
    tasks, and those that are not to any more. `ageing` are the steps for workers of full age. `reached` are the safety
    limits that stop launches which are needed. `surplus` and `missing_since` are for the next plan. Executing a plan
    requires no choices."""

    launches: Sequence[Launch]
    cancel: Sequence[str]
    stop: Sequence[str]
    drain: Sequence[str] = ()
    mark: Sequence[str] = ()
    unmark: Sequence[str] = ()
    wanted: int
    serving: int
    details: dict[str, Any]
    ageing: Ageing = Ageing()
    reached: Sequence[Reached] = ()
    freeze: Shared | None = None  # the image for which the pool is frozen
    surplus: Surplus = Surplus()
    missing_since: datetime | None = None
    short: bool = False  # it launches fewer than are needed, for a safety limit or a window of its own configs
    reconsider_after_seconds: float | None = None  # after which time alone may change the decision
    waits: Sequence[Wait] = ()  # shared windows that the pool waits for
    left: Sequence[Share] = ()  # those whose headroom it leaves to others that wait

    @property
    def units(self) -> int:
        return sum(launch.units for launch in self.launches)

    @property
    def adds_only(self) -> bool:
        """True if it launches at most: it changes no worker, limit or pool, whose rows others may have locked."""
        changes = (self.cancel, self.stop, self.drain, self.mark, self.unmark, self.reached)
        return self.freeze is None and not any(changes) and not any(msgspec.structs.astuple(self.ageing))


def plan(observed: Observed, *, now: datetime) -> Plan:
    """Plan one pool. The details name every config, including those without launches."""
    _, _, launchable = _needs(observed)
    return _plan(observed, *_distribute(observed, launchable), now)


def cut(observed: Observed, made: Plan, *, now: datetime) -> Plan:
    """The plan, or if its launches exceed shared windows, which are as `observed` now and locked, one with those that
    fit. It is planned again at once, after the pools that are dirty already, if others of its configs have room, or if
    it leaves headroom that no other waits for."""
    shared = {known.share: known for known in observed.shared}
    unavailable = observed.calculator_unavailable_seconds > 0
    launches = headroom.cut(made.launches, shared, calculator_unavailable=unavailable)
    if launches == made.launches:
        return made
    units, notes = _units(launches), dict(made.details["configs"])
    rooms = windows.shared_rooms(shared, calculator_unavailable=unavailable)
    for config in {launch.config.id: launch.config for launch in made.launches}.values():
        room, limiting = windows.room(config, rooms, calculator_unavailable=unavailable)
        launched = units.get(config.id, 0)
        notes[config.id] = notes[config.id] | {"room": room, "limited_by": limiting, "launched": launched}
        if not launched:
            notes[config.id]["reason"] = windows.trip_reason(config, shared) or f"the {limiting} is full"
    plan = _plan(observed, launches, notes, now)
    has_room = any(_fits_more(observed, config, units) for config in _able(observed, units))
    is_next = any(not shared[wait.share].others for wait in plan.waits if wait.share in _with_headroom(observed, units))
    return msgspec.structs.replace(plan, reconsider_after_seconds=0.0) if has_room or is_next else plan


def _needs(observed: Observed) -> tuple[int, int, int]:
    """Tasks of the pool, workers that it needs for them, and how many of these may be launched."""
    tasks = accounting.tasks(observed.demands, trust_stale=False)
    needed = accounting.shortfall(observed.pool, tasks, observed.fleet)
    is_canary = observed.pool.mode == "canary"
    return tasks, needed, min(needed, max(0, 1 - observed.fleet.serving)) if is_canary else needed


def _plan(observed: Observed, launches: list[Launch], configs: dict[str, Any], now: datetime) -> Plan:
    """The plan with these launches, and these notes per config."""
    pool = observed.pool
    tasks, needed, launchable = _needs(observed)
    bad = freezing.bad_image(observed)
    blocked = _blocked(observed) or (f"the pool freezes: {freezing.description(bad)}" if bad is not None else "")
    if blocked:
        launches = []
        for note in configs.values():
            note["would_launch"], note["launched"] = note["launched"], 0
    limiting = _reached(observed, launches, launchable, configs)
    reached = [] if blocked else limiting  # an alert is raised only if launches stop at the limit
    withdrawn = [w.worker_id for w in observed.waiting if blocked or _cannot_launch(observed, w)]
    spare = accounting.surplus(pool, accounting.tasks(observed.demands, trust_stale=True), observed.fleet)
    unwanted = accounting.surplus(pool, accounting.protected(observed.demands), observed.fleet)
    registered_spare = max(0, unwanted - _starting(observed))
    lasting, seen = _surplus(observed, registered_spare, now)
    leaving = 0 if pool.mode == "observe" else lasting  # there the surplus is recorded
    cancel, stop = scale_down.select(
        max(0, spare - len(withdrawn)),
        [w.worker_id for w in observed.waiting if w.worker_id not in withdrawn],
        observed.idle,
        registered_surplus=registered_spare,
        at_once=leaving,
        idle_timeout_seconds=observed.idle_timeout_seconds,
        now=now,
    )
    cancel = [*withdrawn, *cancel]
    mark, unmark = scale_down.marks(observed.busy, max(0, leaving - len(stop)))
    wanted = accounting.wanted(pool, tasks)
    missing = accounting.missing(pool, tasks, observed.fleet)
    launched = sum(launch.units for launch in launches)
    obstacle = _obstacle(observed, launches, blocked)
    beyond = max(0, registered_spare - len(stop) - len(_marked(observed, mark, unmark)))
    drain: list[str] = []
    if launched == launchable and not blocked:
        drain = scale_down.drained(
            [idle for idle in observed.idle if idle.worker_id not in stop],
            {config.id for config in observed.configs if config.state == "draining"},
            wanted=wanted,
            missing=_missing(observed) + launched + len(stop),
        )
        if obstacle:  # nothing would replace those that any sample wants: ends of its tasks may be made up
            drain = drain[:beyond]
    aged = ageing.decide(
        [life for life in observed.lives if life.worker_id not in {*stop, *drain}],
        unwanted=max(0, beyond - len(drain)),
        room=scale_down.leaving_room(wanted=wanted, missing=_missing(observed) + launched + len(stop) + len(drain))
        if launched == launchable
        else 0,
        obstacle=obstacle,
    )
    if blocked or needed:
        reason = reasons.blocked(blocked) if blocked else reasons.launching(needed, launched, reached)
    elif missing:
        reason = reasons.no_room(missing, observed.fleet)
    else:
        reason = reasons.scaling_down(
            cancelled=len(cancel), stopping=len(stop), marked=len(mark), drained=len(drain), aged=aged
        )
    details = {
        "tasks": tasks,
        "sources": {
            d.source: {"pending": d.pending, "claimed": d.claimed, "gone": d.gone, "stale": d.stale}
            for d in observed.demands
        },
        "wanted": wanted,
        "serving": observed.fleet.serving,
        "leaving": observed.fleet.leaving,
        "stuck": observed.fleet.stuck,
        "missing": missing,
        "needed": needed,
        "launched": launched,
        "surplus": registered_spare,
        "lasting_surplus": lasting,
        "alerted": _alerted(observed),
        "code": reason.code.value,
        "reason": reason.text,
        "configs": configs,
    }
    if limiting:
        details["limits"] = [{"kind": each.kind, "text": each.text} for each in limiting]
    awaited = {known.share for known in observed.shared if known.others}
    return Plan(
        launches=launches,
        cancel=cancel,
        stop=stop,
        drain=drain,
        ageing=aged,
        mark=mark,
        unmark=unmark,
        wanted=wanted,
        serving=observed.fleet.serving,
        details=details,
        reached=reached,
        freeze=bad,
        surplus=seen,
        missing_since=None if blocked else _missing_since(observed, wanted, now),
        short=needed > launched and (bool(limiting) or _is_full(observed, _units(launches))),
        reconsider_after_seconds=_reconsider(
            observed, now, seen, spare - len(cancel) - len(stop), needed - launched, reached
        ),
        waits=[] if blocked else _waits(observed, _units(launches), launchable - launched, now),
        left=[share for share in _with_headroom(observed, _units(launches)) if share in awaited],
    )


def _able(observed: Observed, units: Mapping[str, int]) -> list[Config]:
    """Configs that may launch more than these units but for shared windows."""
    shared = {known.share: known for known in observed.shared}
    unavailable, rooms = observed.calculator_unavailable_seconds > 0, windows.maximum_rooms(observed.configs)
    return [
        config
        for config in observed.configs
        if not _never(config)
        and not windows.trip_reason(config, shared)
        and windows.room(config, rooms, calculator_unavailable=unavailable)[0] > units.get(config.id, 0)
    ]


def _is_full(observed: Observed, units: Mapping[str, int]) -> bool:
    """True if a config could launch more than these units if its own windows left room."""
    shared = {known.share: known for known in observed.shared}
    able = {config.id for config in _able(observed, units)}
    return any(
        config.id not in able and not _never(config) and not windows.trip_reason(config, shared)
        for config in observed.configs
    )


def _rooms(observed: Observed) -> dict[Share, int]:
    """Room of each shared window."""
    shared = {known.share: known for known in observed.shared}
    return windows.shared_rooms(shared, calculator_unavailable=observed.calculator_unavailable_seconds > 0)


def _fits_more(observed: Observed, config: Config, units: Mapping[str, int]) -> bool:
    """True if the shared windows of a config have room for more than these units by config id."""
    rooms = _rooms(observed)
    taken = fairness.taken(observed.configs, units)
    return all(rooms[share] > taken[share] for share in config.shares if share in rooms)


def _waits(observed: Observed, units: Mapping[str, int], missing: int, now: datetime) -> list[Wait]:
    shared = {known.share: known for known in observed.shared}
    taken = fairness.taken(observed.configs, units)
    return fairness.waits(
        _able(observed, units),
        shared,
        _rooms(observed),
        taken,
        missing=missing,
        since=observed.dirty_since or now,
        now=now,
    )


def _with_headroom(observed: Observed, units: Mapping[str, int]) -> list[Share]:
    """Shared windows with headroom for more than these units by config id."""
    shared = {known.share: known for known in observed.shared}
    found = windows.headrooms(shared, calculator_unavailable=observed.calculator_unavailable_seconds > 0)
    taken = fairness.taken(observed.configs, units)
    return fairness.in_order(share for share, headroom in found.items() if headroom > taken.get(share, 0))


def _surplus(observed: Observed, registered_spare: int, now: datetime) -> tuple[int, Surplus]:
    """Surplus workers that leave now, above the maximum or seen for the idle timeout, and the surplus as seen."""
    registered, timeout = observed.fleet.serving - _starting(observed), observed.idle_timeout_seconds
    seen = surplus.seen(
        observed.surplus, registered=registered, workers=registered_spare, idle_timeout_seconds=timeout, now=now
    )
    lasting = surplus.lasting(seen, idle_timeout_seconds=timeout, now=now)
    return min(registered_spare, max(lasting, registered - observed.pool.max_capacity)), seen


def _marked(observed: Observed, mark: Sequence[str], unmark: Sequence[str]) -> set[str]:
    """Workers that leave after their tasks once these marks are made and cleared."""
    return {worker.worker_id for worker in observed.busy if worker.marked} - {*unmark} | {*mark}


def _missing_since(observed: Observed, wanted: int, now: datetime) -> datetime | None:
    """Time since which registered workers have been missing in a pool that may launch, and none has registered."""
    wanted = min(wanted, 1) if observed.pool.mode == "canary" else wanted
    may_launch = any(config.active and not config.launch_stop for config in observed.configs)
    if not may_launch or observed.fleet.serving - _starting(observed) >= wanted:
        return None
    return now if observed.registered else observed.missing_since or now


def _alerted(observed: Observed) -> bool:
    """True if other alerts say why no config of the pool launches: each is tripped, or its account is to blame."""
    shared = {known.share: known for known in observed.shared}
    able = [config for config in observed.configs if config.active and not config.launch_stop]
    return bool(able) and all(config.stopped or windows.trip_reason(config, shared) for config in able)


def _missing(observed: Observed) -> int:
    """Workers that take no task now and are on their way: leaving ones, unless stuck, and those that have not
    registered."""
    return observed.fleet.leaving - observed.fleet.stuck + _starting(observed)


def _starting(observed: Observed) -> int:
    """Workers that have not registered."""
    return sum(config.starting for config in observed.configs)


def _reached(
    observed: Observed, launches: Sequence[Launch], launchable: int, notes: Mapping[str, Any]
) -> list[Reached]:
    """Safety limits that stop launches which are needed, one of each scope. Each is the reason of its configs."""
    units = _units(launches)
    if sum(units.values()) >= launchable:
        return []
    shared = {known.share: known for known in observed.shared}
    able = [
        config
        for config in observed.configs
        if not _never(config) and (config.permit is not None or not windows.trip_reason(config, shared))
    ]
    found: dict[tuple[str, str], Reached] = {}
    for config_id, reached in capping.reached(able, observed.levels, units, observed.tariff).items():
        found.setdefault((reached.scope, reached.scope_id), reached)
        if not units.get(config_id):
            notes[config_id]["reason"] = reached.text
    return list(found.values())


def _obstacle(observed: Observed, launches: Sequence[Launch], blocked: str) -> str:
    """Reason why nothing could replace a worker that leaves; empty if something could. A window that is full of starts
    is none: they end by themselves."""
    if blocked:
        return blocked
    shared = {known.share: known for known in observed.shared}
    reasons = {config.id: _never(config) or windows.trip_reason(config, shared) for config in observed.configs}
    able = [config for config in observed.configs if not reasons[config.id]]
    reached = capping.reached(able, observed.levels, _units(launches), observed.tariff)
    if len(reached) < len(able):
        return ""
    reason = next((limit.text for limit in reached.values()), next(iter(reasons.values()), "the pool has none"))
    return f"no launch config may launch: {reason}"


def _units(launches: Sequence[Launch]) -> dict[str, int]:
    """Launches by config id."""
    units: dict[str, int] = {}
    for launch in launches:
        units[launch.config.id] = units.get(launch.config.id, 0) + launch.units
    return units


def _reconsider(
    observed: Observed, now: datetime, seen: Surplus, spare: int, missing: int, reached: Sequence[Reached]
) -> float | None:
    """Seconds until time alone may change the decision; None if it never will."""
    moments = [d.fresh_seconds for d in observed.demands if not d.stale] + ageing.moments(observed.lives)
    if spare > 0:
        moments += [idle.left_seconds(now, observed.idle_timeout_seconds) for idle in observed.idle]
        moments += surplus.lasts_in_seconds(seen, idle_timeout_seconds=observed.idle_timeout_seconds, now=now)
    if missing > 0 and observed.calculator_unavailable_seconds > 0:
        moments.append(observed.attempt_in_seconds)
    if reached:  # also before time lifts it: the alert lasts for as long as it is seen to stop launches
        free = [(each.free_at - now).total_seconds() for each in reached if each.free_at is not None]
        moments += [observed.tariff.hour_seconds * RECONSIDERED, *free]
    return min((seconds for seconds in moments if seconds > 0), default=None)


def _cannot_launch(observed: Observed, worker: Waiting) -> bool:
    """True if a waiting worker may not launch once admitted. A trip is ignored while the calculator is unavailable."""
    config = next((c for c in observed.configs if c.id == worker.config_id), None)
    if config is None or not config.active or config.stopped:
        return True
    tripped = windows.trip_reason(config, {known.share: known for known in observed.shared})
    unavailable = observed.calculator_unavailable_seconds > 0
    return bool(tripped) and not unavailable and (worker.permit is None or worker.permit != config.last_permit)


def _blocked(observed: Observed) -> str:
    """Reason why the pool may launch nothing at all; empty if it may launch."""
    pool = observed.pool
    if observed.stopped:
        return observed.stopped
    for applies, reason in (
        (pool.deleted, "the pool is deleted"),
        (pool.frozen, f"the pool is frozen: {pool.frozen_reason}" if pool.frozen_reason else "the pool is frozen"),
        (pool.paused, "the pool is paused"),
        (pool.mode not in LAUNCHING_MODES, f"mode {pool.mode}: launches are decided and recorded, not made"),
    ):
        if applies:
            return reason
    return ""


def _distribute(observed: Observed, needed: int) -> tuple[list[Launch], dict[str, Any]]:
    """Launches and a note per config. What the other configs do not launch is left to the fallbacks."""
    rounds = _Rounds(observed)
    turns = [[config for config in rounds.configs if config.is_fallback is fallback] for fallback in (False, True)]
    for configs in turns:
        rounds.launch(configs, needed - len(rounds), needed)
    if rounds.unavailable and observed.attempt_in_seconds <= 0 and needed > len(rounds) and not rounds.had_candidates:
        rounds.attempt()
    return rounds.launches, rounds.notes


class _Rounds:
    """Launches that one decision distributes, in rounds that share windows and maxima. Its length is the units."""

    def __init__(self, observed: Observed) -> None:
        self.observed = observed
        self.unavailable = observed.calculator_unavailable_seconds > 0
        self.shared = {known.share: known for known in observed.shared}
        configs, limit_rooms = capping.capped(observed.configs, observed.levels, observed.tariff)
        self.configs = windows.on_trial(observed.pool, configs, self.shared)
        self.maximum_room = windows.maximum_rooms(observed.configs) | limit_rooms
        self.room: dict[Share, int] = (
            self.maximum_room
            | windows.trial_rooms(observed.pool, self.configs)
            | windows.shared_rooms(self.shared, calculator_unavailable=self.unavailable)
        )
        self.drawn = observed.pool.drawn
        self.stranded = _stranded(observed)
        self.had_candidates = False
        self.launches: list[Launch] = []
        self.notes: dict[str, Any] = {}

    def __len__(self) -> int:
        return sum(launch.units for launch in self.launches)

    def launch(self, configs: Sequence[Config], units: int, needed: int) -> None:
        """Distribute up to `units`: probes first (each serves one unit of demand), then by weight within windows."""
        tripped = {config.id: windows.trip_reason(config, self.shared) for config in configs}
        candidates, end = [], len(self) + units
        for config in sorted(configs, key=lambda config: not tripped[config.id]):
            room, limiting = windows.room(config, self.room, calculator_unavailable=self.unavailable)
            weight = self._weight(config)
            self.notes[config.id] = note = {"weight": weight, "room": room, "limited_by": limiting, "launched": 0}
            if reason := _never(config):
                note["reason"] = reason
            elif tripped[config.id]:
                if config.permit is None:
                    note["reason"] = f"{tripped[config.id]}; no probe is due"
                elif self.stranded:
                    note["reason"] = f"{tripped[config.id]}; its probe waits: {self.stranded}"
                elif len(self) < end and self._may_probe(config):
                    self._add(Launch(config=config, units=1, permit=config.permit))
                    note["probe"] = config.permit
                else:
                    note["reason"] = f"{tripped[config.id]}; its probe waits for demand"
            elif room == 0:
                note["reason"] = f"the {limiting} is full"
            else:
                candidates.append(choice.Candidate(config.id, weight, room, config.limits))
        self.had_candidates |= bool(candidates)
        self._choose(configs, candidates, end - len(self), self.room)
        for candidate in candidates:
            note = self.notes[candidate.config_id]
            if not note["launched"]:
                note["reason"] = _left_out(self.observed, candidate.config_id, units, needed)

    def attempt(self) -> None:
        """Launch one unit beyond the windows. Failures are not folded while the calculator is unavailable; without this
        attempt a pool could wait forever."""
        configs = [config for config in self.configs if windows.may_attempt(config, self.shared)]
        candidates = [choice.Candidate(config.id, config.prior_weight, 1, config.limits) for config in configs]
        rooms = {share: self.room[share] for share in self.maximum_room}
        self._choose(configs, candidates, 1, rooms, attempt=True)

    def _choose(
        self,
        configs: Sequence[Config],
        candidates: Sequence[choice.Candidate],
        units: int,
        room: Mapping[Share, int],
        *,
        attempt: bool = False,
    ) -> None:
        by_id = {config.id: config for config in configs}
        chosen = choice.choose(candidates, units, drawn=self.drawn, shared_room=room)
        for config_id, got in chosen.items():
            self._add(Launch(config=by_id[config_id], units=got, attempt=attempt))
            self.drawn += got

    def _add(self, launch: Launch) -> None:
        """Add a launch. A probe starts even if the windows are full, and uses up a unit of the shared ones."""
        self.launches.append(launch)
        note = self.notes[launch.config.id]
        note["launched"] += launch.units
        note.pop("reason", None)
        for share in launch.config.limits:
            if share in self.room:
                self.room[share] = max(0, self.room[share] - launch.units)

    def _may_probe(self, config: Config) -> bool:
        """True if a probe keeps the maximum of its launch config, and the safety limits."""
        return all(self.room[share] > 0 for share in config.limits if share in self.maximum_room)

    def _weight(self, config: Config) -> float:
        return windows.trusted_weight(
            config,
            calculator_unavailable_seconds=self.observed.calculator_unavailable_seconds,
            half_life_seconds=self.observed.weight_half_life_seconds,
        )


def _stranded(observed: Observed) -> str:
    """Reason why no probe is made: machines of earlier ones, which cannot be terminated, hold as many places as stuck
    workers free. Empty if there is none. Further probes would fill the pool with such machines."""
    stranded = observed.fleet.stranded
    if stranded < accounting.places_freed_max(observed.pool):
        return ""
    machines = "1 machine of an earlier probe" if stranded == 1 else f"{stranded} machines of earlier probes"
    return f"{machines} cannot be terminated"


def _never(config: Config) -> str:
    """Reason why a config launches nothing at any demand; empty if it may launch."""
    if not config.active:
        return f"{config.state}: {config.state_reason}" if config.state_reason else config.state
    return config.stopped


def _left_out(observed: Observed, config_id: str, units: int, needed: int) -> str:
    """Reason why a config that could launch does not."""
    config = next(config for config in observed.configs if config.id == config_id)
    if not needed:
        return "nothing is needed"
    if config.is_fallback and not units:
        return f"the current revision {config.current_id} launches first"
    return "no launches left for its weight"


def check_plan(observed: Observed, plan: Plan) -> list[str]:
    """Invariants that a plan violates; empty for every plan that `plan` makes. Checked before each commit."""
    pool, fleet = observed.pool, observed.fleet
    after = fleet.serving + plan.units
    problems = []
    if plan.units and after > pool.max_capacity:
        problems.append(f"{after} would serve, above the maximum of {pool.max_capacity}")
    freed = accounting.freed(pool, fleet)
    if plan.units and after + fleet.leaving > pool.max_capacity + pool.min_capacity + freed:
        places = f"maximum + minimum + {freed} of stuck workers" if fleet.stuck else "maximum + minimum"
        problems.append(f"{after} serving and {fleet.leaving} leaving exceed {places}")
    if plan.units and pool.mode == "canary" and after > 1:
        problems.append(f"{after} would serve, above the one worker of a canary")
    if plan.units and (blocked := _blocked(observed) or (freezing.description(plan.freeze) if plan.freeze else "")):
        problems.append(f"launches although {blocked}")
    problems += [
        f"launches on {launch.config.id}, which is not active"
        for launch in plan.launches
        if not launch.config.active or launch.config.stopped
    ]
    live: dict[str, int] = {}
    for config in observed.configs:
        live[config.name] = live.get(config.name, 0) + config.live
    for launch in plan.launches:
        name, maximum = launch.config.name, launch.config.max_capacity
        live[name] = live.get(name, 0) + launch.units
        if maximum is not None and live[name] > maximum:
            problems.append(f"{live[name]} workers of launch config {name} exceed its maximum of {maximum}")
    problems += capping.exceeded(observed.configs, observed.levels, _units(plan.launches), observed.tariff)
    idle = {w.worker_id: w.config_id for w in observed.idle}
    if not {*plan.stop, *plan.drain} <= idle.keys():
        problems.append("stops a worker that is not idle")
    unwanted = max(0, fleet.serving - _starting(observed) - plan.wanted)
    if len(plan.stop) > unwanted:
        problems.append(f"stops {len(plan.stop)} workers, although {unwanted} registered ones are not wanted")
    marked = _marked(observed, plan.mark, plan.unmark)
    if len(plan.stop) + len(marked) > unwanted and marked:
        problems.append(f"{len(marked)} workers are to leave after their tasks, although they are wanted")
    if not set(plan.mark) <= {w.worker_id for w in observed.busy}:
        problems.append("marks a worker that has no task")
    if plan.units and marked:
        problems.append(f"launches while {len(marked)} workers are to leave after their tasks")
    if (reason := _stranded(observed)) and any(launch.permit is not None for launch in plan.launches):
        problems.append(f"probes although {reason}")
    draining = {config.id for config in observed.configs if config.state == "draining"}
    if not {idle.get(worker_id) for worker_id in plan.drain} <= draining:
        problems.append("drains a worker whose revision does not drain")
    if len(plan.drain) > scale_down.leaving_room(
        wanted=plan.wanted, missing=_missing(observed) + plan.units + len(plan.stop)
    ):
        problems.append(f"drains {len(plan.drain)} workers at a time, with {_missing(observed)} missing")
    if not {*plan.ageing.stop, *plan.ageing.drain} <= {
        life.worker_id for life in observed.lives if life.drains_in <= 0
    }:
        problems.append("stops a worker for its age before its time")
    if not set(plan.ageing.stop) <= {life.worker_id for life in observed.lives if not life.has_task}:
        problems.append("stops a worker that has a task for its age")
    if not set(plan.cancel) <= {w.worker_id for w in observed.waiting}:
        problems.append("cancels a worker that is not waiting")
    return problems
