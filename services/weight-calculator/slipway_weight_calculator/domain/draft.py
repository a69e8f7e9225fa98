"""Health state by key, and the Draft of one commit over it: changed values, memberships and sums. Pure.

Decisions are made in health.py, probes.py and outcomes.py. The state stays unchanged until the draft is applied.
"""

from collections.abc import Iterable, Mapping
from heapq import heappush
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from slipway_api.events.scopes import Key
from slipway_weight_calculator.domain import evidence
from slipway_weight_calculator.domain.evidence import Stage, Sum
from slipway_weight_calculator.domain.policy import DEFAULT_PROFILE, PROFILES, Policy
from slipway_weight_calculator.domain.rows import CONFIG, STAGES, Boot, Config, Location, Row, new_row
from slipway_weight_calculator.domain.signals import Signal
from slipway_weight_calculator.domain.trips import Trip

Name = TypeVar("Name", Key, str)
UNCHANGED: Final[Any] = object()  # the draft has no value for the key; None: it has deleted the value

ActiveTrip = tuple[Key, str, Trip]
"""Key, stage and trip of a row that trips a config."""
Timer = tuple[float, str, Any]
"""Time and kind of a transition that depends on time alone, and its subject: a key, or the id of a worker or signal."""


class Policies(dict[str, Policy]):
    """Policies by profile; unknown profiles get the default one's."""

    def __missing__(self, profile: str) -> Policy:
        return self[DEFAULT_PROFILE]


class Values:
    """Values by key. `configs` are keyed by id, `boots` by worker id, `signals` by their own key.

    The rest is derived from these: `members` (configs of a pool, a name or a shared key), `signal_keys` (keys of the
    signals on a config), `sums` (evidence by location), `timers` (a heap of transitions that depend on time alone;
    `scheduled` holds those that trips and permits wait for). A timer whose time does not match the state does nothing,
    so timers left by a discarded draft or lost in a restart are harmless.
    """

    def __init__(self, policies: Mapping[str, Policy] = PROFILES) -> None:
        self.policies = Policies({**PROFILES, **policies})
        self.configs: dict[str, Config] = {}
        self.rows: dict[Key, Row] = {}
        self.boots: dict[str, Boot] = {}
        self.signals: dict[str, Signal] = {}
        self.members: dict[Key, set[str]] = {}
        self.signal_keys: dict[str, set[str]] = {}
        self.sums: dict[Location, Sum] = {}
        self.timers: list[Timer] = []
        self.scheduled: set[Timer] = set()


