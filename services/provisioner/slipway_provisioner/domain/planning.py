"""One decision for one pool: what to launch where, whom to send away, and why. Pure; calls accounting, windows,
choice, freezing and scale_down, and has no rule of its own beyond their order."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from slipway_provisioner.domain import accounting, choice, freezing, scale_down, windows
from slipway_provisioner.domain.pool import Config, Observed, Shared, Waiting

LAUNCHING_MODES = ("enforce", "canary")


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """Start `units` workers of one config; `permit` when this one start is a probe."""

    config: Config
    units: int
    permit: int | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Steps and the reasons for them. Executing it takes no choices."""

    launches: Sequence[Launch]
    cancel: Sequence[str]
    tell: Sequence[str]
    wanted: int
    serving: int
    why: dict[str, Any]
    freeze: Shared | None = None  # the image for which the pool stops until somebody unfreezes it
    reconsider_after_seconds: float | None = None  # when time alone may change the decision

    @property
    def units(self) -> int:
        return sum(launch.units for launch in self.launches)


def plan(observed: Observed, *, now: datetime) -> Plan:
    """Decide for one pool. The reasons name every config, also those that got nothing."""
    pool = observed.pool
    asked = accounting.tasks(observed.demands, trust_stale=False)
    protected = accounting.tasks(observed.demands, trust_stale=True)
    needed = accounting.shortfall(pool, asked, observed.fleet)
    bad = freezing.bad_image(observed)
    held = _held(observed) or (f"the pool freezes: {freezing.words(bad)}" if bad is not None else "")
    launches, configs = _spread(observed, needed)
    if held:
        launches = []
        for note in configs.values():
            note["would_launch"], note["launched"] = note["launched"], 0
    orphaned = [w.worker_id for w in observed.waiting if held or _is_hopeless(observed, w)]
    spare = accounting.surplus(pool, protected, observed.fleet)
    cancel, tell = scale_down.leave(
        max(0, spare - len(orphaned)),
        [w.worker_id for w in observed.waiting if w.worker_id not in orphaned],
        observed.idle,
        idle_timeout_seconds=observed.idle_timeout_seconds,
        now=now,
    )
    cancel = [*orphaned, *cancel]
    got = sum(launch.units for launch in launches)
    why = {
        "tasks": asked,
        "sources": {
            d.source: {"pending": d.pending, "claimed": d.claimed, "gone": d.gone, "stale": d.stale}
            for d in observed.demands
        },
        "wanted": accounting.wanted(pool, asked),
        "serving": observed.fleet.serving,
        "leaving": observed.fleet.leaving,
        "needed": needed,
        "launched": got,
        "because": held or _because(needed, got, cancel, tell),
        "configs": configs,
    }
    return Plan(
        launches=launches,
        cancel=cancel,
        tell=tell,
        wanted=accounting.wanted(pool, asked),
        serving=observed.fleet.serving,
        why=why,
        freeze=bad,
        reconsider_after_seconds=_reconsider(observed, now, spare - len(cancel) - len(tell), needed - got),
    )


def _reconsider(observed: Observed, now: datetime, spare: int, missing: int) -> float | None:
    """Seconds until time alone may change the decision."""
    moments = [d.fresh_seconds for d in observed.demands if not d.stale]
    if spare > 0:
        ages = [(now - idle.since).total_seconds() for idle in observed.idle]
        moments += [observed.idle_timeout_seconds - age for age in ages if age < observed.idle_timeout_seconds]
    if missing > 0 and observed.calculator_silent_seconds > 0:
        moments.append(observed.attempt_in_seconds)
    return min((seconds for seconds in moments if seconds > 0), default=None)


def _is_hopeless(observed: Observed, worker: Waiting) -> bool:
    """A waiting worker whose turn would come in vain. With a silent calculator a closed circuit says nothing."""
    config = next((c for c in observed.configs if c.id == worker.config_id), None)
    if config is None or not config.active or config.stopped:
        return True
    closed = windows.closure(config, {known.share: known for known in observed.shared})
    silent = observed.calculator_silent_seconds > 0
    return bool(closed) and not silent and (worker.permit is None or worker.permit != config.last_permit)


def _held(observed: Observed) -> str:
    """Why nothing may launch in this pool at all; empty when it may."""
    pool = observed.pool
    if observed.stopped:
        return observed.stopped
    for is_so, reason in (
        (pool.deleted, "the pool is deleted"),
        (pool.frozen, f"the pool is frozen: {pool.frozen_reason}" if pool.frozen_reason else "the pool is frozen"),
        (pool.paused, "the pool is paused"),
        (pool.mode not in LAUNCHING_MODES, f"mode {pool.mode}: decided and recorded, not launched"),
    ):
        if is_so:
            return reason
    return ""


