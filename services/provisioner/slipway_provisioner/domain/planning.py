"""One decision for one pool: launches, cancellations and workers to stop, with reasons. Pure; calls accounting,
windows, choice, freezing and scale_down, and adds only their order."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from slipway_provisioner.domain import accounting, choice, freezing, scale_down, windows
from slipway_provisioner.domain.pool import Config, Observed, Shared, Waiting

LAUNCHING_MODES = ("enforce", "canary")


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Start `units` workers of one config; `permit` is set if this one start is a probe."""

    config: Config
    units: int
    permit: int | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Steps and their reasons. `cancel` and `stop` are worker ids. Executing a plan requires no choices."""

    launches: Sequence[Launch]
    cancel: Sequence[str]
    stop: Sequence[str]
    wanted: int
    serving: int
    details: dict[str, Any]
    freeze: Shared | None = None  # the image for which the pool is frozen
    reconsider_after_seconds: float | None = None  # after which time alone may change the decision

    @property
    def units(self) -> int:
        return sum(launch.units for launch in self.launches)


def plan(observed: Observed, *, now: datetime) -> Plan:
    """Plan one pool. The details name every config, including those without launches."""
    pool = observed.pool
    tasks = accounting.tasks(observed.demands, trust_stale=False)
    protected = accounting.tasks(observed.demands, trust_stale=True)
    needed = accounting.shortfall(pool, tasks, observed.fleet)
    bad = freezing.bad_image(observed)
    blocked = _blocked(observed) or (f"the pool freezes: {freezing.description(bad)}" if bad is not None else "")
    launches, configs = _distribute(observed, needed)
    if blocked:
        launches = []
        for note in configs.values():
            note["would_launch"], note["launched"] = note["launched"], 0
    withdrawn = [w.worker_id for w in observed.waiting if blocked or _cannot_launch(observed, w)]
    spare = accounting.surplus(pool, protected, observed.fleet)
    cancel, stop = scale_down.select(
        max(0, spare - len(withdrawn)),
        [w.worker_id for w in observed.waiting if w.worker_id not in withdrawn],
        observed.idle,
        idle_timeout_seconds=observed.idle_timeout_seconds,
        now=now,
    )
    cancel = [*withdrawn, *cancel]
    launched = sum(launch.units for launch in launches)
    details = {
        "tasks": tasks,
        "sources": {
            d.source: {"pending": d.pending, "claimed": d.claimed, "gone": d.gone, "stale": d.stale}
            for d in observed.demands
        },
        "wanted": accounting.wanted(pool, tasks),
        "serving": observed.fleet.serving,
        "leaving": observed.fleet.leaving,
        "needed": needed,
        "launched": launched,
        "reason": blocked or _reason(needed, launched, cancel, stop),
        "configs": configs,
    }
    return Plan(
        launches=launches,
        cancel=cancel,
        stop=stop,
        wanted=accounting.wanted(pool, tasks),
        serving=observed.fleet.serving,
        details=details,
        freeze=bad,
        reconsider_after_seconds=_reconsider(observed, now, spare - len(cancel) - len(stop), needed - launched),
    )


def _reconsider(observed: Observed, now: datetime, spare: int, missing: int) -> float | None:
    """Seconds until time alone may change the decision; None if it never will."""
    moments = [d.fresh_seconds for d in observed.demands if not d.stale]
    if spare > 0:
        ages = [(now - idle.since).total_seconds() for idle in observed.idle]
        moments += [observed.idle_timeout_seconds - age for age in ages if age < observed.idle_timeout_seconds]
    if missing > 0 and observed.calculator_unavailable_seconds > 0:
        moments.append(observed.attempt_in_seconds)
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
    """Launches and a note per config: probes first (each serves one unit of demand), then by weight within windows."""
    launches: list[Launch] = []
    candidates: list[choice.Candidate] = []
    notes: dict[str, Any] = {}
    unavailable = observed.calculator_unavailable_seconds > 0
    shared = {known.share: known for known in observed.shared}
    shared_room = windows.shared_rooms(shared, calculator_unavailable=unavailable)
    if observed.pool.mode == "canary":
        needed = min(needed, max(0, 1 - observed.fleet.serving))
    tripped = {config.id: windows.trip_reason(config, shared) for config in observed.configs}
    for config in sorted(observed.configs, key=lambda config: not tripped[config.id]):
        room, limiting = windows.room(config, shared_room, calculator_unavailable=unavailable)
        weight = windows.trusted_weight(
            config,
            calculator_unavailable_seconds=observed.calculator_unavailable_seconds,
            half_life_seconds=observed.weight_half_life_seconds,
        )
        notes[config.id] = note = {"weight": weight, "room": room, "limited_by": limiting, "launched": 0}
        if not config.active:
            note["reason"] = "not active"
        elif config.stopped:
            note["reason"] = config.stopped
        elif tripped[config.id]:
            if config.permit is None:
                note["reason"] = f"{tripped[config.id]}; no probe is due"
            elif len(launches) < needed:
                launches.append(Launch(config=config, units=1, permit=config.permit))
                note["launched"], note["probe"] = 1, config.permit
                # A probe starts even if the windows are full, and uses up a unit of the shared ones.
                shared_room |= {
                    share: max(0, shared_room[share] - 1) for share in config.shares if share in shared_room
                }
            else:
                note["reason"] = f"{tripped[config.id]}; its probe waits for demand"
        elif room == 0:
            note["reason"] = f"the {limiting} is full"
        else:
            candidates.append(choice.Candidate(config.id, weight, room, config.shares))
    left = needed - len(launches)
    by_id = {config.id: config for config in observed.configs}
    if unavailable and observed.attempt_in_seconds <= 0 and left > 0 and not candidates:
        # Failures are not folded while the calculator is unavailable; without this attempt a pool could wait forever.
        eligible = [config for config in observed.configs if windows.may_attempt(config, shared)]
        candidates = [choice.Candidate(config.id, config.prior_weight, 1) for config in eligible]
        left, shared_room = 1, {}
    chosen = choice.choose(candidates, left, drawn=observed.pool.drawn, shared_room=shared_room)
    for config_id, units in chosen.items():
        launches.append(Launch(config=by_id[config_id], units=units))
        notes[config_id]["launched"] = units
        notes[config_id].pop("reason", None)
    for candidate in candidates:
        if not notes[candidate.config_id]["launched"]:
            notes[candidate.config_id]["reason"] = "no launches left for its weight" if needed else "nothing is needed"
    return launches, notes


def _reason(needed: int, launched: int, cancel: Sequence[str], stop: Sequence[str]) -> str:
    if launched:
        return f"{needed} needed" if launched == needed else f"{needed} needed, room for {launched}"
    if needed:
        return f"{needed} needed, but no config may launch now"
    if cancel or stop:
        return f"{len(cancel)} cancelled, {len(stop)} stopping: more workers than wanted"
    return "nothing is needed"


def check_plan(observed: Observed, plan: Plan) -> list[str]:
    """Invariants that a plan violates; empty for every plan that `plan` makes. Checked before each commit."""
    pool, fleet = observed.pool, observed.fleet
    after = fleet.serving + plan.units
    problems = []
    if plan.units and after > pool.max_capacity:
        problems.append(f"{after} would serve, above the maximum of {pool.max_capacity}")
    if plan.units and after + fleet.leaving > pool.max_capacity + pool.min_capacity:
        problems.append(f"{after} serving and {fleet.leaving} leaving exceed maximum + minimum")
    if plan.units and pool.mode == "canary" and after > 1:
        problems.append(f"{after} would serve, above the one worker of a canary")
    if plan.units and (blocked := _blocked(observed) or (freezing.description(plan.freeze) if plan.freeze else "")):
        problems.append(f"launches although {blocked}")
    problems += [
        f"launches on {launch.config.id}, which is not active"
        for launch in plan.launches
        if not launch.config.active or launch.config.stopped
    ]
    if not set(plan.stop) <= {w.worker_id for w in observed.idle}:
        problems.append("stops a worker that is not idle")
    if not set(plan.cancel) <= {w.worker_id for w in observed.waiting}:
        problems.append("cancels a worker that is not waiting")
    return problems
