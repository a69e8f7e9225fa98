"""Outcomes applied to rows: evidence, windows and trips after a success, a failure or a recovery. Pure."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from msgspec.structs import replace

from slipway_api.events.scopes import Key, config_key
from slipway_api.events.worker import Scope
from slipway_weight_calculator.domain import evidence, trips, windows
from slipway_weight_calculator.domain.blame import PRICED
from slipway_weight_calculator.domain.draft import UNCHANGED, Draft
from slipway_weight_calculator.domain.evidence import Stage
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.rows import CONFIG, Config, Row, new_shared_row
from slipway_weight_calculator.domain.trips import Failure, Trip

FORGOTTEN: Final = 0.01
"""Mass of failures up to which a success need not be counted in a priced row: it lowers no weight by 2 %."""


def succeed(
    draft: Draft, config: Config, name: str, at: float, boot_seconds: float = 0.0, launched_at: float = 0.0
) -> None:
    """Record a success in the config's own row and in shared ones. Optimized: most effective events end here."""
    own, policy, rows, stored = config.key, draft.world.policies[config.profile], draft.rows, draft.world.rows
    row: Row | None = rows.get(own, UNCHANGED)
    if row is UNCHANGED:
        row = stored.get(own)
    if row is None or name not in config.stages:
        return
    if config.id not in draft.summed:
        draft.summed[config.id] = (config, row)
    if name == "launch":
        rows[own] = replace(row, launch=_after_success(row.launch, name, at, policy), version=row.version + 1)
    elif name == "boot":
        rows[own] = _booted(row, at, boot_seconds, launched_at, policy)
    else:
        rows[own] = replace(row, claim=_after_success(row.claim, name, at, policy), version=row.version + 1)
    for key in config.credited[name]:
        shared: Row | None = rows.get(key, UNCHANGED)
        if shared is UNCHANGED:
            shared = stored.get(key)
        if shared is None:
            # Launches are assumed to succeed until one fails; boots and claims have to be proven. The event may name an
            # image that no config shares any more.
            if name == "launch" or not draft.members(key):
                continue
            shared = rows[key] = new_shared_row(policy, at)
        if name == "boot":
            rows[key] = _booted(shared, at, boot_seconds, launched_at, policy)
            continue
        stage: Stage = getattr(shared, name)
        if not _is_saturated(stage, name, policy) or (key.kind == PRICED and stage.failures > FORGOTTEN):
            changed: dict[str, Any] = {name: _after_success(stage, name, at, policy), "version": shared.version + 1}
            rows[key] = replace(shared, **changed)


def charge(draft: Draft, config: Config, key: Key, name: str, failure: Failure, *, place: bool) -> None:
    """Record a failure of a row's stage; `place`: the failure also counts against the location.

    A late boot does not change the window, where it has counted since it became slow. Nor does one that fails during an
    outage.
    """
    policy, at = draft.policy(config), failure.at
    row = draft.row(key)
    if row is None:
        if not draft.members(key):
            return  # the last config that shared it is gone
        new = new_shared_row(policy, at)
        row = draft.rows[key] = _with_successes(draft, key, new, at, policy) if key.kind == PRICED else new
    stage: Stage = getattr(row, name)
    trip, window, boots = stage.trip, stage.window, stage.boots
    if name == "boot":
        if not (failure.late or boots.aside is not None):
            boots = windows.counted(boots, policy, failed=True)
    elif not trip.tripped:
        window = windows.shrunk(window, name, policy)
    if at >= stage.ok_at:
        # A quota that fails again as soon as it is used has been reached: the successes before prove nothing.
        proven = stage.window >= policy.proven_window and failure.scope is not Scope.QUOTA
        trip = trips.failed(trip, failure, _trip_threshold(name, policy), _seed(key), policy, proven=proven)
    if name == "boot":
        if trip.tripped and not stage.trip.tripped:
            boots = windows.tripped(boots, trips.actual_failures(trip), _hanging(draft, key, row), policy)
        window = windows.size(boots, policy)
    draft.set_stage(key, name, evidence.after(stage, at, window, trip, policy, boots, failed=True, place=place))


