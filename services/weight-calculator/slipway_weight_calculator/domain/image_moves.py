"""Moves of an image's health to another key, when its provider begins to name the image otherwise. Pure.

The configs of an image move one by one, each with its own declaration, and they may part: two providers may have called
different images by one name. So the first that moves to a key takes a copy of what is known along, and each one its own
boots in progress and its probe. The row of the former key goes with its last config.
"""

from msgspec.structs import replace

from slipway_api.events.scopes import Key
from slipway_weight_calculator.domain import trips, windows
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.evidence import Stage
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.rows import STAGES, Config, Row
from slipway_weight_calculator.domain.trips import Probe


def move(draft: Draft, known: Config, config: Config, now: float) -> None:
    """Give the image of `config` the health that it has under the key of `known`, the same config before."""
    old, new = known.shared["image"], config.shared["image"]
    if old == new or known.declared.image_revision != config.declared.image_revision:
        return
    row = draft.row(old)
    if row is None:
        return
    if draft.row(new) is None:
        draft.rows[new] = replace(_settled(row, draft.policy(config)), version=max(row.version + 1, int(now * 1000)))
        for name in STAGES:
            _wait_for_others(draft, new, name, config)
    _move_probe(draft, old, new, config)
    _move_boots(draft, old, new, config)
    draft.touched.update((old, new))


def _settled(row: Row, policy: Policy) -> Row:
    """The row without what is counted for boots in progress."""
    boots = replace(row.boot.boots, slow=0, hung=0, overdue=0)
    return replace(row, boot=replace(row.boot, boots=boots, late=0, window=windows.size(boots, policy)), overdue=())


def _wait_for_others(draft: Draft, key: Key, name: str, config: Config) -> None:
    """Let a trip that another config probes wait until that probe is over: only a config that comes along answers."""
    trip = _stage(draft, key, name).trip
    if trip.probe is not None and trip.probe.config_id != config.id:
        draft.set_trip(key, name, trips.released(trip, _over_at(draft, trip.probe)))


def _move_probe(draft: Draft, old: Key, new: Key, config: Config) -> None:
    """Take the config's unresolved probe along; those that stay behind wait until it is over."""
    own = draft.row(config.key)
    if own is None:
        return
    probe = Probe(config.id, own.permit)
    for name in STAGES:
        trip, moved = _stage(draft, old, name).trip, _stage(draft, new, name).trip
        if trip.probe == probe:
            draft.set_trip(old, name, trips.released(trip, _over_at(draft, probe)))
            if moved.tripped and moved.probe is None:
                draft.set_trip(new, name, trips.issued(moved, probe, own.permit_at))


def _over_at(draft: Draft, probe: Probe) -> float:
    """Time at which a probe counts as lost, or its permit as unspent."""
    config = draft.config(probe.config_id)
    row = draft.row(config.key) if config is not None else None
    if config is None or row is None:
        return 0.0
    return row.lost_at if row.spent else row.permit_at + draft.policy(config).permit_seconds


def _move_boots(draft: Draft, old: Key, new: Key, config: Config) -> None:
    """Take the config's boots in progress along, as far as they count."""
    policy = draft.policy(config)
    for worker_id in sorted({*draft.world.boots, *draft.boots}):
        boot = draft.boot(worker_id)
        if boot is None or boot.config_id != config.id or boot.image != old:
            continue
        before, after = draft.row(old), draft.row(new)
        if before is None or after is None:
            return
        slow = None
        if boot.slow is not None:
            slow = (after.boot.boots.outages, boot.slow[1])
            _count(draft, old, windows.ended(before.boot.boots, boot.slow[0]), -int(boot.late), policy)
            _count(draft, new, windows.slowed(after.boot.boots), int(boot.late), policy)
        if boot.at in before.overdue:
            _set_overdue(draft, old, tuple(at for at in before.overdue if at != boot.at), policy)
            _set_overdue(draft, new, (*after.overdue, boot.at), policy)
        draft.boots[worker_id] = replace(boot, image=new, slow=slow)


def _count(draft: Draft, key: Key, boots: windows.Boots, late: int, policy: Policy) -> None:
    stage = _stage(draft, key, "boot")
    changed = replace(stage, boots=boots, late=max(0, stage.late + late), window=windows.size(boots, policy))
    draft.set_stage(key, "boot", changed)


def _set_overdue(draft: Draft, key: Key, overdue: tuple[float, ...], policy: Policy) -> None:
    row = draft.row(key)
    if row is not None:
        draft.rows[key] = replace(row, overdue=overdue)
        _count(draft, key, replace(row.boot.boots, overdue=len(overdue)), 0, policy)


def _stage(draft: Draft, key: Key, name: str) -> Stage:
    stage: Stage = getattr(draft.row(key), name)
    return stage
