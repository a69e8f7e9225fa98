"""Explanations of a launch config and of an image."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final

from msgspec.structs import replace

from slipway_api.http.provisioner.launch_configs import LaunchConfig, LaunchConfigDetails
from slipway_api.http.provisioner.pools import Pool
from slipway_api.http.provisioner.workers import ConsoleOutput
from slipway_client.view import moments, phrases
from slipway_client.view.why import shared
from slipway_client.view.why.accounts import account_problems, credential_remedy, tripped_by_credential
from slipway_client.view.why.explanation import NAMED, NOTHING, RECOVERS, Cause, Explanation, Facts, explained, printed
from slipway_common.base.text import listed

FAILURES: Final = 3  # of a launch config


def of_config(
    config: LaunchConfigDetails, pool: Pool | None, facts: Facts, *, siblings: Sequence[LaunchConfig] = ()
) -> Explanation:
    """Explain a revision of a launch config of the given pool, by the facts around it. `siblings` are the other
    revisions of its name."""
    causes: list[Cause] = []
    now, used = facts.now, facts.lease_pools_used
    active = config.state == "active"
    if not active:
        causes.append(shared.in_way(config, now))
    causes += (waits := list(shared.missing_lease_pools(facts)))
    causes += (problems := list(account_problems(facts)))
    if phrases.is_tripped(config):
        causes.append(_trip(config, facts))
    for cause in shared.interventions(pool, facts) if pool else ():
        about = "" if cause.text.startswith("launching ") else f"pool {config.pool_id} "
        causes.append(replace(cause, text=f"{about}{cause.text}"))
    causes += _roll_out(config, siblings, facts)
    if active and not phrases.is_tripped(config):
        if full := phrases.full_window(config) or phrases.full_shared_window(facts.decisions, config.id):
            causes.append(Cause(text=full, remedy=f"{NOTHING}: the window grows with each success"))
        causes += shared.queues(facts, used)
        if weak := (config.reason or "").partition("healthy: ")[2]:
            causes.append(Cause(text=f"healthy, with less weight: {weak}", remedy=RECOVERS))
    if not causes:
        causes.append(Cause(text="healthy, nothing limits its launches"))
    details = [f"{row.id} is {_beside(row, now)}." for row in siblings]
    details += _failures(config, now)
    details += _errors(config)
    details += [f"Lease pool {row.id} of account {config.account_id}: {phrases.queue(row)}." for row in used]
    stops = bool(waits) or pool is None or shared.launches_nothing(pool, facts, config.account_id)
    return explained("config", config.id, causes, _effect(config, stops=stops, fails=bool(problems)), details)


def _trip(config: LaunchConfig, facts: Facts) -> Cause:
    kind, id_ = config.tripped_by or "", config.tripped_by_id or ""
    by = f", by {kind} {id_}" if id_ else ""
    stage = f" at {config.tripped_stage}" if config.tripped_stage else ""
    text = f"{config.health_state}{stage}{by}: {phrases.tripped(config, facts.now).removeprefix(f'{kind} {id_}: ')}"
    remedy = f"{NOTHING}: it recovers when the down signal ends" if kind == "signal" else RECOVERS
    if tripped_by_credential(config):
        remedy = credential_remedy(config)
    if shared.bad_image(config):
        remedy = shared.way_back(config.pool_id, [config], facts.rollback)
    return Cause(text=text, since=shared.tripped_since([config]), remedy=remedy)


def _roll_out(config: LaunchConfig, siblings: Sequence[LaunchConfig], facts: Facts) -> Iterator[Cause]:
    """Part of an active revision in a roll-out."""
    if config.state != "active":
        return
    current = [row.id for row in siblings if row.current]
    fallbacks = [row.id for row in siblings if phrases.is_fallback(row)]
    if phrases.is_fallback(config) and current:
        until = f"; it drains when {current[0]} is proven"
        yield Cause(text=f"replaced by {current[0]}; {phrases.progress(config, facts.now)}", remedy=f"{NOTHING}{until}")
    elif fallbacks and (part := phrases.unproven(config)):
        remedy = shared.unproven_remedy([config], facts.rollback)
        yield Cause(text=f"new, {part}; its fallback is {fallbacks[0]}", remedy=remedy)


def _beside(config: LaunchConfig, now: datetime) -> str:
    """State of another revision of the same name."""
    state = "fallback" if phrases.is_fallback(config) else f"the current revision, {config.state}"
    state = state if config.state == "active" else config.state
    part = phrases.progress(config, now).removeprefix("fallback: ")
    return f"{state}: {part}" if part else state


def _effect(config: LaunchConfig, *, stops: bool, fails: bool) -> str:
    weight = "" if config.weight is None else f"weight {config.weight:.3g}, "
    launches = "launches by its weight"
    if config.state != "active" or stops:
        launches = "launches nothing"
    elif phrases.is_tripped(config):
        launches = "launches nothing but probes"
    elif phrases.is_fallback(config) and config.replaced_by != "rolling":
        launches = "launches what the new revision does not"
    elif fails:
        launches = "launches by its weight fail, or will soon"
    return f"{launches} ({weight}{config.starting} starting, {config.running} running)"


def _failures(config: LaunchConfigDetails, now: datetime) -> Iterator[str]:
    recent = config.recent_failures
    if recent:
        yield f"{'Newest failure' if len(recent) == 1 else 'Newest failures'}:"
    for failure in recent[:FAILURES]:
        at = moments.clock(failure.at, now)
        yield f"  {at}  {failure.reason or 'no reason given'} (worker {failure.worker_id})."


def _errors(config: LaunchConfigDetails) -> Iterator[str]:
    """Errors of its workers in a day, the most frequent codes first."""
    if config.recent_errors:
        yield "Errors of its workers in the last day:"
    for error in config.recent_errors:
        sample = f": {error.sample}" if error.sample else ""
        yield f"  {phrases.count(error.number, 'error')} {error.code}{sample}."


def of_image(revision: str, facts: Facts, *, consoles: Sequence[ConsoleOutput] = ()) -> Explanation:
    """Explain an image revision, or the image that a provider gives an id. The facts are about the launch configs that
    use it, and have a rollback of the pool to repair first; `consoles` are what a machine of it has printed that never
    registered."""
    configs, active = facts.configs, facts.active
    windows = {(row.id, row.stage): row for config in configs for row in config.shared if row.kind == "image"}
    keys = {("image", id_) for id_, _ in windows} | {("image", revision)}
    several = len({id_ for id_, _ in windows}) > 1  # providers with an image of this name
    bad = [row for row in windows.values() if row.state != "healthy"]
    by_it = [config for config in configs if (config.tripped_by, config.tripped_by_id) in keys]
    pools = sorted({config.pool_id for config in configs})
    causes = [
        Cause(
            text=f"{row.id + ' ' if several else ''}tripped at {row.stage}: {phrases.trip_cause(row.reason)}",
            since=shared.tripped_since(by_it),
            remedy=_repair(facts),
        )
        for row in bad
    ]
    full = [phrases.full_shared_window([newest], config.id) for config in active for newest in facts.decisions]
    causes += [
        Cause(text=f"the {text}", remedy=f"{NOTHING}: the window grows with each success")
        for text in sorted({text for text in full if " of image " in text})
    ]
    if not causes:
        causes.append(Cause(text="healthy, no stage of it is tripped"))
    ids = [config.id for config in configs]
    launches = "launches of it are probes only" if bad else "launches of it follow the weights"
    launches = launches if active else "nothing is launched from it"
    noun = "pool" if len(pools) == 1 else "pools"
    users = f"{phrases.count(len(ids), 'launch config')} of {noun} {phrases.either(pools)}"
    effect = f"{launches}; {users} use it: {listed(ids, NAMED)}"
    if len(ids) == 1:
        effect = effect.replace(" use it: ", " uses it: ")
    details = [
        f"Window of {row.stage}: {row.window}, {phrases.count(row.unconfirmed, 'unconfirmed start')}."
        for row in windows.values()
        if row.window is not None
    ]
    details += [f"{config.id} is {_beside(config, facts.now)}." for config in configs if config.state != "active"]
    return explained("image", revision, causes, effect, [*details, *printed(consoles)])


def repaired_pool(configs: Sequence[LaunchConfig]) -> str:
    """Pool in which a bad image is replaced first: one that launches it, if any does."""
    return min((config.state != "active" or phrases.is_fallback(config), str(config.pool_id)) for config in configs)[1]


def _repair(facts: Facts) -> str:
    """Remedy for a bad image in the first pool that launches it."""
    pool_id = repaired_pool(facts.configs)
    users = [config for config in facts.configs if config.pool_id == pool_id and not phrases.is_fallback(config)]
    return f"{shared.way_back(pool_id, users, facts.rollback)}; Slipway goes on to probe this one"