def _with_successes(draft: Draft, capacity: Key, row: Row, at: float, policy: Policy) -> Row:
    """New row of a capacity, with the launches that have succeeded so far: it lowers weights, so one failure among many
    successes must not look like the only launch."""
    rows = (draft.row(config_key(config_id)) for config_id in sorted(draft.members(capacity)))
    launches = [known.launch for known in rows if known is not None and known.launch.ok_at]
    successes = sum(evidence.masses(launch, at, policy)[0] for launch in launches)
    ok_at = max((launch.ok_at for launch in launches), default=0.0)
    launch = replace(row.launch, successes=min(successes, policy.mass_cap), at=max(at, ok_at), ok_at=ok_at)
    return replace(row, launch=launch)


def note_shortage(draft: Draft, config: Config, at: float) -> None:
    """Note a launch that failed for lack of capacity in the evidence of its config: it lowers the priors of siblings.

    What follows for the config itself follows from its capacity.
    """
    row = draft.row(config.key)
    if row is not None:
        stage, policy = row.launch, draft.policy(config)
        noted = evidence.after(stage, at, stage.window, stage.trip, policy, stage.boots, failed=True, place=True)
        draft.set_stage(config.key, "launch", noted)


def count_folded(draft: Draft, config_id: str, name: str, by: int = 1) -> None:
    """Count a failure of a config, whatever its scope; `by` -1 undoes that. Unknown configs have no count."""
    config = draft.config(config_id)
    row = draft.row(config.key) if config is not None else None
    if config is not None and row is not None:
        stage: Stage = getattr(row, name)
        draft.set_stage(config.key, name, replace(stage, folded=stage.folded + by))


# Recovery


def recover(draft: Draft, config: Config, key: Key, name: str, at: float) -> None:
    """Recover a row after a successful probe.

    Its failures belong to the outage that has ended. They decay once more by the duration of the trip, so a long
    outage is forgotten and a short one is remembered.
    """
    row = draft.row(key)
    if row is None:
        return
    stage, policy = getattr(row, name), draft.policy(config)
    kept = evidence.remaining(max(0.0, at - stage.trip.tripped_at), policy)
    boots, window = stage.boots, policy.recovered_window
    if name == "boot":
        boots = windows.recovered(boots, kept)
        window = windows.size(boots, policy)
    draft.set_trip(
        key,
        name,
        trips.recovered(stage.trip, at),
        failures=stage.failures * kept,
        place_failures=stage.place_failures * kept,
        boots=boots,
        window=window,
    )
    if key.kind == PRICED:
        _forget_shortage(draft, key, kept)
    if name == "launch":
        _bring_siblings_forward(draft, config, stage.trip.tripped_at, at)


def _forget_shortage(draft: Draft, capacity: Key, kept: float) -> None:
    """Keep this share of what the configs of a capacity have noted of its shortage."""
    for config_id in sorted(draft.members(capacity)):
        config = draft.config(config_id)
        row = draft.row(config.key) if config is not None else None
        if config is not None and row is not None and row.launch.place_failures:
            noted = row.launch.place_failures
            failures = row.launch.failures - noted * (1.0 - kept)
            draft.set_stage(config.key, "launch", replace(row.launch, failures=failures, place_failures=noted * kept))


def _bring_siblings_forward(draft: Draft, config: Config, tripped_at: float, at: float) -> None:
    """Bring the probes of siblings forward that tripped at the same time: their outage may have ended too."""
    for other_id in sorted(draft.members(config.pool) - {config.id}):
        other = draft.config(other_id)
        row = draft.row(other.key) if other is not None else None
        if other is None or row is None:
            continue
        place = draft.row(other.shared["capacity"])
        launches = [each.launch.trip for each in (row, place) if each is not None and each.launch.trip.tripped]
        if any(abs(trip.tripped_at - tripped_at) <= draft.policy(other).sibling_seconds for trip in launches):
            bring_forward(draft, other, ("launch",), at)


