"""Causes and details shared by several kinds of resources."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta

from msgspec import UNSET

from slipway_api.http.lease_pools import LeasePool
from slipway_api.http.provisioner.decisions import DecisionDetails
from slipway_api.http.provisioner.declaration import RollbackPreview
from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_api.http.provisioner.pools import Pool
from slipway_client.view import phrases
from slipway_client.view.why.explanation import NOTHING, Cause, Facts
from slipway_common.base.revisions import name_of


def interventions(pool: Pool, facts: Facts) -> Iterator[Cause]:
    """Causes that stop all launches of a pool: a freeze, a pause, a launch stop, or the pool's mode."""
    id_ = pool.id
    if pool.frozen:
        remedy = f"repair the cause, then `slipway pool unfreeze {id_} --reason …`"
        yield Cause(text=phrases.frozen(pool, facts.now), remedy=remedy)
    if pool.paused:
        yield Cause(text=phrases.paused(pool, facts.now), remedy=f"`slipway pool resume {id_} --reason …`")
    scopes = {("pool", id_), *(("account", config.account_id) for config in facts.configs)}
    for stop in facts.launch_stops:
        if phrases.stops_everything(stop.scope) or (stop.scope, stop.scope_id) in scopes:
            remedy = f"`{phrases.start_launching(stop)}`"
            yield Cause(text=phrases.launch_stop(stop, facts.now), since=stop.at, remedy=remedy)
    if pool.mode in phrases.MODES:
        yield Cause(
            text=phrases.MODES[pool.mode], remedy=f"`slipway pool promote {id_}`; so does a mode in the declaration"
        )


def config_state(config: LaunchConfig, now: datetime) -> str:
    """State of a launch config that is not active, by whom and until when."""
    until = config.paused_until
    return phrases.stopped(config.state, config.state_by, until, config.state_reason, now)


def resume(config: LaunchConfig) -> str:
    """Command that resumes a paused launch config: all revisions of its name."""
    return f"`slipway lc resume {name_of(config.id)} --reason …`"


def in_way(config: LaunchConfig, now: datetime) -> Cause:
    """Cause of a launch config's revision that is not active."""
    if config.state == "draining":
        reason = f" ({config.state_reason})" if config.state_reason else ""
        remedy = (
            drain_remedy(config)
            if phrases.is_overdue(config, now)
            else f"{NOTHING}: its workers leave after their tasks"
        )
        return Cause(text=f"draining{reason}: {phrases.drain(config, now)}", since=config.drain_from, remedy=remedy)
    if config.state == "paused":
        return Cause(text=config_state(config, now), remedy=resume(config))
    return Cause(text=config_state(config, now), remedy="declare it again and run `slipway apply`")


def drain_remedy(config: LaunchConfig) -> str:
    """Remedy for a drain whose deadline has passed."""
    if config.drain_terminate:
        return f"{NOTHING}: its workers are terminated"
    return f"`slipway worker ls --pool {config.pool_id}` lists its workers; `slipway worker terminate` ends one"


def bad_image(config: LaunchConfig) -> bool:
    """True if the image of an active launch config has tripped."""
    key = ("image", config.image_revision)
    if (config.tripped_by, config.tripped_by_id) == key and phrases.is_tripped(config):
        return True
    return config.state == "active" and any(
        (row.kind, row.id) == key and row.state != phrases.HEALTHY for row in config.shared
    )


def bad_images(pool: Pool, facts: Facts) -> Iterator[Cause]:
    """Images of current revisions that have tripped, the one of the most launch configs first."""
    current = [config for config in facts.active if not phrases.is_fallback(config)]
    by_image: dict[str, list[LaunchConfig]] = {}
    for config in current:
        if bad_image(config):
            by_image.setdefault(config.image_revision, []).append(config)
    for image, users in sorted(by_image.items(), key=lambda item: (-len(item[1]), item[0])):
        yield Cause(
            text=f"image {image} fails in {len(users)} of {phrases.count(len(current), 'launch config')}",
            since=tripped_since(users),
            remedy=way_back(pool.id, users, facts.rollback),
        )


