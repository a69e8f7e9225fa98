"""Probes of tripped rows: schedule, issue of permits, and resolution of permits. Pure.

A permit covers every tripped stage of its config. The trips hold its probe until they are resolved by an outcome of its
worker or by its loss. Timers are derived from the state; a timer whose time does not match the state does nothing.
"""

from collections.abc import Collection, Iterable
from math import inf
from typing import Final

from msgspec.structs import replace

from slipway_api.events.scopes import Key, config_key
from slipway_api.events.worker import Outcome, Result
from slipway_weight_calculator.domain import health, signals, trips
from slipway_weight_calculator.domain.draft import ActiveTrip, Draft
from slipway_weight_calculator.domain.rows import UNDECLARED, Config, Row
from slipway_weight_calculator.domain.trips import Probe, Trip

UNDECLARED_KEPT_SECONDS: Final = 8 * 86_400.0
"""Retention of a config that is known from outcomes only; its last workers have ended by then."""

Turn = tuple[float, float, str]
"""Sort key and config id of a candidate for a probe."""


def is_ready(draft: Draft, config: Config, active: Iterable[ActiveTrip]) -> bool:
    """True if the current probe permit is unspent and covers every tripped stage of the config."""
    row = draft.row(config.key)
    if row is None or not row.ready or row.spent:
        return False
    return all(trip.probe == _probe(config, row) for _, _, trip in active)


def schedule(draft: Draft) -> None:
    """Schedule the timers of trips, permits and pools of all touched keys."""
    touched, draft.touched = draft.touched, set()
    configs, pools = set(), set()
    for key in touched:
        configs |= draft.affected(key)
    for config_id in configs:
        config = draft.config(config_id)
        row = draft.row(config.key) if config is not None else None
        if config is None or row is None:
            continue
        pools.add(config.pool)
        if config.declared.state == UNDECLARED:
            draft.schedule(config.archived_at + UNDECLARED_KEPT_SECONDS, "forget", config.key)
        active = draft.trips_on(config)
        for key, _, trip in active:
            if trip.next_probe_at:
                draft.schedule(trip.next_probe_at, "probe", key)
        if active and row.ready:
            draft.schedule(row.lost_at, "lost", config.key)
            if not row.spent:
                draft.schedule(row.permit_at + draft.policy(config).permit_seconds, "permit", config.key)
    for key in pools:
        due, _ = _pool_probe_at(draft, key)
        if due < inf:
            draft.schedule(due, "pool", key)


# Permits


def spend(draft: Draft, config: Config, permit: int, at: float) -> None:
    """Mark a permit spent, as a worker was requested with it."""
    row = draft.row(config.key)
    if row is None or permit != row.permit or row.spent:
        return
    lost_at = at + draft.policy(config).probe_timeout_seconds
    draft.set_permit(config, ready=True, spent=True, lost_at=lost_at)
    # A permit that was withdrawn meanwhile again covers the trips that no other probe covers.
    for key, name, trip in draft.trips_on(_declared(draft, config)):
        if not trip.probe:
            draft.set_trip(key, name, trips.issued(trip, _probe(config, row), at))


def extend(draft: Draft, config: Config, permit: int, at: float) -> None:
    """Postpone the loss of the newest permit after an event of its holder."""
    row = draft.row(config.key)
    if row is not None and row.ready and permit == row.permit:
        lost_at = at + draft.policy(config).probe_timeout_seconds
        draft.rows[config.key] = replace(row, version=row.version + 1, lost_at=lost_at)
        draft.schedule(lost_at, "lost", config.key)


