"""Explanations for `slipway why`: cause, since when, effect and remedy of a thing's state. Pure: facts as the services
report them in, sentences out."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from fractions import Fraction
from typing import Any, Final

import msgspec

from slipway_client.view import moments
from slipway_client.view.phrases import (
    MODES,
    brief,
    count,
    either,
    frozen,
    full_window,
    is_tripped,
    launch_stop,
    paused,
    queue,
    since,
    some,
    start_launching,
    stopped,
    trip_cause,
    tripped,
)

Facts = Mapping[str, Any]
NAMED: Final = 5  # launch configs in one sentence
FAILURES: Final = 3  # of a launch config
NAMES: Final = {
    "pool": "Pool",
    "config": "Launch config",
    "image": "Image",
    "lease-pool": "Lease pool",
    "lease": "Lease",
    "worker": "Worker",
}
RECOVERS: Final = "none needed: Slipway probes by itself and launches again after the first success"
NOTHING: Final = "none needed"


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of a state, with the time at which it began, if that is known, and the remedy."""

    text: str
    since: datetime | None = None
    remedy: str = NOTHING


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """A thing's state explained. `since` is None where no service keeps the time; `details` are further sentences, of
    which those that begin with a space or an arrow belong to the one before."""

    kind: str
    id: str
    cause: str
    since: datetime | None
    effect: str
    remedy: str
    details: Sequence[str] = ()

    def sentences(self, now: datetime) -> list[str]:
        """Cause, since when, effect, remedy, then the details."""
        lines = [f"{NAMES[self.kind]} {self.id}: {self.cause}."]
        lines += [f"Since {since(self.since, now)}."] if self.since else []
        return [*lines, f"Effect: {self.effect}.", f"Remedy: {self.remedy}.", *self.details]


def _explained(kind: str, id_: str, causes: Sequence[Cause], effect: str, details: Sequence[str]) -> Explanation:
    """The first cause explained; the others follow as details."""
    first = causes[0]
    also = [f"Also: {cause.text}." + _further(cause) for cause in causes[1:]]
    return Explanation(
        kind=kind,
        id=id_,
        cause=first.text,
        since=first.since,
        effect=effect,
        remedy=first.remedy,
        details=[*also, *details],
    )


def _further(cause: Cause) -> str:
    return "" if cause.remedy.startswith(NOTHING) else f" Remedy: {cause.remedy}."


# Worker pools


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
    used = _used(lease_pools, configs)
    limits = list(_pool_limited(pool, decisions, configs, used, now))
    if broker:
        text = f"{broker}: launches wait for its leases"
        limits.insert(0, Cause(text=text, remedy="`slipway doctor` shows what is wrong"))
    trips = list(_pool_tripped(configs, now))
    full = pool["serving"] >= pool["max_capacity"] > 0
    causes = [
        *_pool_held(pool, configs, launch_stops, now),
        *([*limits, *trips] if broker or (full and limits) else [*trips, *limits]),
    ]
    if calculator:
        text = f"{calculator}: windows shrink to 4, and weights drift to the declared ones"
        causes.append(Cause(text=text, remedy="`slipway doctor` shows what is wrong"))
    causes += _pool_demand(pool, decisions)
    if not causes:
        causes.append(Cause(text="healthy, nothing limits its launches"))
    details = [*_last_decision(decisions, now), *_in_flight(configs, used)]
    return _explained("pool", pool["id"], causes, _pool_effect(pool, configs, launch_stops), details)


def _used(lease_pools: Sequence[Facts], configs: Sequence[Facts]) -> list[Facts]:
    """The lease pools that admit to the accounts of the launch configs."""
    ids = {config.get("lease_pool_id") for config in configs}
    return [row for row in lease_pools if row["id"] in ids]


