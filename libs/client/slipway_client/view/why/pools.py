"""Explanation of a worker pool."""

import shlex
from collections.abc import Iterator, Sequence
from datetime import datetime
from fractions import Fraction
from typing import Final

from slipway_api.http.provisioner.decisions import DecisionDetails
from slipway_api.http.provisioner.demand import DemandSource
from slipway_api.http.provisioner.pools import Pool
from slipway_client.view import moments, phrases
from slipway_client.view.why import shared
from slipway_client.view.why.accounts import account_problems, credential_remedy, throttled, tripped_by_credential
from slipway_client.view.why.explanation import NAMED, NOTHING, RECOVERS, Cause, Explanation, Facts, explained
from slipway_common.base.revisions import hash_of, name_of
from slipway_common.base.text import listed

CANARY: Final = "canary"
NO_DETAILS: Final = DecisionDetails(reason="")
LIMITS: Final = "`slipway account limits` shows what is left; the declaration raises it"
NO_ROOM: Final = "no-room"
"""Code of a decision in which leaving workers take the places of those that are wanted."""
REFUSED: Final = "the alert termination-refused has the command that frees one"
PRICES: Final = "list the price in prices_file of the provisioner and restart it, or declare limits.default_price"


def of_pool(
    pool: Pool, facts: Facts, *, sources: Sequence[DemandSource], calculator: str, broker: str = ""
) -> Explanation:
    """Explain a pool, by the facts around its launch configs. `sources` are those of its demand; `calculator` and
    `broker` the errors of an unavailable weight-calculator and lease-broker. At its maximum, that is the first cause: a
    healthy pool would be no larger."""
    limits = list(_limits(pool, facts))
    limits[:0] = _unanswered(facts)
    limits += throttled(facts)
    if broker:
        text = f"{broker}: launches wait for its leases"
        limits.insert(0, Cause(text=text, remedy="`slipway doctor` shows what is wrong"))
    trips = [*shared.bad_images(pool, facts), *_trips(facts)]
    trips[:0] = account_problems(facts)
    trips[:0] = shared.missing_lease_pools(facts)
    full = pool.serving >= pool.max_capacity > 0
    stops = list(shared.interventions(pool, facts))
    limiting = [*limits, *trips] if broker or (full and limits) else [*trips, *limits]
    # A canary launches one worker at a time. What stops that one comes first, since a promotion would not help.
    causes = [*limiting, *stops] if pool.mode == CANARY and len(stops) == 1 else [*stops, *limiting]
    if calculator:
        text = f"{calculator}: windows shrink to 4, and weights drift to the declared ones"
        causes.append(Cause(text=text, remedy="`slipway doctor` shows what is wrong"))
    causes += _demand(pool, sources, facts.now)
    if not causes:
        causes.append(Cause(text="healthy, nothing limits its launches"))
    causes += _roll_outs(facts)
    return explained("pool", pool.id, causes, _effect(pool, facts), [*_last_decision(facts), *_in_flight(facts)])


def _trips(facts: Facts) -> Iterator[Cause]:
    active, now = facts.active, facts.now
    bad = [config for config in active if phrases.is_tripped(config)]
    if bad:
        named = listed([f"{config.id} ({phrases.brief(phrases.tripped(config, now))})" for config in bad], NAMED)
        noun = "active revision" if any(map(phrases.is_fallback, active)) else "active launch config"
        text = f"{len(bad)} of {phrases.count(len(active), noun)} tripped: {named}"
        text = text if len(active) > 1 else f"its only active launch config is tripped: {named}"
        shows = f"`slipway lc show {bad[0].id}` lists the failures"
        failing = [config for config in bad if tripped_by_credential(config)]
        remedy = credential_remedy(failing[0]) if failing else RECOVERS
        yield Cause(text=text, since=shared.tripped_since(bad), remedy=f"{remedy}; {shows}")
    paused = {name_of(config.id): config for config in facts.configs if config.state == "paused"}
    for name, config in paused.items():
        yield Cause(text=f"{name} is {shared.config_state(config, now)}", remedy=shared.resume(config))


def _roll_outs(facts: Facts) -> Iterator[Cause]:
    """Roll-outs that are not proven yet, and drains."""
    configs, now = facts.configs, facts.now
    fallbacks = {name_of(config.id): hash_of(config.id) for config in configs if phrases.is_fallback(config)}
    new = [config for config in configs if phrases.unproven(config) and name_of(config.id) in fallbacks]
    if new:
        parts = [f"{row.id} ({phrases.unproven(row)}, fallback {fallbacks[name_of(row.id)]})" for row in new]
        text = f"{phrases.count(len(new), 'new revision')} not proven: {listed(parts, NAMED)}"
        yield Cause(text=text, remedy=shared.unproven_remedy(new, facts.rollback))
    draining = [config for config in configs if config.state == "draining"]
    if draining:
        named = listed([f"{config.id} ({phrases.drain(config, now)})" for config in draining], NAMED)
        overdue = [config for config in draining if phrases.is_overdue(config, now)]
        remedy = shared.drain_remedy(overdue[0]) if overdue else NOTHING
        yield Cause(text=f"{phrases.count(len(draining), 'revision')} draining: {named}", remedy=remedy)