def settle(
    draft: Draft,
    config: Config,
    permit: int,
    at: float,
    outcome: Outcome | None,
    charged: Collection[Key] = (),
    *,
    ended: bool = False,
) -> None:
    """Resolve the trips that wait for the newest permit; `ended`: no more events of its holder will arrive.

    An outcome answers for the keys of the `config` as its event names it.
    """
    row = draft.row(config.key)
    if row is None or permit != row.permit:
        return
    probe, policy = _probe(config, row), draft.policy(config)
    resolved = answered = waiting = False
    for key, name, trip in draft.trips_on(_declared(draft, config)):
        if trip.probe != probe:
            continue
        decisive = outcome is not None and outcome.stage.value == name and key in config.keys
        if decisive and outcome is not None and outcome.result is Result.OK:
            health.recover(draft, config, key, name, at)
            answered = True
        elif decisive and outcome is not None and key in charged:
            draft.set_trip(key, name, trips.probe_failed(trip, outcome.code, at, policy))
            answered = True
        elif ended:
            draft.set_trip(key, name, trips.unanswered(trip, at, policy))
        else:
            waiting = True
            continue
        resolved = True
    # A trip that waits still has its answer from the same permit, or loses it with its holder.
    if row.ready and (ended or (resolved and not waiting)):
        draft.set_permit(config, ready=False, unanswered_at=0.0 if answered else at)


def abandon(draft: Draft, config_id: str, permit: int, now: float) -> None:
    """End a probe whose outcome will never arrive."""
    config = draft.config(config_id)
    if config is not None:
        settle(draft, config, permit, now, None, ended=True)


def return_permit(draft: Draft, known: Config, config: Config, now: float) -> None:
    """Release probes that can no longer be answered, as `known` becomes `config`.

    These are the permit of a config that is not active, and probes of keys that the config no longer shares.
    """
    row = draft.row(known.key)
    if row is None or not row.ready:
        return
    unspendable = not config.active and not row.spent
    for key, name, trip in draft.trips_on(known):
        if trip.probe == _probe(known, row) and (unspendable or key not in config.keys):
            draft.set_trip(key, name, trips.released(trip, now))
    if unspendable:
        draft.set_permit(known, ready=False, unanswered_at=now)


# Timers


def probe_due(draft: Draft, key: Key, when: float, now: float) -> None:
    """Issue the due probe of a row to the first of its configs that nothing else blocks."""
    row = draft.row(key)
    if row is None:
        return
    due = [trip.tripped_at for trip in (row.launch.trip, row.boot.trip, row.claim.trip) if trip.next_probe_at == when]
    if due:
        _issue_first(draft, [_turn(draft, member, min(due)) for member in draft.affected(key)], when, now)


def pool_probe_due(draft: Draft, key: Key, when: float, now: float) -> None:
    """Issue the due probe of a pool that is tripped as a whole."""
    due, turns = _pool_probe_at(draft, key)
    if due == when:
        _issue_first(draft, turns, when, now, early=True)


def permit_unspent(draft: Draft, own: Key, when: float, now: float) -> None:
    """Withdraw an unspent permit of a shared row: its pool has no demand, and other configs wait for the answer."""
    config, row = draft.config(own.id), draft.row(own)
    if config is None or row is None or not row.ready or row.spent:
        return
    if when != row.permit_at + draft.policy(config).permit_seconds:
        return
    waiting = [(k, name, trip) for k, name, trip in draft.trips_on(config) if trip.probe == _probe(config, row)]
    others = {other for key, _, _ in waiting if key != own for other in draft.members(key)} - {own.id}
    if any((other := draft.config(c)) is not None and other.active for c in others):
        draft.set_permit(config, ready=False, unanswered_at=now)
        for key, name, trip in waiting:
            draft.set_trip(key, name, trips.released(trip, now))


def permit_lost(draft: Draft, own: Key, when: float, now: float) -> None:
    """Abandon a probe of which no event has arrived in time."""
    config, row = draft.config(own.id), draft.row(own)
    if config is None or row is None or not row.ready or row.lost_at != when:
        return
    if any(trip.probe == _probe(config, row) for _, _, trip in draft.trips_on(config)):
        abandon(draft, own.id, row.permit, now)