def _pool_held(pool: Facts, configs: Sequence[Facts], launch_stops: Sequence[Facts], now: datetime) -> Iterator[Cause]:
    """Acts of a person, or a freeze."""
    id_ = pool["id"]
    if pool.get("frozen"):
        remedy = f"repair the cause, then `slipway pool unfreeze {id_} --reason …`"
        yield Cause(text=frozen(pool, now), remedy=remedy)
    if pool.get("paused"):
        yield Cause(text=paused(pool, now), remedy=f"`slipway pool resume {id_} --reason …`")
    accounts = {config["account_id"] for config in configs}
    for stop in launch_stops:
        scope, scope_id = stop["scope"], stop["scope_id"]
        if scope == "all" or (scope == "pool" and scope_id == id_) or (scope == "account" and scope_id in accounts):
            began = moments.at(stop["at"]) if stop.get("at") else None
            yield Cause(text=launch_stop(stop, now), since=began, remedy=f"`{start_launching(stop)}`")
    if pool.get("mode") in MODES:
        yield Cause(text=MODES[pool["mode"]], remedy="declare `mode: enforce` and run `slipway apply`")


def _pool_tripped(configs: Sequence[Facts], now: datetime) -> Iterator[Cause]:
    active = [config for config in configs if config["state"] == "active"]
    bad = [config for config in active if is_tripped(config)]
    if bad:
        named = some([f"{config['id']} ({brief(tripped(config, now))})" for config in bad], NAMED)
        text = f"{len(bad)} of {count(len(active), 'active launch config')} tripped: {named}"
        text = text if len(active) > 1 else f"its only active launch config is tripped: {named}"
        shows = f"`slipway lc show {bad[0]['id']}` lists the failures"
        yield Cause(text=text, since=_tripped_since(bad), remedy=f"{RECOVERS}; {shows}")
    for config in configs:
        if config["state"] == "paused":
            yield Cause(text=f"{config['id']} is {_config_state(config, now)}", remedy=_resume(config))


def _tripped_since(configs: Sequence[Facts]) -> datetime | None:
    return min((moments.at(at) for config in configs if (at := config.get("tripped_since"))), default=None)


def _config_state(config: Facts, now: datetime) -> str:
    until = config.get("paused_until")
    return stopped(config["state"], config.get("state_by"), until, config.get("state_reason"), now)


def _resume(config: Facts) -> str:
    return f"`slipway lc resume {config['id']} --reason …`"


