"""Causes and details shared by several kinds of resources."""

from collections.abc import Iterator, Sequence, Set
from datetime import datetime, timedelta

from slipway_client.view import moments
from slipway_client.view.phrases import (
    HEALTHY,
    MODES,
    count,
    drain,
    frozen,
    is_fallback,
    is_overdue,
    is_tripped,
    launch_stop,
    paused,
    queue,
    start_launching,
    stopped,
    stops_everything,
)
from slipway_client.view.why.explanation import NOTHING, Cause, Facts
from slipway_common.base.revisions import name_of


def interventions(
    pool: Facts, configs: Sequence[Facts], launch_stops: Sequence[Facts], now: datetime
) -> Iterator[Cause]:
    """Causes that stop all launches of a pool: a freeze, a pause, a launch stop, or the pool's mode."""
    id_ = pool["id"]
    if pool.get("frozen"):
        remedy = f"repair the cause, then `slipway pool unfreeze {id_} --reason …`"
        yield Cause(text=frozen(pool, now), remedy=remedy)
    if pool.get("paused"):
        yield Cause(text=paused(pool, now), remedy=f"`slipway pool resume {id_} --reason …`")
    accounts = {config["account_id"] for config in configs}
    for stop in launch_stops:
        scope, scope_id = stop["scope"], stop["scope_id"]
        if (
            stops_everything(scope)
            or (scope == "pool" and scope_id == id_)
            or (scope == "account" and scope_id in accounts)
        ):
            began = moments.at(stop["at"]) if stop.get("at") else None
            yield Cause(text=launch_stop(stop, now), since=began, remedy=f"`{start_launching(stop)}`")
    if pool.get("mode") in MODES:
        yield Cause(text=MODES[pool["mode"]], remedy=f"`slipway pool promote {id_}`; so does a mode in the declaration")


def config_state(config: Facts, now: datetime) -> str:
    """State of a launch config that is not active, by whom and until when."""
    until = config.get("paused_until")
    return stopped(config["state"], config.get("state_by"), until, config.get("state_reason"), now)


def resume(config: Facts) -> str:
    """Command that resumes a paused launch config: all revisions of its name."""
    return f"`slipway lc resume {name_of(config['id'])} --reason …`"


def in_way(config: Facts, now: datetime) -> Cause:
    """Cause of a launch config's revision that is not active."""
    if config["state"] == "draining":
        reason = f" ({config['state_reason']})" if config.get("state_reason") else ""
        remedy = drain_remedy(config) if is_overdue(config, now) else f"{NOTHING}: its workers leave after their tasks"
        return Cause(text=f"draining{reason}: {drain(config, now)}", since=began_to_drain(config), remedy=remedy)
    if config["state"] == "paused":
        return Cause(text=config_state(config, now), remedy=resume(config))
    return Cause(text=config_state(config, now), remedy="declare it again and run `slipway apply`")


def began_to_drain(config: Facts) -> datetime | None:
    """Time since which a revision drains, if it is known."""
    return moments.at(config["drain_from"]) if config.get("drain_from") else None


def drain_remedy(config: Facts) -> str:
    """Remedy for a drain whose deadline has passed."""
    if config.get("drain_terminate"):
        return f"{NOTHING}: its workers are terminated"
    return f"`slipway worker ls --pool {config['pool_id']}` lists its workers; `slipway worker terminate` ends one"


def bad_image(config: Facts) -> bool:
    """True if the image of an active launch config has tripped."""
    key = ("image", config.get("image_revision"))
    if (config.get("tripped_by"), config.get("tripped_by_id")) == key and is_tripped(config):
        return True
    windows = config.get("shared") or ()
    return config["state"] == "active" and any(
        (row["kind"], row["id"]) == key and row["state"] != HEALTHY for row in windows
    )


def bad_images(pool: Facts, configs: Sequence[Facts], rollback: Facts | None) -> Iterator[Cause]:
    """Images of current revisions that have tripped, the one of the most launch configs first."""
    current = [config for config in configs if config["state"] == "active" and not is_fallback(config)]
    by_image: dict[str, list[Facts]] = {}
    for config in current:
        if bad_image(config):
            by_image.setdefault(config["image_revision"], []).append(config)
    for image, users in sorted(by_image.items(), key=lambda item: (-len(item[1]), item[0])):
        yield Cause(
            text=f"image {image} fails in {len(users)} of {count(len(current), 'launch config')}",
            since=tripped_since(users),
            remedy=way_back(pool["id"], {name_of(user["id"]) for user in users}, rollback),
        )


