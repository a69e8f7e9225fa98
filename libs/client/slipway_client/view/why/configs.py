"""Explanations of a launch config and of an image."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from slipway_client.view import moments
from slipway_client.view.phrases import count, either, full_window, is_tripped, queue, some, trip_cause, tripped
from slipway_client.view.why.causes import (
    config_state,
    interventions,
    launches_nothing,
    lease_pools_used,
    queues,
    resume,
    tripped_since,
)
from slipway_client.view.why.explanation import NAMED, NOTHING, RECOVERS, Cause, Explanation, Facts, explained

FAILURES: Final = 3  # of a launch config


def of_config(
    config: Facts, pool: Facts, launch_stops: Sequence[Facts], lease_pools: Sequence[Facts], *, now: datetime
) -> Explanation:
    """Explain a launch config of the given pool."""
    id_ = config["id"]
    causes: list[Cause] = []
    if config["state"] != "active":
        remedy = resume(config) if config["state"] == "paused" else "declare it again and run `slipway apply`"
        causes.append(Cause(text=config_state(config, now), remedy=remedy))
    if is_tripped(config):
        key = config.get("tripped_by") or ""
        shared = f", by {key.replace('/', ' ', 1)}" if "/" in key else ""
        stage = f" at {config['tripped_stage']}" if config.get("tripped_stage") else ""
        began = tripped_since([config])
        text = f"{config['health_state']}{stage}{shared}: {tripped(config, now).removeprefix(f'{key}: ')}"
        remedy = f"{NOTHING}: it recovers when the down signal ends" if key == "signal" else RECOVERS
        causes.append(Cause(text=text, since=began, remedy=remedy))
    causes += [
        Cause(
            text=cause.text if cause.text.startswith("launching ") else f"pool {pool['id']} {cause.text}",
            since=cause.since,
            remedy=cause.remedy,
        )
        for cause in interventions(pool, [config], launch_stops, now)
    ]
    used = lease_pools_used(lease_pools, [config])
    if config["state"] == "active" and not is_tripped(config):
        if full := full_window(config):
            causes.append(Cause(text=full, remedy=f"{NOTHING}: the window grows with each success"))
        causes += queues([config], used, now)
        if weak := (config.get("reason") or "").partition("healthy: ")[2]:
            causes.append(Cause(text=f"healthy, with less weight: {weak}", remedy=RECOVERS))
    if not causes:
        causes.append(Cause(text="healthy, nothing limits its launches"))
    weight = "" if config.get("weight") is None else f"weight {config['weight']:.3g}, "
    launches = "launches by its weight"
    if config["state"] != "active" or launches_nothing(pool, launch_stops, config["account_id"]):
        launches = "launches nothing"
    elif is_tripped(config):
        launches = "launches nothing but probes"
    effect = f"{launches} ({weight}{config.get('starting', 0)} starting, {config.get('running', 0)} running)"
    details = list(_failures(config, now))
    details += [f"Lease pool {row['id']} of account {config['account_id']}: {queue(row)}." for row in used]
    return explained("config", id_, causes, effect, details)


def _failures(config: Facts, now: datetime) -> Iterator[str]:
    recent = config.get("recent_failures") or []
    if recent:
        yield f"{'Newest failure' if len(recent) == 1 else 'Newest failures'}:"
    for failure in recent[:FAILURES]:
        at = moments.clock(moments.at(failure["at"]), now)
        yield f"  {at}  {failure['reason'] or 'no reason given'} (worker {failure['worker_id']})."


def of_image(revision: str, configs: Sequence[Facts], *, now: datetime) -> Explanation:
    """Explain an image revision. `configs` are the launch configs that use it."""
    key = f"image/{revision}"
    windows = {row["stage"]: row for config in configs for row in config.get("shared") or () if row["key"] == key}
    bad = [row for row in windows.values() if row["state"] != "healthy"]
    by_it = [config for config in configs if config.get("tripped_by") == key]
    pools = sorted({config["pool_id"] for config in configs})
    causes = [
        Cause(
            text=f"tripped at {row['stage']}: {trip_cause(row.get('reason'))}",
            since=tripped_since(by_it),
            remedy="declare a working image and run `slipway apply`; Slipway goes on to probe this one",
        )
        for row in bad
    ]
    if not causes:
        causes.append(Cause(text="healthy, no stage of it is tripped"))
    ids = [config["id"] for config in configs]
    launches = "launches of it are probes only" if bad else "launches of it follow the weights"
    noun = "pool" if len(pools) == 1 else "pools"
    effect = f"{launches}; {count(len(ids), 'launch config')} of {noun} {either(pools)} use it: {some(ids, NAMED)}"
    if len(ids) == 1:
        effect = effect.replace(" use it: ", " uses it: ")
    details = [
        f"Window of {row['stage']}: {row['window']}, {count(row.get('unconfirmed', 0), 'unconfirmed start')}."
        for row in windows.values()
        if row.get("window") is not None
    ]
    return explained("image", revision, causes, effect, details)