def _pool_limited(
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
    yield from _queues(configs, used, now)


def _queues(configs: Sequence[Facts], used: Sequence[Facts], now: datetime) -> Iterator[Cause]:
    """Lease pools in which starts of these configs wait."""
    launching = sum((config.get("stages") or {}).get("launch", {}).get("in_flight", 0) for config in configs)
    for row in used if launching else ():
        if row["waiting"]:
            yield Cause(
                text=f"workers wait for lease pool {row['id']}: {queue(row)}",
                since=_queued(row, now),
                remedy=_raise_limit(row),
            )


def _queued(row: Facts, now: datetime) -> datetime | None:
    waited = row.get("oldest_wait_seconds")
    return None if waited is None else now - timedelta(seconds=waited)


def _raise_limit(row: Facts) -> str:
    if row.get("drained_reason") is not None:
        return f"`slipway lease undrain {row['id']} --reason …`"
    id_ = row["id"]
    return (
        f"{NOTHING} while units are released; `slipway lease ls --pool {id_}` lists the holders, and "
        f"`slipway lease set {id_} --limit N --reason …` raises the limit"
    )


def _pool_demand(pool: Facts, decisions: Sequence[Facts]) -> Iterator[Cause]:
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


def _pool_effect(pool: Facts, configs: Sequence[Facts], launch_stops: Sequence[Facts]) -> str:
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
    if _stands_still(pool, launch_stops):
        return f"{words}; nothing is launched"
    active = [config for config in configs if config["state"] == "active"]
    bad = [config for config in active if is_tripped(config)]
    if bad and len(bad) == len(active):
        return f"{words}; only probes are launched"
    if bad:
        healthy = [config["id"] for config in active if not is_tripped(config)]
        return f"{words}; launches go to {some(healthy, NAMED) if len(healthy) > NAMED else either(healthy)}"
    return words


def _stands_still(pool: Facts, launch_stops: Sequence[Facts], account_id: str = "") -> bool:
    """True if nothing at all is launched for the pool, or in the account for it."""
    scopes = {("all", ""), ("pool", pool["id"]), ("account", account_id)}
    stopped_ = any((stop["scope"], stop["scope_id"] or "") in scopes for stop in launch_stops)
    return bool(pool.get("frozen") or pool.get("paused") or pool.get("mode") == "observe" or stopped_)


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
        yield from _shares(details)


def _in_flight(configs: Sequence[Facts], used: Sequence[Facts]) -> Iterator[str]:
    waiting = sum((config.get("stages") or {}).get("launch", {}).get("in_flight", 0) for config in configs)
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        yield f"{count(waiting, 'worker')} {verb} for admission or for the provider's answer."
        yield from (f"  Lease pool {row['id']}: {queue(row)}." for row in used if not row["waiting"])


def _shares(details: Facts, *, chosen: str = "") -> Iterator[str]:
    """The configs of a decision: those that got launches first, then the others with the reason."""
    configs = details.get("configs", {})
    for id_, note in sorted(configs.items(), key=lambda item: (-item[1].get("launched", 0), item[0])):
        mark = "→" if id_ == chosen else " "
        facts = f"weight {note['weight']:.3g}, room for {note['room']}"
        launched = note.get("launched", 0)
        if launched:
            yield f"{mark} {id_} got {launched}{' as a probe' if 'probe' in note else ''}: {facts}."
        elif note.get("would_launch"):
            yield f"{mark} {id_} would have got {note['would_launch']}: {facts}."
        else:
            yield f"{mark} {id_} got nothing: {note.get('reason', 'nothing was left')} ({facts})."


# Launch configs


def of_config(
    config: Facts, pool: Facts, launch_stops: Sequence[Facts], lease_pools: Sequence[Facts], *, now: datetime
) -> Explanation:
    """Explain a launch config of the given pool."""
    id_ = config["id"]
    causes: list[Cause] = []
    if config["state"] != "active":
        remedy = _resume(config) if config["state"] == "paused" else "declare it again and run `slipway apply`"
        causes.append(Cause(text=_config_state(config, now), remedy=remedy))
    if is_tripped(config):
        key = config.get("tripped_by") or ""
        shared = f", by {key.replace('/', ' ', 1)}" if "/" in key else ""
        stage = f" at {config['tripped_stage']}" if config.get("tripped_stage") else ""
        began = _tripped_since([config])
        text = f"{config['health_state']}{stage}{shared}: {tripped(config, now).removeprefix(f'{key}: ')}"
        remedy = f"{NOTHING}: it recovers when the down signal ends" if key == "signal" else RECOVERS
        causes.append(Cause(text=text, since=began, remedy=remedy))
    causes += [
        Cause(
            text=held.text if held.text.startswith("launching ") else f"pool {pool['id']} {held.text}",
            since=held.since,
            remedy=held.remedy,
        )
        for held in _pool_held(pool, [config], launch_stops, now)
    ]
    used = _used(lease_pools, [config])
    if config["state"] == "active" and not is_tripped(config):
        if full := full_window(config):
            causes.append(Cause(text=full, remedy=f"{NOTHING}: the window grows with each success"))
        causes += _queues([config], used, now)
        if weak := (config.get("reason") or "").partition("healthy: ")[2]:
            causes.append(Cause(text=f"healthy, with less weight: {weak}", remedy=RECOVERS))
    if not causes:
        causes.append(Cause(text="healthy, nothing limits its launches"))
    weight = "" if config.get("weight") is None else f"weight {config['weight']:.3g}, "
    launches = "launches by its weight"
    if config["state"] != "active" or _stands_still(pool, launch_stops, config["account_id"]):
        launches = "launches nothing"
    elif is_tripped(config):
        launches = "launches nothing but probes"
    effect = f"{launches} ({weight}{config.get('starting', 0)} starting, {config.get('running', 0)} running)"
    details = list(_failures(config, now))
    details += [f"Lease pool {row['id']} of account {config['account_id']}: {queue(row)}." for row in used]
    return _explained("config", id_, causes, effect, details)


def _failures(config: Facts, now: datetime) -> Iterator[str]:
    recent = config.get("recent_failures") or []
    if recent:
        yield f"{'Newest failure' if len(recent) == 1 else 'Newest failures'}:"
    for failure in recent[:FAILURES]:
        at = moments.clock(moments.at(failure["at"]), now)
        yield f"  {at}  {failure['reason'] or 'no reason given'} (worker {failure['worker_id']})."


# Images


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
            since=_tripped_since(by_it),
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
    return _explained("image", revision, causes, effect, details)


# Lease pools and leases


def of_lease_pool(pool: Facts, configs: Sequence[Facts], *, now: datetime) -> Explanation:
    """Explain a lease pool. `configs` are all launch configs; those of accounts that it admits to are named."""
    id_, limit = pool["id"], pool["limit"]
    blocked = moments.at(pool["blocked_until"]) if pool.get("blocked_until") else None
    causes: list[Cause] = []
    if pool.get("drained_reason") is not None:
        causes.append(
            Cause(text=f"drained: {pool['drained_reason']}", remedy=f"`slipway lease undrain {id_} --reason …`")
        )
    if blocked and blocked > now:
        left = moments.spelled((blocked - now).total_seconds())
        causes.append(
            Cause(text=f"backs off for another {left} after a failed start", remedy=f"{NOTHING}: it ends by itself")
        )
    if pool["held"] >= limit:
        remedy = _raise_limit(pool)
        causes.append(Cause(text=f"limit reached: {queue(pool)}", since=_queued(pool, now), remedy=remedy))
    elif pool["waiting"] and not causes:
        causes.append(
            Cause(
                text=f"paced: {queue(pool)}",
                since=_queued(pool, now),
                remedy=f"{NOTHING}: grants follow the pacing; `slipway lease set {id_} --pacing …` changes it",
            )
        )
    if pool.get("pinned_reason") is not None:
        causes.append(
            Cause(
                text=f"its limit is pinned: {pool['pinned_reason']}", remedy=f"`slipway lease unpin {id_} --reason …`"
            )
        )
    causes_wait = pool.get("drained_reason") is not None or (blocked is not None and blocked > now)
    if not causes:
        causes.append(Cause(text=f"grants at once: {queue(pool)}"))
    waiting = f"{count(pool['waiting'], 'unit')} of {count(pool.get('requests', 0), 'request')} waiting"
    effect = "new requests are granted at once" if pool["held"] < limit and not causes_wait else "new requests wait"
    effect = waiting if pool["waiting"] else effect
    accounts = sorted({config["account_id"] for config in configs if config.get("lease_pool_id") == id_})
    details = (
        [f"It admits launches to {'account' if len(accounts) == 1 else 'accounts'} {either(accounts)}."]
        if accounts
        else []
    )
    if pool.get("mode") in ("shadow", "advisory"):
        details.append(f"Its mode is {pool['mode']}: requests do not wait, the decisions are only recorded.")
    reasons = pool.get("reason") or ""
    details += [f"Last decision: {reasons.rpartition(chr(10))[2]}."] if reasons else []
    return _explained("lease-pool", id_, causes, effect, details)


LEASE_STATES: Final = {
    "reserved": "granted, and not confirmed by its holder yet",
    "confirmed": "in use",
    "released": "released",
    "expired": "expired: it was not confirmed in time",
    "lost": "lost: its holder did not renew it in time",
}


def of_lease(lease: Facts, history: Sequence[Facts], *, now: datetime) -> Explanation:
    """Explain a lease. `history` has the decisions about it, oldest first."""
    live = lease["state"] in ("reserved", "confirmed")
    text = LEASE_STATES.get(lease["state"]) or str(lease["state"])
    text += f" by {lease['owner']}" if lease.get("owner") and lease["state"] == "confirmed" else ""
    text += f" ({lease['reason']})" if lease.get("reason") else ""
    began = lease["granted_at"] if live else lease.get("ended_at")
    units = count(lease["units"], "unit")
    if live:
        left = [f"TTL {moments.spelled(lease.get('ttl_seconds_left') or 0)} left"]
        left += [f"hold {moments.spelled(lease.get('hold_seconds_left') or 0)} left"]
        effect = f"{units} of lease pool {lease['lease_pool_id']} held for tenant {lease['tenant']} ({', '.join(left)})"
        remedy = f"{NOTHING}; `slipway lease release` gives it back early"
    elif lease["state"] == "lost" and not lease.get("ended_at"):
        effect = f"{units} of lease pool {lease['lease_pool_id']} stay counted until its work has surely ended"
        effect = effect.replace(" stay ", " stays ") if lease["units"] == 1 else effect
        remedy = "acquire a new lease"
    else:
        effect = f"its {units} are free again in lease pool {lease['lease_pool_id']}"
        effect = effect.replace(" are ", " is ") if lease["units"] == 1 else effect
        remedy = "acquire a new lease" if lease["state"] != "released" else NOTHING
    details = [f"Fencing token {lease['fencing_token']}, request {lease['request_id']}."]
    details += ["History:"] if history else []
    for entry in history:
        at = moments.clock(moments.at(entry["at"]), now)
        reason = f": {entry['reason']}" if entry.get("reason") else ""
        details.append(f"  {at}  {entry['kind']}{reason}.")
    cause = Cause(text=text, since=moments.at(began) if began else None, remedy=remedy)
    return _explained("lease", lease["id"], [cause], effect, details)


# Workers


def of_worker(worker: Facts, decision: Facts | None, lease_pool: Facts | None, *, now: datetime) -> Explanation:
    """Explain a worker: its state, then its decision, admission, call, boot, tasks and end.

    `decision` is None when it is no longer kept; `lease_pool` is that of the worker's account, None when unknown.
    """
    details = [
        f"Pool {worker['pool_id']}, launch config {worker['launch_config_id']}, account {worker['account_id']}.",
        *_decided(worker, decision, now),
        *_admission(worker, now),
        *_call(worker, now),
        *_boot(worker, now),
        *_tasks(worker, now),
        *_end(worker, now),
    ]
    cause, effect = _worker_cause(worker, lease_pool)
    return _explained("worker", worker["id"], [cause], effect, details)


def _worker_cause(worker: Facts, lease_pool: Facts | None) -> tuple[Cause, str]:
    """The cause of a worker's state, and its effect."""
    state, reason = worker["state"], worker.get("reason") or ""
    batch = worker.get("batch") or {}
    terminate = f"`slipway worker terminate {worker['id']} --reason …` gives up on it"

    def began(field: str) -> datetime | None:
        return moments.at(worker[field]) if worker.get(field) else None

    if state == "requested":
        behind = f" to lease pool {lease_pool['id']}: {queue(lease_pool)}" if lease_pool else " to its account"
        text = f"requested, waits for admission{behind}"
        if worker.get("lease"):
            text = f"requested, admitted by lease pool {worker['lease']['lease_pool_id']}, waits for its launch call"
        remedy = _raise_limit(lease_pool) if lease_pool and not worker.get("lease") else NOTHING
        return Cause(text=text, since=began("requested_at"), remedy=remedy), "no instance yet"
    if state == "launching":
        at = moments.at(batch["started_at"]) if batch.get("started_at") else began("requested_at")
        return Cause(text="launching, waits for the provider's answer", since=at), "no known instance yet"
    if state == "starting":
        text = "starting, its instance has not registered yet"
        return Cause(
            text=text, since=began("launched_at"), remedy=f"{NOTHING}; {terminate}"
        ), "no task can be claimed on it yet"
    if state == "running":
        idle = worker.get("idle_since")
        text = "running, idle" if idle else "running a task"
        remedy = f"{NOTHING}; {terminate}"
        if not idle:
            claims = [event["at"] for event in (worker.get("timeline") or ()) if event["what"] == "claimed"]
            at = moments.at(claims[-1]) if claims else began("registered_at")
            return Cause(text=text, since=at, remedy=remedy), "its task goes on"
        return Cause(text=text, since=began("idle_since"), remedy=remedy), "it can claim a task"
    if state == "stopping":
        text = f"draining: {reason or 'no reason given'}"
        effect = "it claims no new task, and is billed until the provider reports its instance gone"
        return Cause(text=text, since=began("stopping_at"), remedy=f"{NOTHING}: it is terminated"), effect
    text = f"{state}: {reason or 'no reason given'}"
    return Cause(text=text, since=began("ended_at")), "it claims no more tasks"


def _decided(worker: Facts, decision: Facts | None, now: datetime) -> Iterator[str]:
    requested = f"Requested at {moments.clock(moments.at(worker['requested_at']), now)}"
    if decision is None:
        yield f"{requested}; the decision is no longer kept."
    else:
        details = decision["details"]
        yield (
            f"{requested}: {decision['reason']}; {count(details['tasks'], 'task')} wanted "
            f"{count(details['wanted'], 'worker')}, {details['serving']} serving (decision {decision['id']})."
        )
        yield from _shares(details, chosen=worker["launch_config_id"])
    if worker.get("probe_permit") is not None:
        yield f"It is probe {worker['probe_permit']} of a tripped launch config."


def _admission(worker: Facts, now: datetime) -> Iterator[str]:
    lease, batch = worker.get("lease"), worker.get("batch")
    requested_at = moments.at(worker["requested_at"])
    if batch and batch.get("started_at"):
        waited = moments.spelled((moments.at(batch["started_at"]) - requested_at).total_seconds())
        by = f" by lease pool {lease['lease_pool_id']} (fencing token {lease['fencing_token']})" if lease else ""
        yield f"Admitted{by}: {waited} from the request to the call."
    elif worker["state"] == "requested" and worker.get("reason"):
        yield f"Returned to the queue: {worker['reason']}."


def _call(worker: Facts, now: datetime) -> Iterator[str]:
    batch = worker.get("batch")
    if not batch or not batch.get("started_at"):
        return
    began = moments.at(batch["started_at"])
    others = batch.get("units", 1) - 1
    together = f", with {count(others, 'other worker')}" if others else ""
    call = f"Provider called at {moments.clock(began, now)}{together}"
    again = batch.get("repeats")
    repeats = f" after {count(again, 'repetition')} of a call without an answer" if again else ""
    if worker.get("launched_at"):
        took = moments.spelled((moments.at(worker["launched_at"]) - began).total_seconds())
        yield f"{call}: launched {took} later{repeats}, instance {worker['instance_id']}."
    elif worker.get("registered_at"):
        yield f"{call}: registered before the answer, instance {worker['instance_id']}."
    elif worker["state"] == "launching":
        yield f"{call}: no answer for {moments.spelled((now - began).total_seconds())}{repeats}."
    elif worker.get("failed_at"):
        yield f"{call}: refused{repeats}: {worker.get('reason') or batch.get('outcome') or 'no reason given'}."
    else:
        yield f"{call}: outcome {batch.get('outcome') or 'unknown'}{repeats}."


def _boot(worker: Facts, now: datetime) -> Iterator[str]:
    launched = worker.get("launched_at")
    if worker.get("registered_at"):
        took = (moments.at(worker["registered_at"]) - moments.at(launched)).total_seconds() if launched else 0.0
        if took > 0:  # otherwise it registered before the provider's answer, as the sentence about the call states
            yield f"Registered at {_clock(worker, 'registered_at', now)}, after a boot of {moments.spelled(took)}."
    elif worker["state"] == "starting" and launched:
        yield f"Booting for {moments.spelled((now - moments.at(launched)).total_seconds())}."
    elif launched:
        yield "It never registered."


def _tasks(worker: Facts, now: datetime) -> Iterator[str]:
    if not worker.get("registered_at"):
        return
    claims = [event for event in (worker.get("timeline") or ()) if event["what"] == "claimed"]
    finished = sum(event["what"] == "finished" for event in (worker.get("timeline") or ()))
    if not claims:
        yield "It has claimed no task."
    else:
        first = (moments.at(claims[0]["at"]) - moments.at(worker["registered_at"])).total_seconds()
        last = claims[-1]["detail"]
        took = f"Claimed {count(len(claims), 'task')}, the first {moments.spelled(first)} after it registered"
        yield f"{took}; current: {last}." if finished < len(claims) else f"{took}; last: {last}."
    if worker["state"] == "running" and worker.get("idle_since"):
        idle = (now - moments.at(worker["idle_since"])).total_seconds()
        yield f"Idle for {moments.spelled(idle)}."


def _end(worker: Facts, now: datetime) -> Iterator[str]:
    if worker.get("stopping_at"):
        yield f"Drain requested at {_clock(worker, 'stopping_at', now)}."
    if worker.get("ended_at"):
        lived = (moments.at(worker["ended_at"]) - moments.at(worker["requested_at"])).total_seconds()
        yield f"Ended at {_clock(worker, 'ended_at', now)}, {moments.spelled(lived)} after its request."


def _clock(worker: Facts, field: str, now: datetime) -> str:
    return moments.clock(moments.at(worker[field]), now)
