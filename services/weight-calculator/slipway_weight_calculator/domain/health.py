"""Outcomes applied to rows: evidence, windows and trips after a success, a failure, a late boot or a recovery. Pure."""

from collections.abc import Callable, Collection, Iterable
from math import ceil
from typing import Any, Final

from msgspec.structs import replace

from slipway_common.events.scopes import Key
from slipway_common.events.worker import Scope
from slipway_weight_calculator.domain import evidence, trips, windows
from slipway_weight_calculator.domain.draft import UNCHANGED, Draft
from slipway_weight_calculator.domain.evidence import Stage
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.rows import CONFIG, Boot, Config, Row, new_shared_row
from slipway_weight_calculator.domain.trips import Failure, Trip

LATE_CODE: Final = "late"


def succeed(draft: Draft, config: Config, name: str, at: float, boot_seconds: float = 0.0) -> None:
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
        boots = (*row.boots[1 - policy.boot_samples :], boot_seconds)
        rows[own] = replace(
            row,
            boot=_after_success(row.boot, name, at, policy),
            version=row.version + 1,
            boots=boots,
            slow_seconds=_boot_quantile(row, boots, policy),
        )
    else:
        rows[own] = replace(row, claim=_after_success(row.claim, name, at, policy), version=row.version + 1)
    for key in config.credited[name]:
        shared: Row | None = rows.get(key, UNCHANGED)
        if shared is UNCHANGED:
            shared = stored.get(key)
        if shared is None:
            # Launches are assumed to succeed until one fails; boots and claims have to be proven.
            if name == "launch":
                continue
            shared = new_shared_row(policy, at)
        stage: Stage = getattr(shared, name)
        if not _is_saturated(stage, name, policy):
            changed: dict[str, Any] = {name: _after_success(stage, name, at, policy), "version": shared.version + 1}
            rows[key] = replace(shared, **changed)


def charge(draft: Draft, config: Config, key: Key, name: str, failure: Failure, *, place: bool) -> None:
    """Record a failure of a row's stage; `place`: the failure also counts against the location."""
    policy, at = draft.policy(config), failure.at
    row = draft.row(key)
    if row is None:
        if not draft.members(key):
            return  # the last config that shared it is gone
        row = draft.rows[key] = new_shared_row(policy, at)
    stage: Stage = getattr(row, name)
    trip, window = stage.trip, stage.window
    if trip.tripped_at == 0:
        window = windows.shrunk(window, name, policy)
    if at >= stage.ok_at:
        # A quota that fails again as soon as it is used has been reached: the successes before prove nothing.
        proven = stage.window >= policy.proven_window and failure.scope is not Scope.QUOTA
        trip = trips.failed(trip, failure, _trip_threshold(name, policy), _seed(key), policy, proven=proven)
    draft.set_stage(key, name, evidence.after(stage, at, window, trip, policy, failed=True, place=place))


def count_folded(draft: Draft, config_id: str, name: str, by: int = 1) -> None:
    """Count a failure of a config, whatever its scope; `by` -1 undoes that. Unknown configs have no count."""
    config = draft.config(config_id)
    row = draft.row(config.key) if config is not None else None
    if config is not None and row is not None:
        stage: Stage = getattr(row, name)
        draft.set_stage(config.key, name, replace(stage, folded=stage.folded + by))


# Late boots


def late_seconds(draft: Draft, config: Config) -> float:
    """Seconds after which a boot counts as late, from the boots observed of this config."""
    policy, row = draft.world.policies[config.profile], draft.row(config.key)
    if row is None or not row.slow_seconds:
        return policy.late_seconds
    return max(policy.late_min_seconds, policy.late_factor * row.slow_seconds)