class Draft:
    """The changes of one commit, over a world that stays unchanged until they are applied.

    `configs`, `rows`, `boots` and `signals` hold the changed values by key; None: deleted. `seen` maps a config to the
    offsets after the newest events folded for it, by partition. `touched` are the keys whose timers may be missing,
    `fired` the timers taken from the world, `summed` the changed configs as they are included in the sums.
    """

    def __init__(self, world: Values) -> None:
        self.world = world
        self.configs: dict[str, Config | None] = {}
        self.rows: dict[Key, Row | None] = {}
        self.boots: dict[str, Boot | None] = {}
        self.signals: dict[str, Signal | None] = {}
        self.seen: dict[str, dict[str, int]] = {}
        self.touched: set[Key] = set()
        self.fired: list[Timer] = []
        self.summed: dict[str, tuple[Config | None, Row | None]] = {}
        self._members: dict[Key, set[str]] = {}
        self._signal_keys: dict[str, set[str]] = {}
        self._sums: dict[Location, Sum] = {}

    # Reads: the draft's value, else the world's.

    def config(self, config_id: str) -> Config | None:
        config: Config | None = self.configs.get(config_id, UNCHANGED)
        return self.world.configs.get(config_id) if config is UNCHANGED else config

    def row(self, key: Key) -> Row | None:
        row: Row | None = self.rows.get(key, UNCHANGED)
        return self.world.rows.get(key) if row is UNCHANGED else row

    def boot(self, worker_id: str) -> Boot | None:
        boot: Boot | None = self.boots.get(worker_id, UNCHANGED)
        return self.world.boots.get(worker_id) if boot is UNCHANGED else boot

    def live_signal(self, key: str) -> Signal | None:
        signal: Signal | None = self.signals.get(key, UNCHANGED)
        return self.world.signals.get(key) if signal is UNCHANGED else signal

    def signals_on(self, config_id: str) -> list[Signal]:
        """Signals on a config, in the order of their keys."""
        keys = self._signal_keys.get(config_id)
        found = [
            self.live_signal(key) for key in sorted(self.world.signal_keys.get(config_id, ()) if keys is None else keys)
        ]
        return [signal for signal in found if signal is not None]

    def signalled(self) -> set[str]:
        """Ids of the configs on which the draft changes a signal."""
        both = (signal for key, now in self.signals.items() for signal in (now, self.world.signals.get(key)))
        return {config_id for signal in both if signal is not None for config_id in signal.configs}

    def members(self, key: Key) -> set[str]:
        """Ids of the configs of a pool, a name or a shared key."""
        members = self._members.get(key)
        return self.world.members.get(key, set()) if members is None else members

    def affected(self, key: Key) -> set[str]:
        """Ids of the configs that a row applies to: one for a config's own, all members of a shared key."""
        return {key.id} if key.kind == CONFIG else self.members(key)

    def sum_of(self, key: Location) -> Sum:
        """Combined evidence of all configs of a location on a stage."""
        if self.summed:
            self._update_sums()
        return self._sums.get(key) or self.world.sums.get(key) or evidence.NOTHING

    def policy(self, config: Config) -> Policy:
        return self.world.policies[config.profile]

    def trips_on(self, config: Config) -> list[ActiveTrip]:
        """All active trips that apply to a config, its own and those of shared keys."""
        found = []
        rows, others = self.rows, self.world.rows
        for key in config.keys:
            row: Row | None = rows.get(key, UNCHANGED)
            if row is UNCHANGED:
                row = others.get(key)
            if row is not None:
                for name in config.stages:
                    trip: Trip = getattr(row, name).trip
                    if trip.tripped_at > 0:
                        found.append((key, name, trip))
        return found

    # Configs and signals, with their memberships

    def add_config(self, config: Config, at: float = 0.0) -> None:
        """Add or update a config and its memberships; `at` is the time for the row of a new one."""
        self._mark_changed(config.id)
        self.configs[config.id] = config
        for key in config.groups:
            if config.id not in self.members(key):
                _own_copy(self._members, self.world.members, key).add(config.id)
        if self.row(config.key) is None:
            self.rows[config.key] = new_row(self.policy(config), config.declared.revision, at)
        # A shared key may have been waiting for a config to probe it, or its pool may no longer be tripped as a whole.
        self.touched.add(config.key)

    def remove_config(self, config: Config, keys: Iterable[Key]) -> None:
        """Remove a config from these keys; a shared row without members is deleted."""
        self._mark_changed(config.id)
        for key in keys:
            members = _own_copy(self._members, self.world.members, key)
            members.discard(config.id)
            if not members and self.row(key) is not None:
                self.rows[key] = None
            self.touched.add(key)

    def set_signal(self, key: str, signal: Signal | None) -> None:
        """Store a signal under its key; None deletes it."""
        before = self.live_signal(key)
        for config_id in before.configs if before is not None else ():
            _own_copy(self._signal_keys, self.world.signal_keys, config_id).discard(key)
        for config_id in signal.configs if signal is not None else ():
            _own_copy(self._signal_keys, self.world.signal_keys, config_id).add(key)
        self.signals[key] = signal
        if signal is not None:
            heappush(self.world.timers, (signal.until, "signal", key))

    # Rows and timers

    def set_stage(self, key: Key, name: str, stage: Stage) -> None:
        row = self.row(key)
        if row is None:
            return
        was, trip = getattr(row, name).trip, stage.trip
        if (was.tripped_at, was.probe, was.next_probe_at) != (trip.tripped_at, trip.probe, trip.next_probe_at):
            self.touched.add(key)
        if key.kind == CONFIG:
            self._mark_changed(key.id)
        changed: dict[str, Any] = {name: stage, "version": row.version + 1}
        self.rows[key] = replace(row, **changed)

    def set_trip(self, key: Key, name: str, trip: Trip, **changes: Any) -> None:
        row = self.row(key)
        if row is not None:
            self.set_stage(key, name, replace(getattr(row, name), trip=trip, **changes))

    def set_permit(self, config: Config, **changes: Any) -> None:
        row = self.row(config.key)
        if row is not None:
            self.touched.add(config.key)
            self.rows[config.key] = replace(row, version=row.version + 1, **changes)

    def schedule(self, when: float, kind: str, subject: Key) -> None:
        """Add a timer unless it is scheduled already. It may remain after the draft is discarded."""
        timer = (when, kind, subject)
        if timer not in self.world.scheduled:
            self.world.scheduled.add(timer)
            heappush(self.world.timers, timer)

    def apply(self) -> None:
        """Apply the changes to the world."""
        if self.summed:
            self._update_sums()
        world = self.world
        _merge(world.configs, self.configs)
        _merge(world.rows, self.rows)
        _merge(world.boots, self.boots)
        _merge(world.signals, self.signals)
        _merge(world.members, {key: members or None for key, members in self._members.items()})
        _merge(world.signal_keys, {config_id: keys or None for config_id, keys in self._signal_keys.items()})
        world.sums.update(self._sums)

    # Sums by location

    def _mark_changed(self, config_id: str) -> None:
        """Remember what the sums include of a config, before it or the evidence of its row changes."""
        if config_id not in self.summed:
            config = self.config(config_id)
            self.summed[config_id] = (config, self.row(config.key) if config is not None else None)

    def _update_sums(self) -> None:
        """Update the sums from the changed rows."""
        counted, self.summed = self.summed, {}
        for config_id, (was, had) in counted.items():
            config = self.config(config_id)
            row = self.row(config.key) if config is not None else None
            same = was is not None and config is not None and was.parents == config.parents
            for name in STAGES:
                before: Stage | None = getattr(had, name) if had is not None and was is not None else None
                after: Stage | None = getattr(row, name) if row is not None and config is not None else None
                if same and before is after:
                    continue
                if same and config is not None:
                    self._add_to_sums(config, name, before, after)
                else:
                    if was is not None and before is not None and before.at:
                        self._add_to_sums(was, name, before, None)
                    if config is not None and after is not None and after.at:
                        self._add_to_sums(config, name, None, after)

    def _add_to_sums(self, config: Config, name: str, before: Stage | None, after: Stage | None) -> None:
        policy = self.policy(config)
        change = evidence.change(before, after, policy)
        for key in config.parents[name]:
            total = self._sums.get(key) or self.world.sums.get(key) or evidence.NOTHING
            self._sums[key] = evidence.combined(total, change, policy)


def _own_copy(mine: dict[Name, set[str]], theirs: Mapping[Name, set[str]], key: Name) -> set[str]:
    """A set of the draft's own, which may be changed."""
    if key not in mine:
        mine[key] = set(theirs.get(key, ()))
    return mine[key]


def _merge(theirs: dict[Name, Any], ours: Mapping[Name, Any]) -> None:
    for key, value in ours.items():
        if value is None:
            theirs.pop(key, None)
        else:
            theirs[key] = value