def way_back(pool_id: str, names: Set[str], rollback: Facts | None) -> str:
    """Remedy for bad images of launch configs. `rollback` is the preview of a rollback of their pool, None if it is not
    known."""
    other = f"`slipway pool set-image {pool_id} IMAGE` takes another image"
    history = f"`slipway pool history {pool_id}`"
    if rollback is None:
        return other
    if rollback["refused"]:
        return f"{other}; a rollback would be refused: {rollback['refused'].partition('; `slipway pool set-image')[0]}"
    left = {change["id"] for change in rollback["items"] if change["kind"] == "launch config"}
    if not names <= left:
        return f"{other}; so does `slipway pool rollback {pool_id} --to NUMBER --reason …`, by {history}"
    return f"`slipway pool rollback {pool_id} --reason …` returns to entry {rollback['to_revision']} of {history}"


def unproven_remedy(configs: Sequence[Facts], rollback: Facts | None) -> str:
    """Remedy for new revisions of one pool that are not proven. It is not repeated where a bad image has named it."""
    pool_id = configs[0]["pool_id"]
    tripped = [config for config in configs if is_tripped(config)]
    if not tripped:
        return f"{NOTHING}; `slipway pool rollback {pool_id} --reason …` returns to what was declared before"
    if any(map(bad_image, tripped)):
        return NOTHING
    return way_back(pool_id, {name_of(config["id"]) for config in tripped}, rollback)


def tripped_since(configs: Sequence[Facts]) -> datetime | None:
    """Time of the first trip."""
    return min((moments.at(at) for config in configs if (at := config.get("tripped_since"))), default=None)


def lease_pools_used(lease_pools: Sequence[Facts], configs: Sequence[Facts]) -> list[Facts]:
    """The lease pools that admit to the accounts of the launch configs."""
    ids = {config.get("lease_pool_id") for config in configs}
    return [row for row in lease_pools if row["id"] in ids]


def missing_lease_pools(lease_pools: Sequence[Facts], configs: Sequence[Facts]) -> Iterator[Cause]:
    """Undeclared lease pools that accounts of active launch configs name. None without any lease pool, since the
    lease-broker may be unavailable."""
    if not lease_pools:
        return
    declared = {row["id"] for row in lease_pools if not row.get("archived")}
    active = [config for config in configs if config["state"] == "active" and config.get("lease_pool_id")]
    for account_id, id_ in sorted({(config["account_id"], config["lease_pool_id"]) for config in active}):
        if id_ not in declared:
            yield Cause(
                text=f"lease pool {id_} of account {account_id} is not declared: launches wait for its leases for ever",
                remedy=f"declare lease pool {id_}, or correct lease_pool of account {account_id}, and apply it",
            )


def queues(configs: Sequence[Facts], used: Sequence[Facts], now: datetime) -> Iterator[Cause]:
    """Lease pools in which starts of these configs wait."""
    launching = sum((config.get("stages") or {}).get("launch", {}).get("in_flight", 0) for config in configs)
    for row in used if launching else ():
        if row["waiting"]:
            drained = row.get("drained_reason")
            state = f"{row['id']}, which is drained ({drained})" if drained is not None else row["id"]
            yield Cause(
                text=f"workers wait for lease pool {state}: {queue(row)}",
                since=queued_since(row, now),
                remedy=raise_limit(row),
            )


def queued_since(row: Facts, now: datetime) -> datetime | None:
    """Time of the oldest request of a lease pool."""
    waited = row.get("oldest_wait_seconds")
    return None if waited is None else now - timedelta(seconds=waited)


def raise_limit(row: Facts) -> str:
    """Remedy for a lease pool that is full or drained."""
    if row.get("drained_reason") is not None:
        return f"`slipway lease undrain {row['id']} --reason …`"
    id_ = row["id"]
    return (
        f"{NOTHING} while units are released; `slipway lease ls --pool {id_}` lists the holders, and "
        f"`slipway lease set {id_} --limit N --reason …` raises the limit"
    )


def launches_nothing(pool: Facts, launch_stops: Sequence[Facts], account_id: str = "") -> bool:
    """True if nothing is launched for the pool, or for the pool in the account."""
    scopes = {("pool", pool["id"]), ("account", account_id)}
    stopped_ = any(
        stops_everything(stop["scope"]) or (stop["scope"], stop["scope_id"] or "") in scopes for stop in launch_stops
    )
    return bool(pool.get("frozen") or pool.get("paused") or pool.get("mode") == "observe" or stopped_)


def shares(details: Facts, *, chosen: str = "") -> Iterator[str]:
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
