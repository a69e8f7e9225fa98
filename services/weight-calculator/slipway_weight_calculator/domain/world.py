"""Health state of the whole deployment and the transitions allowed on it: declare, fold, signal, advance. Pure.

A Draft holds the changes of one commit; the World beneath it stays unchanged until the draft is committed. Everything
follows from the state, the events and the given times, so the same journal gives the same rows. Transitions that
depend on time alone have a timer in `World.timers`, derived from the state; the first `advance` at or after its time
fires it. A timer whose time does not match the state does nothing, so timers left by a discarded draft or lost in a
restart are harmless.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from math import ceil, inf
from typing import Any, Final

from msgspec.structs import replace

from slipway_common.events import worker
from slipway_common.events.launch_config import LaunchConfigState
from slipway_common.events.scopes import FORGOTTEN_AFTER_SECONDS, credential_key, image_key
from slipway_common.events.signal import SignalRaised
from slipway_common.events.signal_rules import DEFAULT_RULES, Rules, is_for_provisioner
from slipway_common.events.worker import Outcome, Result, Scope, WorkerEvent
from slipway_weight_calculator.domain import blame, evidence, signals, trips, windows
from slipway_weight_calculator.domain.evidence import Stage, Sum
from slipway_weight_calculator.domain.policy import DEFAULT_PROFILE, PROFILES, Policy
from slipway_weight_calculator.domain.rows import (
    STAGES,
    Boot,
    Config,
    Row,
    config_of,
    new_row,
    new_shared_row,
    undeclared,
)
from slipway_weight_calculator.domain.signals import Signal
from slipway_weight_calculator.domain.trips import CODE_LENGTH_MAX, Failure, Trip

OK, FAILED = Result.OK, Result.FAILED
LAUNCH, BOOT = worker.Stage.LAUNCH, worker.Stage.BOOT
LATE: Final = Outcome(BOOT, FAILED, Scope.IMAGE, "", "late")
UNCHANGED: Final[Any] = object()  # the draft has no value for the key; None: it has deleted the value

ActiveTrip = tuple[str, str, Trip]
"""Key, stage and trip of a row that trips a config."""
Timer = tuple[float, str, str]
"""Time, kind and key of a transition that depends on time alone."""


class Policies(dict[str, Policy]):
    """Policies by profile; unknown profiles get the default one's."""

    def __missing__(self, profile: str) -> Policy:
        return self[DEFAULT_PROFILE]


class World:
    """Values by key. `rows` are keyed by config id or shared key; `boots` by worker id; `signals` by their own key.

    The rest is derived from these: `members` (configs of a pool or of a shared key), `signal_keys` (keys of the signals
    on a config), `sums` (evidence by location), `timers` (a heap of transitions that depend on time alone; `scheduled`
    holds those that trips and permits wait for).
    """

    def __init__(self, policies: Mapping[str, Policy] = PROFILES) -> None:
        self.policies = Policies({**PROFILES, **policies})
        self.configs: dict[str, Config] = {}
        self.rows: dict[str, Row] = {}
        self.boots: dict[str, Boot] = {}
        self.signals: dict[str, Signal] = {}
        self.members: dict[str, set[str]] = {}
        self.signal_keys: dict[str, set[str]] = {}
        self.sums: dict[str, Sum] = {}
        self.timers: list[Timer] = []
        self.scheduled: set[Timer] = set()

    def policy(self, config: Config) -> Policy:
        return self.policies[config.profile]

    def due(self) -> float | None:
        """The next time at which `advance` may change something; call it between drafts.

        Nearly every probe is resolved long before it would be lost, so timers of resolved ones are dropped here.
        """
        timers = self.timers
        while timers and timers[0][1] == "lost" and not self._may_be_lost(*timers[0]):
            self.scheduled.discard(heappop(timers))
        return timers[0][0] if timers else None

    def _may_be_lost(self, when: float, kind: str, config_id: str) -> bool:
        row = self.rows.get(config_id)
        return row is not None and row.ready and row.lost_at == when

    def load(
        self,
        configs: Iterable[Config],
        rows: Mapping[str, Row],
        boots: Mapping[str, Boot],
        signals: Mapping[str, Signal],
    ) -> None:
        """Load stored values into an empty world and derive the rest from them."""
        draft = Draft(self)
        self.rows.update(rows)
        for config in configs:
            draft.add_config(config_of(config.declared, config.archived_at))  # the derivation may have changed since
        draft.boots.update(boots)
        for key, signal in signals.items():
            draft.set_signal(key, signal)
        for worker_id, boot in boots.items():
            if boot.late_at and not boot.late:
                heappush(self.timers, (boot.late_at, "boot", worker_id))
        draft.commit()