def _issue_first(draft: Draft, turns: Iterable[Turn], when: float, now: float, *, early: bool = False) -> None:
    for _, _, config_id in sorted(turns):
        config = draft.config(config_id)
        if config is not None and _issue(draft, config, when, now, early=early):
            return


def _issue(draft: Draft, config: Config, when: float, now: float, *, early: bool) -> bool:
    """Issue a permit if all trips of the config are due at `when` (or `early`) and none has an unresolved probe.

    An unspent permit is replaced when another row trips, so that one probe answers for all of them.
    """
    row, active = draft.row(config.key), draft.trips_on(config)
    if row is None or not active or not config.active or is_ready(draft, config, active):
        return False
    if signals.down_signal(draft.signals_on(config.id)) is not None:
        return False  # the permit would not be spent
    if any(_is_probed(trip, config, row) for _, _, trip in active):
        return False
    if not early and any(trip.next_probe_at > when for _, _, trip in active):
        return False
    lost_at = now + draft.policy(config).permit_expiry_seconds
    draft.set_permit(config, permit=row.permit + 1, permit_at=now, ready=True, spent=False, lost_at=lost_at)
    for key, name, trip in active:
        draft.set_trip(key, name, trips.issued(trip, Probe(config.id, row.permit + 1), now))
    return True


def _pool_probe_at(draft: Draft, key: Key) -> tuple[float, list[Turn]]:
    """Time of the next probe of a pool that is tripped as a whole, and the candidates for it.

    Such a pool gets one attempt per `pool_probe_seconds` whatever the delays of its trips have grown to; a probe
    in flight or waiting for demand blocks only its own config. Boots and claims are not probed sooner, because
    each attempt costs a machine.
    """
    last, every, waiting = 0.0, inf, []
    for config_id in draft.members(key):
        config = draft.config(config_id)
        row = draft.row(config.key) if config is not None else None
        if config is None or row is None or not config.active:
            continue
        active = draft.trips_on(config)
        if not active:
            if signals.down_signal(draft.signals_on(config_id)) is None:
                return inf, []
            continue
        every = min(every, draft.policy(config).pool_probe_seconds)
        since = min(trip.tripped_at for _, _, trip in active)
        last = max(last, row.permit_at, since)
        if is_ready(draft, config, active) or signals.down_signal(draft.signals_on(config_id)) is not None:
            continue
        if all(name == "launch" and not _is_probed(trip, config, row) for _, name, trip in active):
            probed = max(trip.probe_at for _, _, trip in active)
            soonest = max(trip.next_probe_at for _, _, trip in active)
            waiting.append((probed, (_unanswered_since(row, since), soonest, config_id)))
    due = max(last, min((probed for probed, _ in waiting), default=inf)) + every
    return due, [turn for probed, turn in waiting if probed + every <= due]


def _turn(draft: Draft, config_id: str, tripped_at: float) -> Turn:
    """Sort key for probing: the busiest config first, because it spends a permit at once."""
    row = draft.row(config_key(config_id))
    return (inf, 0.0, config_id) if row is None else (_unanswered_since(row, tripped_at), -row.launch.at, config_id)


def _probe(config: Config, row: Row) -> Probe:
    """Probe of a config's newest permit, as trips hold it."""
    return Probe(config.id, row.permit)


def _declared(draft: Draft, config: Config) -> Config:
    """The config as declared: its trips wait for its permits."""
    return draft.config(config.id) or config


def _unanswered_since(row: Row, tripped_at: float) -> float:
    """Time at which a permit ended without an answer since the trip, else 0.

    Such a config comes after all others, otherwise one without demand would block them again and again.
    """
    return row.unanswered_at if row.unanswered_at > tripped_at else 0.0


def _is_probed(trip: Trip, config: Config, row: Row) -> bool:
    """True if a probe is in flight or permitted, other than by the config's own unspent permit."""
    return trip.probe is not None and not (row.ready and not row.spent and trip.probe == _probe(config, row))