def way_back(pool_id: str, configs: Iterable[LaunchConfig], rollback: RollbackPreview | None) -> str:
    """Remedy for bad images of launch configs. `rollback` is the preview of a rollback of their pool, None if it is not
    known."""
    other = f"`slipway pool set-image {pool_id} IMAGE` takes another image"
    history = f"`slipway pool history {pool_id}`"
    if rollback is None:
        return other
    if rollback.refused:
        return f"{other}; a rollback would be refused: {rollback.refused.partition('; `slipway pool set-image')[0]}"
    left = {change.id for change in rollback.items if change.kind == "launch config"}
    if not {name_of(config.id) for config in configs} <= left:
        return f"{other}; so does `slipway pool rollback {pool_id} --to NUMBER --reason …`, by {history}"
    return f"`slipway pool rollback {pool_id} --reason …` returns to entry {rollback.to_revision} of {history}"


def unproven_remedy(configs: Sequence[LaunchConfig], rollback: RollbackPreview | None) -> str:
    """Remedy for new revisions of one pool that are not proven. It is not repeated where a bad image has named it."""
    pool_id = configs[0].pool_id
    tripped = [config for config in configs if phrases.is_tripped(config)]
    if not tripped:
        return f"{NOTHING}; `slipway pool rollback {pool_id} --reason …` returns to what was declared before"
    if any(map(bad_image, tripped)):
        return NOTHING
    return way_back(pool_id, tripped, rollback)


def tripped_since(configs: Sequence[LaunchConfig]) -> datetime | None:
    """Time of the first trip."""
    return min((at for config in configs if (at := config.tripped_since)), default=None)


def missing_lease_pools(facts: Facts) -> Iterator[Cause]:
    """Undeclared lease pools that accounts of active launch configs name. None without any lease pool, since the
    lease-broker may be unavailable."""
    declared = {"", *(row.id for row in facts.lease_pools if not row.archived)}
    named = {(config.account_id, config.lease_pool_id) for config in facts.active} if facts.lease_pools else set()
    for account_id, id_ in sorted(named):
        if id_ not in declared:
            yield Cause(
                text=f"lease pool {id_} of account {account_id} is not declared: launches wait for its leases for ever",
                remedy=f"declare lease pool {id_}, or correct lease_pool of account {account_id}, and apply it",
            )


def starts_waiting(configs: Sequence[LaunchConfig]) -> int:
    """Workers that wait for admission or for the provider's answer."""
    return sum(stage.in_flight for config in configs if (stage := config.stages.get("launch")))


def queues(facts: Facts, used: Sequence[LeasePool]) -> Iterator[Cause]:
    """Lease pools, of those used, in which starts of the launch configs wait."""
    for row in used if starts_waiting(facts.configs) else ():
        if row.waiting:
            drained = row.drained_reason
            state = f"{row.id}, which is drained ({drained})" if drained is not None else row.id
            yield Cause(
                text=f"workers wait for lease pool {state}: {phrases.queue(row)}",
                since=queued_since(row, facts.now),
                remedy=raise_limit(row),
            )


def queued_since(row: LeasePool, now: datetime) -> datetime | None:
    """Time of the oldest request of a lease pool."""
    waited = row.oldest_wait_seconds
    return None if waited is None else now - timedelta(seconds=waited)


def raise_limit(row: LeasePool) -> str:
    """Remedy for a lease pool that is full or drained."""
    if row.drained_reason is not None:
        return f"`slipway lease undrain {row.id} --reason …`"
    id_ = row.id
    return (
        f"{NOTHING} while units are released; `slipway lease ls --pool {id_}` lists the holders, and "
        f"`slipway lease set {id_} --limit N --reason …` raises the limit"
    )


def launches_nothing(pool: Pool, facts: Facts, account_id: str = "") -> bool:
    """True if nothing is launched for the pool, or for the pool in the account."""
    scopes = {("pool", pool.id), ("account", account_id)}
    stopped = any(
        phrases.stops_everything(stop.scope) or (stop.scope, stop.scope_id) in scopes for stop in facts.launch_stops
    )
    return bool(pool.frozen or pool.paused or pool.mode == "observe" or stopped)


def shares(details: DecisionDetails, *, chosen: str = "") -> Iterator[str]:
    """The configs of a decision: those that got launches first, then the others with the reason."""
    for id_, note in sorted((details.configs or {}).items(), key=lambda item: (-item[1].launched, item[0])):
        mark = "→" if id_ == chosen else " "
        facts = f"weight {note.weight:.3g}, room for {note.room}"
        launched = note.launched
        if launched:
            yield f"{mark} {id_} got {launched}{' as a probe' if note.probe is not UNSET else ''}: {facts}."
        elif note.would_launch:
            yield f"{mark} {id_} would have got {note.would_launch}: {facts}."
        else:
            yield f"{mark} {id_} got nothing: {note.reason or 'nothing was left'} ({facts})."