class Draft:
    """The changes of one commit, over a world that stays unchanged until `commit`.

    `configs`, `rows`, `boots` and `signals` hold the changed values by key; None: deleted. `seen` maps a config to the
    offsets after the newest events folded for it, by partition.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.configs: dict[str, Config | None] = {}
        self.rows: dict[str, Row | None] = {}
        self.boots: dict[str, Boot | None] = {}
        self.signals: dict[str, Signal | None] = {}
        self.seen: dict[str, dict[str, int]] = {}
        self._members: dict[str, set[str]] = {}
        self._signal_keys: dict[str, set[str]] = {}
        self._sums: dict[str, Sum] = {}
        self._summed: dict[str, tuple[Config | None, Row | None]] = {}  # changed configs, as included in the sums
        self._touched: set[str] = set()  # configs and shared keys whose timers may be missing
        self._fired: list[Timer] = []

    # Reads: the draft's value, else the world's.

    def config(self, config_id: str) -> Config | None:
        config: Config | None = self.configs.get(config_id, UNCHANGED)
        return self.world.configs.get(config_id) if config is UNCHANGED else config

    def row(self, key: str) -> Row | None:
        row: Row | None = self.rows.get(key, UNCHANGED)
        return self.world.rows.get(key) if row is UNCHANGED else row

    def boot(self, worker_id: str) -> Boot | None:
        boot: Boot | None = self.boots.get(worker_id, UNCHANGED)
        return self.world.boots.get(worker_id) if boot is UNCHANGED else boot

    def live_signal(self, key: str) -> Signal | None:
        signal: Signal | None = self.signals.get(key, UNCHANGED)
        return self.world.signals.get(key) if signal is UNCHANGED else signal

    def live_signals(self) -> Iterator[tuple[str, Signal]]:
        for key in sorted({*self.world.signals, *self.signals}):
            if (signal := self.live_signal(key)) is not None:
                yield key, signal

    def signals_on(self, config_id: str) -> list[Signal]:
        """Signals on a config, in the order of their keys."""
        keys = self._signal_keys.get(config_id)
        found = [
            self.live_signal(key) for key in sorted(self.world.signal_keys.get(config_id, ()) if keys is None else keys)
        ]
        return [signal for signal in found if signal is not None]

    def members(self, key: str) -> set[str]:
        """Ids of the configs of a pool ("pool/id") or of a shared key."""
        members = self._members.get(key)
        return self.world.members.get(key, set()) if members is None else members

    def sum_of(self, key: str) -> Sum:
        """Combined evidence of all configs of a location on a stage."""
        if self._summed:
            self._update_sums()
        return self._sums.get(key) or self.world.sums.get(key) or evidence.NOTHING

    def policy(self, config: Config) -> Policy:
        return self.world.policies[config.profile]

    def trips_on(self, config: Config) -> list[ActiveTrip]:
        """All active trips that apply to a config, its own and those of shared keys."""
        found = []
        for key in config.keys:
            row = self.row(key)
            if row is not None:
                for name in config.stages:
                    trip: Trip = getattr(row, name).trip
                    if trip.tripped_at > 0:
                        found.append((key, name, trip))
        return found

    def probe_is_ready(self, config: Config, active: Iterable[ActiveTrip]) -> bool:
        """True if the current probe permit is unspent and covers every tripped stage of the config."""
        row = self.row(config.id)
        if row is None or not row.ready or row.spent:
            return False
        return all(trip.probe == _probe(config, row) for _, _, trip in active)

    # Changes: declarations, events, signals, time.

    def declare(self, state: LaunchConfigState, now: float) -> None:
        """Create or change a config; a state with a lower revision than the known one is ignored."""
        known, archived = self.config(state.launch_config_id), state.state == "archived"
        if known is not None and state.revision < known.declared.revision:
            return
        was_archived = known is not None and known.declared.state == "archived"
        since = 0.0 if not archived else known.archived_at if known is not None and was_archived else now
        config = config_of(state, archived_at=since)
        if known is None:
            self.add_config(config, now)
        elif config != known:
            self._return_permit(known, config, now)
            self._remove_config(known, [key for key in known.groups if key not in config.groups])
            self.add_config(config)

    def archive(self, config_id: str, now: float) -> None:
        """Archive a config after its tombstone. Outcomes of its last workers may still arrive."""
        config = self.config(config_id)
        if config is not None and config.declared.state != "archived":
            self.declare(replace(config.declared, state="archived"), now)

    def fold(self, event: WorkerEvent, at: float, partition: str = "", next_offset: int = 0) -> None:
        """Apply one worker event at the time of the fact, in seconds since the epoch; most events change nothing.

        `partition` ("topic/number") and `next_offset` are published with the record as the position it includes.
        """
        handler = _EVENT_HANDLERS.get(type(event))
        if handler is None:
            return
        config_id = event.launch_config_id
        config: Config | None = self.configs.get(config_id, UNCHANGED)
        if config is UNCHANGED:
            config = self.world.configs.get(config_id)
        if config is None:
            config = undeclared(event, at)
            self.add_config(config, at)
        handler(self, config, event, at)
        if partition:
            seen = self.seen.get(config_id)
            if seen is None:
                seen = self.seen[config_id] = {}
            seen[partition] = next_offset

    def signal(self, event: SignalRaised, at: float, rules: Rules = DEFAULT_RULES) -> str:
        """Apply a signal received at `at`; returns the reason if it has no effect.

        The reason is empty if the signal has an effect here or is for the provisioner.
        """
        boot = self.boot(event.target_id) if event.target_kind == "worker" else None
        booting = boot.config_id if boot is not None else ""
        configs = self._candidates(event, booting)
        reached = signals.reached(event, configs, booting)
        live = {signal.key: signal for id_ in configs for signal in self.signals_on(id_) if signal.until > at}
        problem = signals.problem(event, reached, configs, live, at, rules)
        if problem or is_for_provisioner(event):
            return problem
        self._touched |= reached
        if event.kind == "recovered":
            for key in signals.cleared(event, live):
                self._touched.update(live[key].configs)
                self.set_signal(key, None)
            for config_id in sorted(reached):
                self._bring_forward(configs[config_id], STAGES, at, by=trips.brought_forward_by_signal)
        self.set_signal(*signals.signal_of(event, reached, at))
        return ""

    def enforce_shares(self, config_id: str, now: float, rules: Rules = DEFAULT_RULES) -> list[tuple[Signal, str]]:
        """Drop signals by which a source would trip more than its share of a pool after a config has changed.

        The newest ones go first. Returns the dropped signals with the reasons.
        """
        dropped = []
        found = (self.world.configs.get(config_id), self.config(config_id))
        for pool_id in sorted({config.declared.pool_id for config in found if config is not None}):
            ids = sorted(self.members(f"pool/{pool_id}"))
            configs = {id_: config for id_ in ids if (config := self.config(id_)) is not None}
            live = {signal.key: signal for id_ in configs for signal in self.signals_on(id_) if signal.until > now}
            for key, why in signals.exceeding_share(pool_id, configs, live, rules) if live else ():
                self._touched.update(live[key].configs)
                self.set_signal(key, None)
                dropped.append((live[key], why))
        return dropped

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

    def _candidates(self, event: SignalRaised, booting: str) -> dict[str, Config]:
        """Configs that a signal may reach, and the others of their pools, of which it may trip only a share."""
        target = event.target_id
        ids: set[str] = {
            "config": {target},
            "worker": {booting},
            "pool": self.members(f"pool/{target}"),
            "account": self.members(credential_key(target)),
            "image": self.members(image_key(target)),
            "zone": {*self.world.configs, *self.configs},
        }.get(event.target_kind, set())
        pools = {config.pool for id_ in ids if (config := self.config(id_)) is not None}
        ids = ids.union(*(self.members(pool) for pool in pools))
        return {id_: config for id_ in sorted(ids) if (config := self.config(id_)) is not None}

    def count_folded(self, config_id: str, name: str, by: int = 1) -> None:
        """Count failures that were not folded as seen, or undo that (`by` -1); unknown configs have no count."""
        row = self.row(config_id) if self.config(config_id) is not None else None
        if row is not None:
            stage: Stage = getattr(row, name)
            self._set(config_id, name, replace(stage, folded=stage.folded + by))

    def abandon_probe(self, config_id: str, permit: int, now: float) -> None:
        """End a probe whose outcome will never arrive."""
        config = self.config(config_id)
        if config is not None:
            self._settle(config, permit, now, None, (), ended=True)

    def advance(self, now: float) -> None:
        """Fire all timers up to `now`: permits that are due, starts that are late, signals that expire."""
        self._schedule_touched()
        timers, scheduled = self.world.timers, self.world.scheduled
        while timers and timers[0][0] <= now:
            timer = heappop(timers)
            scheduled.discard(timer)
            self._fired.append(timer)
            when, kind, key = timer
            _TIMER_HANDLERS[kind](self, key, when, now)
            if self._touched:
                self._schedule_touched()

    def commit(self) -> None:
        """Apply the draft to the world; call it after the database has committed."""
        world = self.world
        if self._summed:
            self._update_sums()
        self._schedule_touched()
        _merge(world.configs, self.configs)
        _merge(world.rows, self.rows)
        _merge(world.boots, self.boots)
        _merge(world.signals, self.signals)
        _merge(world.members, {key: members or None for key, members in self._members.items()})
        _merge(world.signal_keys, {config_id: keys or None for config_id, keys in self._signal_keys.items()})
        world.sums.update(self._sums)

    def discard(self) -> None:
        """Drop the draft and restore the timers that it has fired."""
        for timer in self._fired:
            heappush(self.world.timers, timer)

    # Membership

    def add_config(self, config: Config, at: float = 0.0) -> None:
        """Add or update a config and its memberships; `at` is the time for the row of a new one."""
        self._mark_changed(config.id)
        self.configs[config.id] = config
        for key in config.groups:
            if config.id not in self.members(key):
                _own_copy(self._members, self.world.members, key).add(config.id)
        if self.row(config.id) is None:
            self.rows[config.id] = new_row(self.policy(config), config.declared.revision, at)
        # A shared key may have been waiting for a config to probe it, or its pool may no longer be tripped as a whole.
        self._touched.add(config.id)
        self._touched.update(key for key in config.keys[1:] if self.row(key) is not None)

    def _remove_config(self, config: Config, keys: Iterable[str]) -> None:
        """Remove a config from these keys; a shared row without members is deleted."""
        self._mark_changed(config.id)
        for key in keys:
            members = _own_copy(self._members, self.world.members, key)
            members.discard(config.id)
            if not members and self.row(key) is not None:
                self.rows[key] = None
            self._touched.add(key)

    def _return_permit(self, known: Config, config: Config, now: float) -> None:
        """Release probes that can no longer be answered.

        These are the permit of a config that is not active, and probes of keys that the config no longer shares.
        """
        row = self.row(known.id)
        if row is None or not row.ready:
            return
        unspendable = not config.active and not row.spent
        for key, name, trip in self.trips_on(known):
            if trip.probe == _probe(known, row) and (unspendable or key not in config.keys):
                self._set_trip(key, name, trips.released(trip, now))
        if unspendable:
            self._set_permit(known.id, ready=False, unanswered_at=now)

    # Sums by location

    def _mark_changed(self, config_id: str) -> None:
        """Remember what the sums include of a config, before it or the evidence of its row changes."""
        if config_id not in self._summed:
            self._summed[config_id] = (self.config(config_id), self.row(config_id))

    def _update_sums(self) -> None:
        """Update the sums from the changed rows."""
        counted, self._summed = self._summed, {}
        for config_id, (was, had) in counted.items():
            config, row = self.config(config_id), self.row(config_id)
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

    # Evidence, windows and trips of one stage of one row

    def _set(self, key: str, name: str, stage: Stage) -> None:
        row = self.row(key)
        if row is None:
            return
        was, trip = getattr(row, name).trip, stage.trip
        if (was.tripped_at, was.probe, was.next_probe_at) != (trip.tripped_at, trip.probe, trip.next_probe_at):
            self._touched.add(key)
        if "/" not in key:
            self._mark_changed(key)
        changed: dict[str, Any] = {name: stage, "version": row.version + 1}
        self.rows[key] = replace(row, **changed)

    def _set_trip(self, key: str, name: str, trip: Trip, **changes: Any) -> None:
        row = self.row(key)
        if row is not None:
            self._set(key, name, replace(getattr(row, name), trip=trip, **changes))

    def _set_permit(self, config_id: str, **changes: Any) -> None:
        row = self.row(config_id)
        if row is not None:
            self._touched.add(config_id)
            self.rows[config_id] = replace(row, version=row.version + 1, **changes)

    def _succeed(self, config: Config, name: str, at: float, boot_seconds: float = 0.0) -> None:
        """Record a success in the config's own row and in shared ones. Optimized: most effective events end here."""
        config_id, policy, rows, stored = config.id, self.world.policies[config.profile], self.rows, self.world.rows
        row: Row | None = rows.get(config_id, UNCHANGED)
        if row is UNCHANGED:
            row = stored.get(config_id)
        if row is None or name not in config.stages:
            return
        if config_id not in self._summed:
            self._summed[config_id] = (config, row)
        if name == "launch":
            rows[config_id] = replace(row, launch=_after_success(row.launch, name, at, policy), version=row.version + 1)
        elif name == "boot":
            boots = (*row.boots[1 - policy.boot_samples :], boot_seconds)
            rows[config_id] = replace(
                row,
                boot=_after_success(row.boot, name, at, policy),
                version=row.version + 1,
                boots=boots,
                slow_seconds=_boot_quantile(row, boots, policy),
            )
        else:
            rows[config_id] = replace(row, claim=_after_success(row.claim, name, at, policy), version=row.version + 1)
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

    def _charge(self, config: Config, key: str, name: str, at: float, failure: Failure, *, place: bool) -> None:
        """Record a failure of a row's stage."""
        policy = self.policy(config)
        row = self.row(key)
        if row is None:
            if not self.members(key):
                return  # the last config that shared it is gone
            row = self.rows[key] = new_shared_row(policy, at)
        stage: Stage = getattr(row, name)
        trip, window = stage.trip, stage.window
        if trip.tripped_at == 0:
            window = windows.shrunk(window, name, policy)
        if at >= stage.ok_at:
            # A quota that fails again as soon as it is used has been reached: the successes before prove nothing.
            proven = stage.window >= policy.proven_window and failure.scope is not Scope.QUOTA
            trip = trips.failed(trip, failure, _trip_threshold(name, policy), key, policy, proven=proven)
        self._set(key, name, evidence.after(stage, at, window, trip, policy, failed=True, place=place))

    def _recover(self, config: Config, key: str, name: str, at: float) -> None:
        """Recover a row after a successful probe.

        Its failures belong to the outage that has ended. They decay once more by the duration of the trip, so a long
        outage is forgotten and a short one is remembered.
        """
        row = self.row(key)
        if row is None:
            return
        stage, policy = getattr(row, name), self.policy(config)
        kept = evidence.remaining(max(0.0, at - stage.trip.tripped_at), policy)
        self._set_trip(
            key,
            name,
            trips.recovered(stage.trip, at),
            failures=stage.failures * kept,
            place_failures=stage.place_failures * kept,
            window=policy.recovered_window,
        )
        if name == "launch":
            self._bring_siblings_forward(config, stage.trip.tripped_at, at)

    def _bring_siblings_forward(self, config: Config, tripped_at: float, at: float) -> None:
        """Bring the probes of siblings forward that tripped at the same time: their outage may have ended too."""
        for other_id in sorted(self.members(config.pool) - {config.id}):
            other, row = self.config(other_id), self.row(other_id)
            if other is None or row is None or not row.launch.trip.tripped:
                continue
            if abs(row.launch.trip.tripped_at - tripped_at) <= self.policy(other).sibling_seconds:
                self._bring_forward(other, ("launch",), at)

    def _bring_forward(
        self,
        config: Config,
        names: Iterable[str],
        at: float,
        by: Callable[[Trip, float, Policy], Trip] = trips.brought_forward,
    ) -> None:
        """Bring the probes of a config's trips in these stages forward to `at`."""
        for key, name, trip in self.trips_on(config):
            sooner = by(trip, at, self.policy(config))
            if name in names and sooner is not trip:
                self._set_trip(key, name, sooner)

    # Timers

    def _schedule_touched(self) -> None:
        """Schedule the timers of trips, permits and pools of all touched keys."""
        touched, self._touched = self._touched, set()
        configs, pools = set(), set()
        for key in touched:
            configs |= self.members(key) if "/" in key else {key}
        for config_id in configs:
            config, row = self.config(config_id), self.row(config_id)
            if config is None or row is None:
                continue
            pools.add(config.pool)
            if config.archived_at:
                self._schedule(config.archived_at + FORGOTTEN_AFTER_SECONDS, "forget", config_id)
            active = self.trips_on(config)
            for key, _, trip in active:
                if trip.next_probe_at:
                    self._schedule(trip.next_probe_at, "probe", key)
            if active and row.ready:
                self._schedule(row.lost_at, "lost", config_id)
                if not row.spent:
                    self._schedule(row.permit_at + self.policy(config).permit_seconds, "permit", config_id)
        for key in pools:
            due, _ = self._pool_probe_at(key)
            if due < inf:
                self._schedule(due, "pool", key)

    def _schedule(self, when: float, kind: str, key: str) -> None:
        timer = (when, kind, key)
        if timer not in self.world.scheduled:
            self.world.scheduled.add(timer)
            heappush(self.world.timers, timer)

    def _probe_due(self, key: str, when: float, now: float) -> None:
        """Issue the due probe of a row to the first of its configs that nothing else blocks."""
        row = self.row(key)
        if row is None:
            return
        due = [
            trip.tripped_at for trip in (row.launch.trip, row.boot.trip, row.claim.trip) if trip.next_probe_at == when
        ]
        if due:
            members = self.members(key) if "/" in key else {key}
            self._issue_first([self._probe_order(member, min(due)) for member in members], when, now)

    def _probe_order(self, config_id: str, tripped_at: float) -> tuple[float, float, str]:
        """Sort key for probing: the busiest config first, because it spends a permit at once."""
        row = self.row(config_id)
        return (inf, 0.0, config_id) if row is None else (_unanswered_since(row, tripped_at), -row.launch.at, config_id)

    def _issue_first(
        self, turns: Iterable[tuple[float, float, str]], when: float, now: float, *, early: bool = False
    ) -> None:
        for _, _, config_id in sorted(turns):
            config = self.config(config_id)
            if config is not None and self._issue(config, when, now, early=early):
                return

    def _issue(self, config: Config, when: float, now: float, *, early: bool) -> bool:
        """Issue a permit if all trips of the config are due at `when` (or `early`) and none has an unresolved probe.

        An unspent permit is replaced when another row trips, so that one probe answers for all of them.
        """
        row, active = self.row(config.id), self.trips_on(config)
        if row is None or not active or not config.active or self.probe_is_ready(config, active):
            return False
        if signals.down_signal(self.signals_on(config.id)) is not None:
            return False  # the permit would not be spent
        if any(_is_probed(trip, config, row) for _, _, trip in active):
            return False
        if not early and any(trip.next_probe_at > when for _, _, trip in active):
            return False
        lost_at = now + self.policy(config).permit_expiry_seconds
        self._set_permit(config.id, permit=row.permit + 1, permit_at=now, ready=True, spent=False, lost_at=lost_at)
        for key, name, trip in active:
            self._set_trip(key, name, trips.issued(trip, f"{config.id}#{row.permit + 1}", now))
        return True

    def _pool_probe_at(self, key: str) -> tuple[float, list[tuple[float, float, str]]]:
        """Time of the next probe of a pool that is tripped as a whole, and the candidates for it.

        Such a pool gets one attempt per `pool_probe_seconds` whatever the delays of its trips have grown to; a probe
        in flight or waiting for demand blocks only its own config. Boots and claims are not probed sooner, because
        each attempt costs a machine.
        """
        last, every, waiting = 0.0, inf, []
        for config_id in self.members(key):
            config, row = self.config(config_id), self.row(config_id)
            if config is None or row is None or not config.active:
                continue
            active = self.trips_on(config)
            if not active:
                if signals.down_signal(self.signals_on(config_id)) is None:
                    return inf, []
                continue
            every = min(every, self.policy(config).pool_probe_seconds)
            since = min(trip.tripped_at for _, _, trip in active)
            last = max(last, row.permit_at, since)
            if self.probe_is_ready(config, active) or signals.down_signal(self.signals_on(config_id)) is not None:
                continue
            if all(name == "launch" and not _is_probed(trip, config, row) for _, name, trip in active):
                probed = max(trip.probe_at for _, _, trip in active)
                soonest = max(trip.next_probe_at for _, _, trip in active)
                waiting.append((probed, (_unanswered_since(row, since), soonest, config_id)))
        due = max(last, min((probed for probed, _ in waiting), default=inf)) + every
        return due, [turn for probed, turn in waiting if probed + every <= due]

    def _pool_probe_due(self, key: str, when: float, now: float) -> None:
        due, turns = self._pool_probe_at(key)
        if due == when:
            self._issue_first(turns, when, now, early=True)

    def _permit_unspent(self, config_id: str, when: float, now: float) -> None:
        """Withdraw an unspent permit of a shared row: its pool has no demand, and other configs wait for the answer."""
        config, row = self.config(config_id), self.row(config_id)
        if config is None or row is None or not row.ready or row.spent:
            return
        if when != row.permit_at + self.policy(config).permit_seconds:
            return
        waiting = [(k, name, trip) for k, name, trip in self.trips_on(config) if trip.probe == _probe(config, row)]
        others = {other for key, _, _ in waiting if key != config_id for other in self.members(key)} - {config_id}
        if any((other := self.config(c)) is not None and other.active for c in others):
            self._set_permit(config_id, ready=False, unanswered_at=now)
            for key, name, trip in waiting:
                self._set_trip(key, name, trips.released(trip, now))

    def _permit_lost(self, config_id: str, when: float, now: float) -> None:
        """Abandon a probe after too long without news of it."""
        config, row = self.config(config_id), self.row(config_id)
        if config is None or row is None or not row.ready or row.lost_at != when:
            return
        if any(trip.probe == _probe(config, row) for _, _, trip in self.trips_on(config)):
            self.abandon_probe(config_id, row.permit, now)

    def _extend_permit(self, config: Config, permit: int | None, at: float) -> None:
        """Postpone the loss of the newest permit after an event of its holder."""
        row = self.row(config.id)
        if row is not None and row.ready and permit == row.permit:
            lost_at = at + self.policy(config).probe_timeout_seconds
            self.rows[config.id] = replace(row, version=row.version + 1, lost_at=lost_at)
            self._schedule(lost_at, "lost", config.id)

    def _late(self, worker_id: str, when: float, now: float) -> None:
        """Count a boot that takes too long as failed until it ends."""
        boot = self.boot(worker_id)
        config = self.config(boot.config_id) if boot is not None else None
        if boot is None or config is None or boot.late or boot.late_at != when:
            return
        self.boots[worker_id] = replace(boot, late=True, late_at=now)
        failure = Failure(
            now, Scope.IMAGE, "late", True, worker_id, late=True, instance_id=boot.instance_id, console=boot.console
        )
        for key in (boot.image, config.id):
            self._charge(config, key, "boot", now, failure, place=True)
            row = self.row(key)
            if row is not None:
                self._set(key, "boot", replace(row.boot, late=row.boot.late + 1))
        if boot.permit is not None:
            self._settle(config, boot.permit, now, LATE, (boot.image, config.id), ended=True)

    def _expire(self, key: str, when: float, now: float) -> None:
        signal = self.live_signal(key)
        if signal is not None and signal.until == when:
            self.set_signal(key, None)
            self._touched.update(signal.configs)

    def _forget(self, config_id: str, when: float, now: float) -> None:
        config = self.config(config_id)
        if config is None or not config.archived_at or config.archived_at + FORGOTTEN_AFTER_SECONDS != when:
            return
        self._remove_config(config, config.groups)
        self.configs[config_id] = self.rows[config_id] = None
        boots = {**self.world.boots, **self.boots}
        self.boots |= {id_: None for id_, boot in boots.items() if boot is not None and boot.config_id == config_id}

    # Events

    def _requested(self, config: Config, event: worker.WorkerRequested, at: float) -> None:
        if event.probe_permit is None:
            return
        row = self.row(config.id)
        if row is None or event.probe_permit != row.permit or row.spent:
            return
        lost_at = at + self.policy(config).probe_timeout_seconds
        self._set_permit(config.id, ready=True, spent=True, lost_at=lost_at)
        # If the permit was withdrawn meanwhile, it covers the trips again that no other probe covers.
        for key, name, trip in self.trips_on(config):
            if not trip.probe:
                self._set_trip(key, name, trips.issued(trip, _probe(config, row), at))

    def _delayed(self, config: Config, event: worker.WorkerDelayed, at: float) -> None:
        self._extend_permit(config, event.probe_permit, at)

    def _launched(self, config: Config, event: worker.WorkerLaunched, at: float) -> None:
        worker_id, outcome, boots = event.worker_id, event.outcome, self.boots
        if outcome.stage is LAUNCH and outcome.result is OK:
            self._succeed(config, "launch", at)
        if (boots[worker_id] if worker_id in boots else self.world.boots.get(worker_id)) is not None:
            boots[worker_id] = None  # it registered before the reply
        elif not event.leaving:
            late_at = at + self.late_seconds(config)
            boots[worker_id] = Boot(
                config.id,
                config.shared["image"],
                at,
                late_at,
                event.instance_id,
                event.probe_permit,
                False,
                event.console,
            )
            heappush(self.world.timers, (late_at, "boot", worker_id))
            self._extend_permit(config, event.probe_permit, late_at)
        if event.probe_permit is not None:
            self._settle(config, event.probe_permit, at, outcome, ())

    def _launch_failed(self, config: Config, event: worker.WorkerLaunchFailed, at: float) -> None:
        self._fail(config, event, event.outcome, at)

    def _registered(self, config: Config, event: worker.WorkerRegistered, at: float) -> None:
        outcome, boot = event.outcome, self.boot(event.worker_id)
        came = outcome.stage is BOOT and outcome.result is OK
        if boot is not None:
            self._end_boot(config, event.worker_id, boot, at, came=came)
        elif came:
            self.boots[event.worker_id] = Boot(config.id, config.shared["image"], at, 0.0)  # the reply is still to come
        if not came:
            self._fail(config, event, outcome, at)  # terminated before it registered
            return
        self._succeed(config, "boot", at, event.boot_seconds)
        if boot is not None and boot.late and boot.permit is not None:
            # A probe that counted as failed because it was late has succeeded.
            for key, name, _ in self.trips_on(config):
                if name == "boot" and key in (boot.image, config.id):
                    self._recover(config, key, name, at)
        if event.probe_permit is not None:
            self._extend_permit(config, event.probe_permit, at)
            self._settle(config, event.probe_permit, at, outcome, ())

    def _claimed(self, config: Config, event: worker.WorkerClaimed, at: float) -> None:
        if event.outcome is not None and event.outcome.result is OK:
            self._succeed(config, "claim", at)
            if event.probe_permit is not None:
                self._settle(config, event.probe_permit, at, event.outcome, ())

    def _ended(self, config: Config, event: worker.WorkerStopping | worker.WorkerLost, at: float) -> None:
        """Handle the end of a worker; its outcome is None if the end was our own doing."""
        boot, outcome = self.boot(event.worker_id), event.outcome
        if boot is not None and outcome is not None and outcome.stage is BOOT:
            charged = self._charged_keys(config, outcome)
            failure = _failure(event, outcome, at)
            self._end_boot(config, event.worker_id, boot, at, failure=failure, charged=charged)
            self._fail(config, event, outcome, at, already_charged=(boot.image, config.id) if boot.late else ())
        else:
            if boot is not None:
                self._end_boot(config, event.worker_id, boot, at)
            if outcome is not None or event.probe_permit is not None:
                self._fail(config, event, outcome, at)

    def _stopped(self, config: Config, event: worker.WorkerStopped, at: float) -> None:
        boot = self.boot(event.worker_id)
        if boot is not None:
            self._end_boot(config, event.worker_id, boot, at)
        if event.probe_permit is not None:
            self._settle(config, event.probe_permit, at, None, (), ended=True)

    def _end_boot(
        self,
        config: Config,
        worker_id: str,
        boot: Boot,
        at: float,
        *,
        came: bool = False,
        failure: Failure | None = None,
        charged: tuple[str, ...] = (),
    ) -> None:
        """Handle the end of a boot. A late one stays a failure of the `charged` keys and is withdrawn elsewhere.

        A row that tripped by late boots alone recovers only when one of them has registered (`came`).
        """
        self.boots[worker_id] = None
        if not boot.late:
            return
        policy = self.policy(config)
        for key in (boot.image, config.id):
            row = self.row(key)
            if row is None:
                continue
            stage, late = row.boot, max(0, row.boot.late - 1)
            if failure is not None and key in charged:
                self._set_trip(key, "boot", trips.confirmed(stage.trip, failure), late=late)
                continue
            mass = evidence.remaining(max(0.0, stage.at - boot.late_at), policy)
            trip, window = trips.withdrawn(stage.trip, worker_id), stage.window
            if came and trips.unfounded(trip, late, policy.trip_boot):
                trip, window = trips.recovered(trip, at), policy.recovered_window
            self._set_trip(
                key,
                "boot",
                trip,
                failures=max(0.0, stage.failures - mass),
                place_failures=max(0.0, stage.place_failures - mass),
                failed=max(0, stage.failed - 1),
                late=late,
                window=window,
            )

    def _charged_keys(self, config: Config, outcome: Outcome) -> tuple[str, ...]:
        """Keys that a failed outcome is charged to; none for a stage that is not evaluated."""
        if outcome.stage.value not in config.stages:
            return ()
        return blame.charged(outcome, config.id, config.shared, self.members)

    def _fail(
        self,
        config: Config,
        event: WorkerEvent,
        outcome: Outcome | None,
        at: float,
        *,
        already_charged: tuple[str, ...] = (),
    ) -> None:
        """Record a failed outcome or an end without one. Every failure counts as folded, whatever its scope."""
        charged: tuple[str, ...] = ()
        if outcome is not None and outcome.result is FAILED and outcome.stage is not worker.Stage.UNKNOWN:
            name, charged = outcome.stage.value, self._charged_keys(config, outcome)
            failure = _failure(event, outcome, at)
            for key in charged:
                if key not in already_charged:
                    self._charge(config, key, name, at, failure, place=outcome.scope in blame.PLACE)
            row = self.row(config.id)
            if row is not None:
                stage: Stage = getattr(row, name)
                self._set(config.id, name, replace(stage, folded=stage.folded + 1))
        if event.probe_permit is not None:
            self._settle(config, event.probe_permit, at, outcome, charged, ended=True)

    def _settle(
        self,
        config: Config,
        permit: int,
        at: float,
        outcome: Outcome | None,
        charged: tuple[str, ...],
        *,
        ended: bool = False,
    ) -> None:
        """Resolve the trips that wait for the newest permit; `ended`: no more events of its holder will arrive."""
        row = self.row(config.id)
        if row is None or permit != row.permit:
            return
        probe, policy = _probe(config, row), self.policy(config)
        resolved = answered = False
        for key, name, trip in self.trips_on(config):
            if trip.probe != probe:
                continue
            decisive = outcome is not None and outcome.stage.value == name
            if decisive and outcome is not None and outcome.result is OK:
                self._recover(config, key, name, at)
                answered = True
            elif decisive and outcome is not None and key in charged:
                self._set_trip(key, name, trips.probe_failed(trip, outcome.code, at, policy))
                answered = True
            elif ended:
                self._set_trip(key, name, trips.unanswered(trip, at, policy))
            else:
                continue
            resolved = True
        if row.ready and (resolved or ended):
            self._set_permit(config.id, ready=False, unanswered_at=0.0 if answered else at)

    def late_seconds(self, config: Config) -> float:
        """Seconds after which a boot counts as late, from the boots observed of this config."""
        policy, row = self.world.policies[config.profile], self.row(config.id)
        if row is None or not row.slow_seconds:
            return policy.late_seconds
        return max(policy.late_min_seconds, policy.late_factor * row.slow_seconds)


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