def _limits(pool: Pool, facts: Facts) -> Iterator[Cause]:
    """Maximum, windows and lease pools that stand in the way of more workers."""
    details, used = _newest(facts), facts.lease_pools_used
    for limit in details.limits or ():
        yield Cause(text=limit.text, remedy=PRICES if limit.kind == "price" else LIMITS)
    wanted = -(-Fraction(str(pool.scaling_ratio)) * (pool.pending + pool.claimed) // 1)
    most = pool.max_capacity
    raise_it = f"`slipway pool set {pool.id} --max N` raises it; so does the declaration"
    if wanted > most and pool.serving >= most:
        yield Cause(
            text=f"max_capacity {most} is reached: its tasks need {phrases.count(int(wanted), 'worker')}",
            remedy=raise_it,
        )
    elif details.code == NO_ROOM:
        leaving = (
            f"max_capacity {most} is reached: {phrases.count(pool.leaving, 'leaving worker')} count until terminated"
        )
        stuck = details.stuck or 0
        remedy = f"`slipway worker ls --pool {pool.id} --state stopping` lists them; {REFUSED}" if stuck else NOTHING
        yield Cause(text=f"{leaving}, {stuck} of them stuck" if stuck else leaving, remedy=remedy)
    drained = [row for row in used if row.drained_reason is not None]
    yield from shared.queues(facts, drained)  # the cause of full windows: nothing that fills them can start
    for config in facts.active:
        full = phrases.full_window(config) or phrases.full_shared_window(facts.decisions, config.id)
        if full and not phrases.is_tripped(config):
            yield Cause(text=f"{config.id}: {full}", remedy=f"{NOTHING}: a window grows with each success")
    yield from shared.queues(facts, [row for row in used if row not in drained])


def _newest(facts: Facts) -> DecisionDetails:
    return facts.decisions[0].details if facts.decisions else NO_DETAILS


def _unanswered(facts: Facts) -> Iterator[Cause]:
    """Accounts in which the last decision launched nothing, since they do not answer or refuse terminations."""
    notes = _newest(facts).configs or {}
    for id_ in sorted({config.account_id for config in facts.configs}):
        for text, remedy in (
            (f"account {id_} does not answer", f"`slipway account check {id_}` says why"),
            (f"account {id_} refuses to terminate its instances", REFUSED),
        ):
            if any(note.reason == text for note in notes.values()):
                yield Cause(text=text, remedy=remedy)


def _demand(pool: Pool, sources: Sequence[DemandSource], now: datetime) -> Iterator[Cause]:
    if not sources:
        remedy = f"report it on the demand topic, or with `slipway demand set {pool.id} --pending N --claimed N`"
        yield Cause(text="no source has reported demand", remedy=remedy)
    for source in sources:
        if source.state == "stale":
            name, dropped = source.source, moments.clock(source.protected_until, now)
            tasks = f"{source.pending} pending and {phrases.count(source.claimed, 'claimed task')}"
            text = f"source {name} is stale: its {tasks} launch no workers, and protect idle ones until {dropped}"
            remove = shlex.join(["slipway", "demand", "rm", pool.id, name])
            remedy = f"restart its monitor; if it is gone or was renamed, `{remove}`"
            yield Cause(text=text, since=source.valid_until, remedy=remedy)


def _effect(pool: Pool, facts: Facts) -> str:
    tasks = f"{phrases.count(pool.pending, 'task')} pending"
    lasting = pool.backlog_seconds
    tasks += f" (without a break for {moments.about(lasting)})" if lasting else ""
    workers = (
        f"{pool.serving} serving" if pool.wanted is None else f"{pool.serving} of {pool.wanted} wanted workers serving"
    )
    parts = [f"{pool.running} registered"]
    parts += [f"{pool.leaving} leaving"] if pool.leaving else []
    words = f"{tasks}, {pool.claimed} claimed; {workers} ({', '.join(parts)})"
    active = [config for config in facts.active if not shared.launches_nothing(pool, facts, config.account_id)]
    if shared.launches_nothing(pool, facts) or (facts.active and not active):
        return f"{words}; nothing is launched"
    bad = [config for config in active if phrases.is_tripped(config)]
    if bad and len(bad) == len(active):
        return f"{words}; only probes are launched"
    if bad or len(active) < len(facts.active):
        healthy = [config.id for config in active if not phrases.is_tripped(config)]
        return f"{words}; launches go to {listed(healthy, NAMED) if len(healthy) > NAMED else phrases.either(healthy)}"
    return words


def _last_decision(facts: Facts) -> Iterator[str]:
    if not facts.decisions:
        yield "No decision has been made yet."
    for decision in facts.decisions[:1]:
        times = f" ({decision.times} times)" if decision.times > 1 else ""
        yield f"Last decision at {moments.clock(decision.last_at, facts.now)}{times}: {decision.reason}."
        if decision.details.needed:
            yield from shared.shares(decision.details)


def _in_flight(facts: Facts) -> Iterator[str]:
    waiting = shared.starts_waiting(facts.configs)
    if waiting:
        verb = "waits" if waiting == 1 else "wait"
        yield f"{phrases.count(waiting, 'worker')} {verb} for admission or for the provider's answer."
        used = facts.lease_pools_used
        yield from (f"  Lease pool {row.id}: {phrases.queue(row)}." for row in used if not row.waiting)