def _spread(observed: Observed, needed: int) -> tuple[list[Launch], dict[str, Any]]:
    """Probes first (each is one unit of real demand), then shares by weight within windows."""
    launches: list[Launch] = []
    candidates: list[choice.Candidate] = []
    notes: dict[str, Any] = {}
    silent = observed.calculator_silent_seconds > 0
    shared = {known.share: known for known in observed.shared}
    together = windows.rooms(shared, calculator_silent=silent)
    if observed.pool.mode == "canary":
        needed = min(needed, max(0, 1 - observed.fleet.serving))
    closed = {config.id: windows.closure(config, shared) for config in observed.configs}
    for config in sorted(observed.configs, key=lambda config: not closed[config.id]):
        room, limiting = windows.room(config, together, calculator_silent=silent)
        weight = windows.trusted_weight(
            config,
            calculator_silent_seconds=observed.calculator_silent_seconds,
            half_life_seconds=observed.silent_half_life_seconds,
        )
        notes[config.id] = note = {"weight": weight, "room": room, "limited_by": limiting, "launched": 0}
        if not config.active:
            note["lost"] = "not active"
        elif config.stopped:
            note["lost"] = config.stopped
        elif closed[config.id]:
            if config.permit is None:
                note["lost"] = f"{closed[config.id]}; no probe is due"
            elif len(launches) < needed:
                launches.append(Launch(config=config, units=1, permit=config.permit))
                note["launched"], note["probe"] = 1, config.permit
                # Whatever the windows say; what it takes of them is nobody else's.
                together |= {share: max(0, together[share] - 1) for share in config.shares if share in together}
            else:
                note["lost"] = f"{closed[config.id]}; its probe waits for demand"
        elif room == 0:
            note["lost"] = f"the {limiting} is full"
        else:
            candidates.append(choice.Candidate(config.id, weight, room, config.shares))
    left = needed - len(launches)
    by_id = {config.id: config for config in observed.configs}
    if silent and observed.attempt_in_seconds <= 0 and left > 0 and not candidates:
        # Nobody folds failures while the calculator is away; without this a pool could wait for ever.
        tried = [config for config in observed.configs if windows.may_attempt(config, shared)]
        candidates = [choice.Candidate(config.id, config.prior_weight, 1) for config in tried]
        left, together = 1, {}
    chosen = choice.choose(candidates, left, drawn=observed.pool.drawn, shared_room=together)
    for config_id, units in chosen.items():
        launches.append(Launch(config=by_id[config_id], units=units))
        notes[config_id]["launched"] = units
        notes[config_id].pop("lost", None)
    for candidate in candidates:
        if not notes[candidate.config_id]["launched"]:
            notes[candidate.config_id]["lost"] = "nothing left for its share" if needed else "nothing is needed"
    return launches, notes


def _because(needed: int, got: int, cancel: Sequence[str], tell: Sequence[str]) -> str:
    if got:
        return f"{needed} needed" if got == needed else f"{needed} needed, room for {got}"
    if needed:
        return f"{needed} needed, but no config may launch now"
    if cancel or tell:
        return f"{len(cancel)} cancelled and {len(tell)} told to leave: more than is wanted"
    return "nothing is needed"


def check_plan(observed: Observed, plan: Plan) -> list[str]:
    """What is wrong with a plan; empty for every plan that `plan` makes. Checked again before each commit."""
    pool, fleet = observed.pool, observed.fleet
    after = fleet.serving + plan.units
    problems = []
    if plan.units and after > pool.max_capacity:
        problems.append(f"{after} would serve, above the maximum of {pool.max_capacity}")
    if plan.units and after + fleet.leaving > pool.max_capacity + pool.min_capacity:
        problems.append(f"{after} serving and {fleet.leaving} leaving exceed maximum + minimum")
    if plan.units and pool.mode == "canary" and after > 1:
        problems.append(f"{after} would serve, and a canary is one")
    if plan.units and (held := _held(observed) or (freezing.words(plan.freeze) if plan.freeze else "")):
        problems.append(f"launches although {held}")
    problems += [
        f"launches on {launch.config.id}, which is not active"
        for launch in plan.launches
        if not launch.config.active or launch.config.stopped
    ]
    if not set(plan.tell) <= {w.worker_id for w in observed.idle}:
        problems.append("tells a worker to leave that is not idle")
    if not set(plan.cancel) <= {w.worker_id for w in observed.waiting}:
        problems.append("cancels a worker that does not wait")
    return problems