def begin_late(draft: Draft, config: Config, worker_id: str, boot: Boot, now: float) -> None:
    """Count a boot that takes too long as failed until it ends."""
    draft.boots[worker_id] = replace(boot, late=True, late_at=now)
    failure = Failure(
        now, Scope.IMAGE, LATE_CODE, True, worker_id, late=True, instance_id=boot.instance_id, console=boot.console
    )
    for key in (boot.image, config.key):
        charge(draft, config, key, "boot", failure, place=True)
        row = draft.row(key)
        if row is not None:
            draft.set_stage(key, "boot", replace(row.boot, late=row.boot.late + 1))


def end_boot(
    draft: Draft,
    config: Config,
    worker_id: str,
    boot: Boot,
    at: float,
    *,
    registered: bool = False,
    failure: Failure | None = None,
    charged: Collection[Key] = (),
) -> None:
    """End a boot. A late one stays a failure of the `charged` keys and is withdrawn elsewhere.

    A row that tripped by late boots alone recovers only when one of them has `registered`.
    """
    draft.boots[worker_id] = None
    if not boot.late:
        return
    policy = draft.policy(config)
    for key in (boot.image, config.key):
        row = draft.row(key)
        if row is None:
            continue
        stage, late = row.boot, max(0, row.boot.late - 1)
        if failure is not None and key in charged:
            draft.set_trip(key, "boot", trips.confirmed(stage.trip, failure), late=late)
            continue
        mass = evidence.remaining(max(0.0, stage.at - boot.late_at), policy)
        trip, window = trips.withdrawn(stage.trip, worker_id), stage.window
        if registered and trips.unfounded(trip, late, policy.trip_boot):
            trip, window = trips.recovered(trip, at), policy.recovered_window
        draft.set_trip(
            key,
            "boot",
            trip,
            failures=max(0.0, stage.failures - mass),
            place_failures=max(0.0, stage.place_failures - mass),
            failed=max(0, stage.failed - 1),
            late=late,
            window=window,
        )


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
    draft.set_trip(
        key,
        name,
        trips.recovered(stage.trip, at),
        failures=stage.failures * kept,
        place_failures=stage.place_failures * kept,
        window=policy.recovered_window,
    )
    if name == "launch":
        _bring_siblings_forward(draft, config, stage.trip.tripped_at, at)


def _bring_siblings_forward(draft: Draft, config: Config, tripped_at: float, at: float) -> None:
    """Bring the probes of siblings forward that tripped at the same time: their outage may have ended too."""
    for other_id in sorted(draft.members(config.pool) - {config.id}):
        other = draft.config(other_id)
        row = draft.row(other.key) if other is not None else None
        if other is None or row is None or not row.launch.trip.tripped:
            continue
        if abs(row.launch.trip.tripped_at - tripped_at) <= draft.policy(other).sibling_seconds:
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


def _after_success(stage: Stage, name: str, at: float, policy: Policy) -> Stage:
    """Stage after one more success."""
    trip, window = stage.trip, stage.window
    if trip.unconfirmed:
        trip = trips.succeeded(trip, at if at > stage.ok_at else stage.ok_at)
    if not trip.tripped_at:
        window = windows.grown(window, name, policy)
    return evidence.after(stage, at, window, trip, policy)


def _is_saturated(stage: Stage, name: str, policy: Policy) -> bool:
    """True if a success would change neither the trip nor the window."""
    trip = stage.trip
    return not (trip.unconfirmed or trip.tripped_at) and stage.window >= windows.grown(stage.window, name, policy)


def _boot_quantile(row: Row, boots: tuple[float, ...], policy: Policy) -> float:
    """The policy's quantile of boot times. Unchanged if both the added and the dropped sample lie below it."""
    slow = row.slow_seconds
    if slow > boots[-1] and slow > row.boots[0] and len(boots) == len(row.boots):
        return slow
    if len(boots) < policy.late_samples:
        return 0.0
    return sorted(boots)[max(0, ceil(policy.late_quantile * len(boots)) - 1)]


def _seed(key: Key) -> str:
    """Seed of the jitter of a row's first probe."""
    return key.id if key.kind == CONFIG else key.text


def _trip_threshold(name: str, policy: Policy) -> int:
    trip: int = getattr(policy, f"trip_{name}")
    return trip
