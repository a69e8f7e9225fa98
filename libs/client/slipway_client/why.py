"""Why a worker is where it is, and why a pool has what it has: plain sentences. Pure: facts as the services tell them
in, a line each out; two spaces before a line make it part of the one above."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from typing import Any, Final

from slipway_client import moments

Facts = Mapping[str, Any]
MODES: Final = {
    "observe": "Its mode is observe: it decides and records, and launches nothing.",
    "canary": "Its mode is canary: it launches one worker at a time.",
}


def of_worker(worker: Facts, decision: Facts | None, lease_pools: Sequence[Facts], *, now: datetime) -> list[str]:
    """The story of a worker: where it is, who decided and who lost, admission, call, boot, tasks, end.

    `decision` is the whole one that asked for it; None when it is forgotten.
    """
    where = f"{worker['launch_config_id']} (account {worker['account_id']})"
    lines = [f"Worker {worker['id']} of pool {worker['pool_id']} is {worker['state']} on {where}."]
    lines += _decided(worker, decision, now)
    lines += _admission(worker, lease_pools, now)
    lines += _call(worker, now)
    lines += _boot(worker, now)
    lines += _tasks(worker, now)
    lines += _end(worker, now)
    return lines


def _decided(worker: Facts, decision: Facts | None, now: datetime) -> Iterator[str]:
    asked = f"It was asked for at {moments.clock(moments.at(worker['requested_at']), now)}"
    if decision is None:
        yield f"{asked}; the decision is forgotten."
    else:
        why = decision["why"]
        yield (
            f"{asked}: {decision['because']}, since {_count(why['tasks'], 'task')} wanted {why['wanted']} and "
            f"{why['serving']} served (decision {decision['id']})."
        )
        yield from _shares(why, chosen=worker["launch_config_id"])
    if worker.get("probe_permit") is not None:
        yield f"It is probe {worker['probe_permit']} of a closed config: one worker that tries whether it works again."


def _shares(why: Facts, *, chosen: str = "") -> Iterator[str]:
    """Who got what, and who lost and why; those that got something first."""
    configs = why.get("configs", {})
    for id_, note in sorted(configs.items(), key=lambda item: (-item[1].get("launched", 0), item[0])):
        mark = "→" if id_ == chosen else " "
        facts = f"weight {note['weight']:.3g}, room for {note['room']}"
        got = note.get("launched", 0)
        if got:
            yield f"{mark} {id_} got {got}{' as a probe' if 'probe' in note else ''}: {facts}."
        elif note.get("would_launch"):
            yield f"{mark} {id_} would have got {note['would_launch']}: {facts}."
        else:
            yield f"{mark} {id_} got nothing: {note.get('lost', 'nothing was left')} ({facts})."


def _admission(worker: Facts, lease_pools: Sequence[Facts], now: datetime) -> Iterator[str]:
    lease, batch = worker.get("lease"), worker.get("batch")
    requested_at = moments.at(worker["requested_at"])
    if batch and batch.get("started_at"):
        waited = moments.spelled((moments.at(batch["started_at"]) - requested_at).total_seconds())
        by = f" by lease pool {lease['lease_pool_id']} (fencing token {lease['fencing_token']})" if lease else ""
        yield f"It was admitted{by}: {waited} from its request to the call."
    elif worker["state"] == "requested":
        waited = moments.spelled((now - requested_at).total_seconds())
        if lease:
            yield f"It was admitted by lease pool {lease['lease_pool_id']} and waits for its call, {waited} by now."
            return
        yield f"It has waited {waited} for admission to its account."
        if worker.get("reason"):
            yield f"  It was put back: {worker['reason']}."
        for pool in lease_pools:
            if pool["id"] == worker["account_id"]:
                yield f"  {_queue(pool)}"


def _queue(pool: Facts) -> str:
    eta = pool.get("eta_seconds")
    next_ = "" if eta is None else f"; one asked for now waits about {moments.about(eta)}"
    oldest = pool.get("oldest_wait_seconds")
    since = "" if oldest is None else f", the oldest for {moments.about(oldest)}"
    full = " (full)" if pool["held"] >= pool["limit"] else ""
    held = f"{pool['held']} of {pool['limit']} held{full}"
    return f"Lease pool {pool['id']}: {held}, {pool['waiting']} wait{since}{next_}."


def _call(worker: Facts, now: datetime) -> Iterator[str]:
    batch = worker.get("batch")
    if not batch or not batch.get("started_at"):
        return
    began = moments.at(batch["started_at"])
    others = batch.get("units", 1) - 1
    together = f", together with {_count(others, 'other')}" if others else ""
    call = f"The provider was called at {moments.clock(began, now)}{together}"
    again = batch.get("repeats")
    repeats = f" after {_count(again, 'repetition')} of a call without answer" if again else ""
    if worker.get("launched_at"):
        took = moments.spelled((moments.at(worker["launched_at"]) - began).total_seconds())
        yield f"{call} and said yes {took} later{repeats}: instance {worker['instance_id']}."
    elif worker.get("registered_at"):
        yield f"{call}; the machine registered before its answer: instance {worker['instance_id']}."
    elif worker["state"] == "launching":
        yield f"{call}; no answer for {moments.spelled((now - began).total_seconds())}{repeats}."
    elif worker.get("failed_at"):
        yield f"{call} and refused{repeats}: {worker.get('reason') or batch.get('outcome') or 'no reason given'}."
    else:
        yield f"{call}; what came of it: {batch.get('outcome') or 'not known'}{repeats}."


def _boot(worker: Facts, now: datetime) -> Iterator[str]:
    since = worker.get("launched_at")
    if worker.get("registered_at"):
        took = (moments.at(worker["registered_at"]) - moments.at(since)).total_seconds() if since else 0.0
        if took > 0:  # else it was quicker than the provider's answer: told with the call
            yield f"It booted in {moments.spelled(took)}: registered at {_clock(worker, 'registered_at', now)}."
    elif worker["state"] == "starting" and since:
        yield f"It has been booting for {moments.spelled((now - moments.at(since)).total_seconds())}."
    elif since:
        yield "It never registered."


def _tasks(worker: Facts, now: datetime) -> Iterator[str]:
    if not worker.get("registered_at"):
        return
    claims = [event for event in worker.get("timeline", ()) if event["what"] == "claimed"]
    finished = sum(event["what"] == "finished" for event in worker.get("timeline", ()))
    if not claims:
        yield "It has never had a task."
    else:
        first = (moments.at(claims[0]["at"]) - moments.at(worker["registered_at"])).total_seconds()
        last = claims[-1]["detail"]
        took = f"It took {_count(len(claims), 'task')}, the first {moments.spelled(first)} after it registered"
        yield f"{took}; now {last}." if finished < len(claims) else f"{took}; the last was {last}."
    if worker["state"] == "running" and worker.get("idle_since"):
        idle = (now - moments.at(worker["idle_since"])).total_seconds()
        yield f"It has been idle for {moments.spelled(idle)}."


def _end(worker: Facts, now: datetime) -> Iterator[str]:
    reason = worker.get("reason") or "no reason given"
    if worker.get("stopping_at"):
        yield f"It was told to leave at {_clock(worker, 'stopping_at', now)}: {reason}."
    if worker.get("ended_at"):
        lived = (moments.at(worker["ended_at"]) - moments.at(worker["requested_at"])).total_seconds()
        told = "" if worker.get("stopping_at") else f": {reason}"
        yield f"It ended at {_clock(worker, 'ended_at', now)}, {moments.spelled(lived)} after it was asked for{told}."
    elif worker["state"] == "stopping":
        yield "Its instance may still be there: it counts as billed until the provider says that it is gone."


def _clock(worker: Facts, field: str, now: datetime) -> str:
    return moments.clock(moments.at(worker[field]), now)


def of_pool(
    pool: Facts,
    decisions: Sequence[Facts],
    configs: Sequence[Facts],
    brakes: Sequence[Facts],
    lease_pools: Sequence[Facts],
    *,
    calculator: str,
    now: datetime,
) -> list[str]:
    """What a pool wants, what it has, what the newest decision did, and what binds.

    `decisions` newest first; `calculator` says why the weight-calculator is not heard, empty when it is.
    """
    lines = [*_balance(pool, decisions, now)]
    lines += _holds(pool, brakes, configs, now)
    if decisions:
        lines += _last(decisions[0], now)
    lines += _binding(pool, decisions, configs, lease_pools, now)
    if calculator:
        lines.append(f"{calculator}: without it windows shrink to 4, and weights drift to the declared ones.")
    return lines


def _balance(pool: Facts, decisions: Sequence[Facts], now: datetime) -> Iterator[str]:
    tasks = f"{_count(pool['pending'], 'task')} pending and {pool['claimed']} running"
    waits = pool.get("oldest_wait_seconds")
    since = "" if waits is None else f", some for {moments.about(waits)}"
    between = f"between {pool['min_capacity']} and {pool['max_capacity']}"
    ratio = "" if str(pool["scaling_ratio"]) == "1" else f", {pool['scaling_ratio']} a task"
    wanted = "has not decided yet" if pool.get("wanted") is None else f"wants {pool['wanted']} workers"
    yield f"Pool {pool['id']} {wanted} ({between}{ratio}) for {tasks}{since}."
    yield f"It has {pool['serving']} ({pool['running']} of them registered) and {pool['leaving']} leaving."
    sources: Facts = decisions[0]["why"].get("sources", {}) if decisions else {}
    if not sources:
        yield "Nobody has reported any demand."
    for name, told in sources.items():
        if told.get("stale"):
            yield f"Source {name} is silent: its {told['pending']} pending ask for nothing, and still protect workers."


def _holds(pool: Facts, brakes: Sequence[Facts], configs: Sequence[Facts], now: datetime) -> Iterator[str]:
    """What keeps a whole pool or account from launching."""
    if pool.get("paused"):
        told = {"reason": pool.get("paused_reason"), "by": pool.get("paused_by"), "until": pool.get("paused_until")}
        yield f"It is paused{_by(told, now)}. `slipway pool resume {pool['id']}` ends that."
    if pool.get("frozen"):
        told = {"reason": pool.get("frozen_reason"), "by": pool.get("frozen_by")}
        yield f"It is frozen{_by(told, now)}. `slipway pool unfreeze {pool['id']}` ends that."
    if pool.get("mode") in MODES:
        yield MODES[pool["mode"]]
    accounts = {config["account_id"] for config in configs}
    for brake in brakes:
        scope, id_ = brake["scope"], brake["scope_id"]
        if scope == "all" or (scope == "pool" and id_ == pool["id"]) or (scope == "account" and id_ in accounts):
            where, option = ("everywhere", "") if scope == "all" else (f"in {scope} {id_}", f" --{scope} {id_}")
            yield f"Launching is stopped {where}{_by(brake, now)}. `slipway start-launching{option}` ends that."


def _by(held: Facts, now: datetime) -> str:
    until = f" until {moments.clock(moments.at(held['until']), now)}" if held.get("until") else ""
    by = f" by {held['by']}" if held.get("by") else ""
    return f"{until}{by}" + (f": {held['reason']}" if held.get("reason") else "")


def _last(decision: Facts, now: datetime) -> Iterator[str]:
    why = decision["why"]
    times = f", {decision['times']} times alike" if decision.get("times", 1) > 1 else ""
    at = moments.clock(moments.at(decision["last_at"]), now)
    yield f"Last decision, at {at}{times}: {decision['because']}."
    if why.get("needed"):
        yield from _shares(why)


def _binding(
    pool: Facts, decisions: Sequence[Facts], configs: Sequence[Facts], lease_pools: Sequence[Facts], now: datetime
) -> Iterator[str]:
    """What is in the way of more workers, or of those asked for."""
    needed = (decisions[0]["why"].get("needed") or 0) if decisions else 0
    asked = -(-Fraction(str(pool["scaling_ratio"])) * (pool["pending"] + pool["claimed"]) // 1)
    if asked > pool["max_capacity"]:
        yield f"Its maximum of {pool['max_capacity']} binds: the tasks alone would want {asked}."
    elif needed and pool["serving"] + pool["leaving"] >= pool["max_capacity"] + pool["min_capacity"]:
        yield f"Its maximum of {pool['max_capacity']} binds: those that leave count until they are gone."
    for config in configs:
        if line := _config(config, now):
            yield line
    waiting = sum((config.get("stages") or {}).get("launch", {}).get("in_flight", 0) for config in configs)
    if waiting:
        yield f"{_count(waiting, 'worker')} wait for admission or for the provider's answer."
        accounts = {config["account_id"] for config in configs}
        mine = [row for row in lease_pools if row["id"] in accounts] or lease_pools
        yield from (f"  {_queue(row)}" for row in mine if row["waiting"])


def _config(config: Facts, now: datetime) -> str:
    """What keeps a launch config from taking its share; empty when nothing does."""
    id_ = config["id"]
    if config["state"] == "paused":
        told = {"reason": config.get("state_reason"), "by": config.get("state_by"), "until": config.get("paused_until")}
        return f"{id_} is paused{_by(told, now)}."
    if config["state"] != "active":
        return ""
    if config.get("circuit") == "closed":
        said = config.get("reason") or ""
        reason = (said.partition(": ")[2] or said).removeprefix("closed, ")  # it begins with the config's short name
        return f"{id_} is closed: {reason or 'no reason given'}{_probe(config, now)}."
    for name, stage in (config.get("stages") or {}).items():
        if stage["in_flight"] + stage["unfolded"] >= stage["window"]:
            unfolded = f" and {_count(stage['unfolded'], 'failure')} not yet weighed" if stage["unfolded"] else ""
            return f"{id_} is held by its {name} window of {stage['window']}: {stage['in_flight']} under way{unfolded}."
    return ""


def _probe(config: Facts, now: datetime) -> str:
    """When it may be tried; empty when the reason says that it may be now."""
    if config.get("probe_ready") or not config.get("next_probe_at"):
        return ""
    seconds = (moments.at(config["next_probe_at"]) - now).total_seconds()
    return f"; next probe in {moments.spelled(seconds)}" if seconds > 0 else "; its next probe is due"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