def bring_forward(
    draft: Draft,
    config: Config,
    names: Iterable[str],
    at: float,
    by: Callable[[Trip, float, Policy], Trip] = trips.brought_forward,
) -> None:
    """Bring the probes of a config's trips in these stages forward to `at`."""
    for key, name, trip in draft.trips_on(config):
        sooner = by(trip, at, draft.policy(config))
        if name in names and sooner is not trip:
            draft.set_trip(key, name, sooner)


def _booted(row: Row, at: float, seconds: float, launched_at: float, policy: Policy) -> Row:
    """Row after a boot of this duration."""
    stage, boots = row.boot, (*row.boots, seconds)[-policy.boot_samples :]
    trip, known, window, slowest = stage.trip, stage.boots, stage.window, row.slowest_seconds
    if seconds >= slowest:
        slowest = seconds
    elif len(boots) == len(row.boots) and row.boots[0] >= slowest:
        slowest = max(boots)
    newest_at, overdue = max(row.newest_at, launched_at), row.overdue
    if overdue:
        overdue = tuple(at for at in overdue if at > newest_at)
        known = replace(known, overdue=len(overdue))
        window = windows.size(known, policy)
    if not windows.is_full(known, window, policy):
        known = windows.counted(known, policy)
        window = windows.size(known, policy)
    if trip.unconfirmed:
        trip = trips.succeeded(trip, at if at > stage.ok_at else stage.ok_at)
    stage = evidence.after(stage, at, window, trip, policy, known)
    return replace(
        row,
        boot=stage,
        version=row.version + 1,
        boots=boots,
        slowest_seconds=slowest,
        newest_at=newest_at,
        usual_seconds=row.usual_seconds + (seconds - row.usual_seconds) / min(len(boots), windows.USUAL_BOOTS),
        overdue=overdue,
    )


def set_overdue(draft: Draft, image: Key, overdue: tuple[float, ...], policy: Policy) -> None:
    """Replace the overdue starts of an image."""
    row = draft.row(image)
    if row is None:
        return
    boots = replace(row.boot.boots, overdue=len(overdue))
    stage = replace(row.boot, boots=boots, window=windows.size(boots, policy))
    draft.rows[image] = replace(row, boot=stage, overdue=overdue, version=row.version + 1)


def _hanging(draft: Draft, key: Key, row: Row) -> int:
    """Number of slow boots of a row that no later start has overtaken by registering."""
    boots = [draft.boot(worker_id) for worker_id in {*draft.world.boots, *draft.boots}]
    return sum(
        boot is not None
        and boot.slow is not None
        and key in (boot.image, config_key(boot.config_id))
        and boot.at > row.newest_at
        for boot in boots
    )


def _after_success(stage: Stage, name: str, at: float, policy: Policy) -> Stage:
    """Launch or claim stage after one more success."""
    trip, window = stage.trip, stage.window
    if trip.unconfirmed:
        trip = trips.succeeded(trip, at if at > stage.ok_at else stage.ok_at)
    if not trip.tripped_at:
        window = windows.grown(window, name, policy)
    return evidence.after(stage, at, window, trip, policy)


def _is_saturated(stage: Stage, name: str, policy: Policy) -> bool:
    """True if a success would change neither the trip nor the window."""
    trip = stage.trip
    if trip.unconfirmed or trip.tripped_at:
        return False
    return stage.window >= windows.grown(stage.window, name, policy)


def _seed(key: Key) -> str:
    """Seed of the jitter of a row's first probe."""
    return key.id if key.kind == CONFIG else key.text


def _trip_threshold(name: str, policy: Policy) -> int:
    trip: int = getattr(policy, f"trip_{name}")
    return trip
