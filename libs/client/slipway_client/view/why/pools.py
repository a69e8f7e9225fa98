"""Explanation of a worker pool."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from fractions import Fraction

from slipway_client.view import moments
from slipway_client.view.phrases import brief, count, either, full_window, is_tripped, queue, some, tripped
from slipway_client.view.why.causes import (
    config_state,
    interventions,
    launches_nothing,
    lease_pools_used,
    queues,
    resume,
    shares,
    tripped_since,
)
from slipway_client.view.why.explanation import NAMED, NOTHING, RECOVERS, Cause, Explanation, Facts, explained


def of_pool(
    pool: Facts,
    decisions: Sequence[Facts],
    configs: Sequence[Facts],
    launch_stops: Sequence[Facts],
    lease_pools: Sequence[Facts],
    *,
    calculator: str,
    broker: str = "",
    now: datetime,
) -> Explanation:
    """Explain a pool. `decisions` are newest first; `calculator` and `broker` are the errors of an unavailable
    weight-calculator and lease-broker. At its maximum, that is the first cause: a healthy pool would be no larger."""
    used = lease_pools_used(lease_pools, configs)
    limits = list(_limits(pool, decisions, configs, used, now))
    if broker:
        text = f"{broker}: launches wait for its leases"
        limits.insert(0, Cause(text=text, remedy="`slipway doctor` shows what is wrong"))
    trips = list(_trips(configs, now))
    full = pool["serving"] >= pool["max_capacity"] > 0
    causes = [
        *interventions(pool, configs, launch_stops, now),
        *([*limits, *trips] if broker or (full and limits) else [*trips, *limits]),
    ]
    if calculator:
        text = f"{calculator}: windows shrink to 4, and weights drift to the declared ones"
        causes.append(Cause(text=text, remedy="`slipway doctor` shows what is wrong"))
    causes += _demand(pool, decisions)
    if not causes:
        causes.append(Cause(text="healthy, nothing limits its launches"))
    details = [*_last_decision(decisions, now), *_in_flight(configs, used)]
    return explained("pool", pool["id"], causes, _effect(pool, configs, launch_stops), details)


def _trips(configs: Sequence[Facts], now: datetime) -> Iterator[Cause]:
    active = [config for config in configs if config["state"] == "active"]
    bad = [config for config in active if is_tripped(config)]
    if bad:
        named = some([f"{config['id']} ({brief(tripped(config, now))})" for config in bad], NAMED)
        text = f"{len(bad)} of {count(len(active), 'active launch config')} tripped: {named}"
        text = text if len(active) > 1 else f"its only active launch config is tripped: {named}"
        shows = f"`slipway lc show {bad[0]['id']}` lists the failures"
        yield Cause(text=text, since=tripped_since(bad), remedy=f"{RECOVERS}; {shows}")
    for config in configs:
        if config["state"] == "paused":
            yield Cause(text=f"{config['id']} is {config_state(config, now)}", remedy=resume(config))


def _limits(
    pool: Facts, decisions: Sequence[Facts], configs: Sequence[Facts], used: Sequence[Facts], now: datetime
) -> Iterator[Cause]:
    """Maximum, windows and lease pools that stand in the way of more workers."""
    needed = (decisions[0]["details"].get("needed") or 0) if decisions else 0
    wanted = -(-Fraction(str(pool["scaling_ratio"])) * (pool["pending"] + pool["claimed"]) // 1)
    most = pool["max_capacity"]
    raise_it = "raise max_capacity in the declaration and run `slipway apply`"
    if wanted > most:
        yield Cause(
            text=f"max_capacity {most} is reached: its tasks need {count(int(wanted), 'worker')}", remedy=raise_it
        )
    elif needed and pool["serving"] + pool["leaving"] >= most + pool["min_capacity"]:
        text = f"max_capacity {most} is reached: {count(pool['leaving'], 'leaving worker')} count until terminated"
        yield Cause(text=text)
    for config in configs:
        if config["state"] == "active" and not is_tripped(config) and (full := full_window(config)):
            yield Cause(text=f"{config['id']}: {full}", remedy=f"{NOTHING}: a window grows with each success")
    yield from queues(configs, used, now)


def _demand(pool: Facts, decisions: Sequence[Facts]) -> Iterator[Cause]:
    sources: Facts = decisions[0]["details"].get("sources", {}) if decisions else {}
    if not sources:
        remedy = f"report it on the demand topic, or with `slipway demand set {pool['id']} --pending N --claimed N`"
        yield Cause(text="no source has reported demand", remedy=remedy)
    for name, report in sources.items():
        if report.get("stale"):
            text = (
                f"source {name} is stale: its {count(report['pending'], 'pending task')} launch no workers, but still"
            )
            yield Cause(text=f"{text} protect running ones", remedy=f"check why {name} reports no demand")


def _effect(pool: Facts, configs: Sequence[Facts], launch_stops: Sequence[Facts]) -> str:
    tasks = f"{count(pool['pending'], 'task')} pending"
    lasting = pool.get("backlog_seconds")
    tasks += f" (without a break for {moments.about(lasting)})" if lasting else ""
    workers = (
        f"{pool['serving']} serving"
        if pool.get("wanted") is None
        else f"{pool['serving']} of {pool['wanted']} wanted workers serving"
    )
    parts = [f"{pool['running']} registered"]
    parts += [f"{pool['leaving']} leaving"] if pool["leaving"] else []
    words = f"{tasks}, {pool['claimed']} claimed; {workers} ({', '.join(parts)})"
    if launches_nothing(pool, launch_stops):
        return f"{words}; nothing is launched"
    active = [config for config in configs if config["state"] == "active"]
    bad = [config for config in active if is_tripped(config)]
    if bad and len(bad) == len(active):
        return f"{words}; only probes are launched"
    if bad:
        healthy = [config["id"] for config in active if not is_tripped(config)]
        return f"{words}; launches go to {some(healthy, NAMED) if len(healthy) > NAMED else either(healthy)}"
    return words


def _last_decision(decisions: Sequence[Facts], now: datetime) -> Iterator[str]:
    if not decisions:
        yield "No decision has been made yet."
        return
    decision = decisions[0]
    details = decision["details"]
    times = f" ({decision['times']} times)" if decision.get("times", 1) > 1 else ""
    at = moments.clock(moments.at(decision["last_at"]), now)
    yield f"Last decision at {at}{times}: {decision['reason']}."
    if details.get("needed"):
        yield from shares(details)


def _in_flight(configs: Sequence[Facts], used: Sequence[Facts]) -> Iterator[str]:
    waiting = sum((config.get("stages") or {}).get("launch", {}).get("in_flight", 0) for config in configs)
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        yield f"{count(waiting, 'worker')} {verb} for admission or for the provider's answer."
        yield from (f"  Lease pool {row['id']}: {queue(row)}." for row in used if not row["waiting"])