def _failure(event: WorkerEvent, outcome: Outcome, at: float) -> Failure:
    return Failure(
        at,
        outcome.scope,
        outcome.code[:CODE_LENGTH_MAX],
        outcome.classified,
        event.worker_id,
        instance_id=getattr(event, "instance_id", ""),
        console=getattr(event, "console", ""),
        sample=outcome.sample,
    )


def _probe(config: Config, row: Row) -> str:
    """Name of a config's newest permit, as trips hold it."""
    return f"{config.id}#{row.permit}"


def _unanswered_since(row: Row, tripped_at: float) -> float:
    """Time at which a permit ended without an answer since the trip, else 0.

    Such a config comes after all others, otherwise one without demand would block them again and again.
    """
    return row.unanswered_at if row.unanswered_at > tripped_at else 0.0


def _is_probed(trip: Trip, config: Config, row: Row) -> bool:
    """True if a probe is in flight or permitted, other than by the config's own unspent permit."""
    return trip.probe != "" and not (row.ready and not row.spent and trip.probe == _probe(config, row))


def _trip_threshold(name: str, policy: Policy) -> int:
    trip: int = getattr(policy, f"trip_{name}")
    return trip


def _own_copy(mine: dict[str, set[str]], theirs: Mapping[str, set[str]], key: str) -> set[str]:
    """A set of the draft's own, which may be changed."""
    if key not in mine:
        mine[key] = set(theirs.get(key, ()))
    return mine[key]


def _merge(theirs: dict[str, Any], ours: Mapping[str, Any]) -> None:
    for key, value in ours.items():
        if value is None:
            theirs.pop(key, None)
        else:
            theirs[key] = value


_EVENT_HANDLERS: Final[dict[type[Any], Callable[[Draft, Config, Any, float], None]]] = {
    worker.WorkerRequested: Draft._requested,
    worker.WorkerDelayed: Draft._delayed,
    worker.WorkerLaunched: Draft._launched,
    worker.WorkerLaunchFailed: Draft._launch_failed,
    worker.WorkerRegistered: Draft._registered,
    worker.WorkerClaimed: Draft._claimed,
    worker.WorkerStopping: Draft._ended,
    worker.WorkerStopped: Draft._stopped,
    worker.WorkerLost: Draft._ended,
}
_TIMER_HANDLERS: Final[dict[str, Callable[[Draft, str, float, float], None]]] = {
    "probe": Draft._probe_due,
    "pool": Draft._pool_probe_due,
    "permit": Draft._permit_unspent,
    "lost": Draft._permit_lost,
    "boot": Draft._late,
    "signal": Draft._expire,
    "forget": Draft._forget,
}
