"""All that is known, as one value, and the only ways in which it changes: declare, fold, signal, advance. Pure.

A Draft is what one commit changes; the World beneath it stays as it is until the draft is committed. Everything in it
follows from the state, the events and the instants given, so that the same journal gives the same rows: whatever could
happen by time alone has an entry in `World.agenda`, derived from the state, and is done by the first `advance` at or
behind its instant.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from math import ceil, exp2
from typing import Any, Final

import msgspec

from slipway_common.events import worker
from slipway_common.events.launch_config import LaunchConfigArchived, LaunchConfigState
from slipway_common.events.signal import SignalRaised
from slipway_common.events.worker import Outcome, Result, Scope, WorkerEvent
from slipway_weight_calculator.domain import blame, evidence, gates, windows
from slipway_weight_calculator.domain import signals as opinions
from slipway_weight_calculator.domain.evidence import Stage
from slipway_weight_calculator.domain.gates import CODE_LENGTH_MAX, OPEN, Failure, Gate
from slipway_weight_calculator.domain.policy import DEFAULT_PROFILE, PROFILES, Policy
from slipway_weight_calculator.domain.rows import STAGES, Boot, Config, Row, config_of, introduced, new_row, with_stage
from slipway_weight_calculator.domain.signals import Signal

FORGET_SECONDS: Final = 8 * 86_400.0  # an archived config's last workers have ended by then
BAD_LUCK: Final = Outcome(worker.Stage.BOOT, Result.FAILED, Scope.IMAGE, "", "late")

Sum = tuple[float, float, float]
"""Successes, placed failures and their instant: what the children of a parent have seen together."""


class World:
    """Values by key. `rows` are keyed by config id or shared key; `boots` by worker id; `signals` by their own key.

    The rest is derived from these: `members` (who is in a pool, or shares a key), `sums` (what parents have seen),
    `agenda` (instants at which time alone may change something).
    """

    def __init__(self, policies: Mapping[str, Policy] = PROFILES) -> None:
        self.policies = policies
        self.configs: dict[str, Config] = {}
        self.rows: dict[str, Row] = {}
        self.boots: dict[str, Boot] = {}
        self.signals: dict[str, Signal] = {}
        self.members: dict[str, set[str]] = {}
        self.sums: dict[str, Sum] = {}
        self.agenda: list[tuple[float, str, str]] = []

    def policy(self, config: Config) -> Policy:
        return self.policies.get(config.declared.profile) or self.policies[DEFAULT_PROFILE]

    def due(self) -> float | None:
        """The next instant at which `advance` may change something."""
        return self.agenda[0][0] if self.agenda else None

    def load(
        self, configs: Iterable[Config], rows: Mapping[str, Row], boots: Mapping[str, Boot],
        signals: Mapping[str, Signal],
    ) -> None:  # fmt: skip
        """Take over stored values into an empty world, and derive the rest from them."""
        for config in configs:
            self.configs[config.id] = config
            for key in (f"pool/{config.declared.pool_id}", *config.keys[1:]):
                self.members.setdefault(key, set()).add(config.id)
        self.rows.update(rows)
        self.boots.update(boots)
        self.signals.update(signals)
        draft = Draft(self)
        for config in self.configs.values():
            if config.id in self.rows:
                draft.count_in(config)
            draft.remind(config)
        for worker_id, boot in self.boots.items():
            if boot.late_at and not boot.late:
                heappush(self.agenda, (boot.late_at, "boot", worker_id))
        for key, signal in self.signals.items():
            heappush(self.agenda, (signal.until, "signal", key))
        self.sums.update(draft.sums)


class Draft:
    """What one commit changes, over a world that it leaves alone until `commit`.

    `configs`, `rows`, `boots` and `signals` hold the changed values by key; None: deleted. `seen` maps a config to the
    positions behind the newest events folded for it. `refused` counts signals without effect by their reason.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.configs: dict[str, Config | None] = {}
        self.rows: dict[str, Row | None] = {}
        self.boots: dict[str, Boot | None] = {}
        self.signals: dict[str, Signal | None] = {}
        self.sums: dict[str, Sum] = {}
        self.seen: dict[str, dict[str, int]] = {}
        self._members: dict[str, set[str]] = {}
        self._done: list[tuple[float, str, str]] = []

    # Reading: the draft's value, else the world's.

    def config(self, config_id: str) -> Config | None:
        return self.configs[config_id] if config_id in self.configs else self.world.configs.get(config_id)

    def row(self, key: str) -> Row | None:
        row = self.rows.get(key)
        return row if row is not None or key in self.rows else self.world.rows.get(key)

    def boot(self, worker_id: str) -> Boot | None:
        return self.boots[worker_id] if worker_id in self.boots else self.world.boots.get(worker_id)

    def signal_of(self, key: str) -> Signal | None:
        return self.signals[key] if key in self.signals else self.world.signals.get(key)

    def live_signals(self) -> Iterator[tuple[str, Signal]]:
        for key in sorted({*self.world.signals, *self.signals}):
            if (signal := self.signal_of(key)) is not None:
                yield key, signal

    def members(self, key: str) -> set[str]:
        """Ids of the configs of a pool ("pool/id") or of those that share a key."""
        return self._members.get(key) or self.world.members.get(key) or set()

    def sum_of(self, key: str) -> Sum:
        return self.sums.get(key) or self.world.sums.get(key) or (0.0, 0.0, 0.0)

    def policy(self, config: Config) -> Policy:
        return self.world.policy(config)

    def closing(self, config: Config) -> list[tuple[str, str, Gate]]:
        """Key, stage and gate of everything that closes a config."""
        found = []
        for key in config.keys:
            row = self.row(key)
            if row is not None:
                for name in STAGES:
                    gate: Gate = getattr(row, name).gate
                    if gate.closed_at > 0:
                        found.append((key, name, gate))
        return found

    # Changing: declarations, events, opinions, time.

    def declare(self, state: LaunchConfigState, now: float) -> None:
        """Create or change a config; a state of a lower revision than the known one's changes nothing."""
        known = self.config(state.launch_config_id)
        if known is not None and state.revision < known.declared.revision:
            return
        archived = state.state == "archived"
        since = (known.archived_at if known is not None else 0.0) or now if archived else 0.0
        config = config_of(state, archived_at=since)
        if known is not None:
            self._leave(known)
        self._join(config)
        if archived:
            self._at(since + FORGET_SECONDS, "forget", config.id)
        self.remind(config)

    def archive(self, config_id: str, now: float) -> None:
        """A tombstone says it too. Outcomes of its last workers are still to come."""
        config = self.config(config_id)
        if config is not None and config.declared.state != "archived":
            fields = msgspec.structs.asdict(config.declared) | {"state": "archived"}
            self.declare(LaunchConfigArchived(**fields), now)

    def fold(self, event: WorkerEvent, at: float, place: str = "", next_offset: int = 0) -> None:
        """One event of a worker at the time of the fact, in seconds since the epoch; most of its life moves nothing.

        `place` and `next_offset` say where in the log: a record tells up to where it has seen.
        """
        moves = _MOVES.get(type(event))
        if moves is None:
            return
        config = self.config(event.launch_config_id)
        if config is None:
            config = introduced(event)
            self._join(config)
        moves(self, config, event, at)
        if place:
            self.seen.setdefault(config.id, {})[place] = next_offset

    def signal(self, event: SignalRaised, at: float, rules: opinions.Rules = opinions.DEFAULT_RULES) -> str:
        """One opinion from outside, heard at `at`; returns why it has no effect, empty if it has."""
        configs = {c: known for c in {*self.world.configs, *self.configs} if (known := self.config(c)) is not None}
        reached = opinions.reached(event, configs)
        held = dict(self.live_signals())
        problem = opinions.problem(event, reached, configs, held, at, rules)
        if problem:
            return problem
        if event.kind == "recovered":
            for key in opinions.lifted(event, held):
                self.signals[key] = None
            for config_id in sorted(reached):
                self._pull(configs[config_id], at)
            return ""
        key, signal = opinions.kept(event, reached, at)
        self.signals[key] = signal
        self._at(signal.until, "signal", key)
        return ""

    def advance(self, now: float) -> None:
        """What time alone changes up to `now`: permits that are due, starts that are late, opinions that expire."""
        agenda = self.world.agenda
        while agenda and agenda[0][0] <= now:
            entry = heappop(agenda)
            self._done.append(entry)
            _TIMERS[entry[1]](self, entry[2], entry[0], now)

    def commit(self) -> None:
        """Make it the world's; after the database has committed."""
        world = self.world
        for theirs, ours in ((world.configs, self.configs), (world.rows, self.rows), (world.boots, self.boots),
                             (world.signals, self.signals)):  # fmt: skip
            _merge(theirs, ours)
        world.sums.update(self.sums)
        world.members.update(self._members)

    def discard(self) -> None:
        """Forget it: what time has done in it is still to be done. Entries that were added find nothing to do."""
        for entry in self._done:
            heappush(self.world.agenda, entry)

    # Who belongs to what

    def _join(self, config: Config) -> None:
        self.configs[config.id] = config
        for key in (f"pool/{config.declared.pool_id}", *config.keys[1:]):
            if key not in self._members:
                self._members[key] = set(self.members(key))
            self._members[key].add(config.id)
        if self.row(config.id) is None:
            self.rows[config.id] = new_row(self.policy(config))
        else:
            self.count_in(config)

    def _leave(self, config: Config) -> None:
        for key in (f"pool/{config.declared.pool_id}", *config.keys[1:]):
            self._members[key] = self.members(key) - {config.id}
        self.count_in(config, sign=-1.0)

    def count_in(self, config: Config, sign: float = 1.0) -> None:
        """Add a config's masses to its parents', or take them out."""
        row, policy = self.row(config.id), self.policy(config)
        if row is None:
            return
        for name in STAGES:
            stage: Stage = getattr(row, name)
            if stage.at:
                self._sum(config.parents[name], sign * stage.successes, sign * stage.placed, stage.at, policy)

    def _sum(self, parents: Iterable[str], successes: float, placed: float, at: float, policy: Policy) -> None:
        for key in parents:
            had, failed, then = self.sum_of(key)
            if at > then:
                share = exp2((then - at) / policy.half_life_seconds)
                self.sums[key] = (had * share + successes, failed * share + placed, at)
            else:
                share = exp2((at - then) / policy.half_life_seconds)
                self.sums[key] = (had + successes * share, failed + placed * share, then)

    # Evidence, windows and gates of one stage of one row

    def _charge(
        self, config: Config, key: str, name: str, at: float, failure: Failure | None, *, placed: bool = False
    ) -> None:
        """One success (no `failure`) or one charged failure of a row's stage."""
        policy = self.policy(config)
        row = self.row(key) or new_row(policy, at)
        stage: Stage = getattr(row, name)
        gate, ok_at, window = stage.gate, stage.ok_at, stage.window
        successes, failures, place, newest = evidence.added(
            stage, success=0.0 if failure else 1.0, failure=1.0 if failure else 0.0, placed=1.0 if placed else 0.0,
            at=at, policy=policy,
        )  # fmt: skip
        if failure is None:
            ok_at = at if at > ok_at else ok_at
            if gate is not OPEN:
                gate = gates.succeeded(gate, ok_at)
            if gate.closed_at == 0:
                window = windows.grown(window, name, policy)
        else:
            if gate.closed_at == 0:
                window = windows.shrunk(window, name, policy)
            if at >= ok_at:
                gate = gates.failed(gate, failure, self._trip(name, policy), key, policy)
        after = Stage(
            successes, failures, place, newest, stage.succeeded + (failure is None),
            stage.failed + (failure is not None), stage.folded, window, ok_at, stage.late, gate,
        )  # fmt: skip
        self.rows[key] = with_stage(row, name, after)
        if key == config.id:
            had, _, had_placed = evidence.masses(stage, newest, policy)
            self._sum(config.parents[name], successes - had, place - had_placed, newest, policy)
        if gate.closed_at > 0 and stage.gate.closed_at == 0:
            self._gate_changed(key)

    @staticmethod
    def _trip(name: str, policy: Policy) -> int:
        return {"launch": policy.trip_launch, "boot": policy.trip_boot, "claim": policy.trip_claim}[name]

    def _set_gate(self, key: str, name: str, gate: Gate, **changes: Any) -> None:
        row = self.row(key)
        if row is not None:
            stage = msgspec.structs.replace(getattr(row, name), gate=gate, **changes)
            self.rows[key] = with_stage(row, name, stage)
            self._gate_changed(key)

    def _open(self, config: Config, key: str, name: str, at: float) -> None:
        """A probe has succeeded. What failed while it was closed belonged to the outage that has ended: each failed
        probe halves what it weighs from now on."""
        policy = self.policy(config)
        row = self.row(key)
        if row is None:
            return
        stage: Stage = getattr(row, name)
        kept, gate = exp2(-float(stage.gate.failed_probes)), stage.gate
        if key == config.id and stage.at:
            self._sum(config.parents[name], 0.0, stage.placed * (kept - 1.0), stage.at, policy)
        self._set_gate(
            key, name, gates.opened(gate, at), failures=stage.failures * kept, placed=stage.placed * kept,
            window=policy.reopened_window,
        )  # fmt: skip
        if name == "launch":
            self._pull_siblings(config, gate.closed_at, at)

    def _pull_siblings(self, config: Config, closed_at: float, at: float) -> None:
        """An outage that began together may have ended together."""
        for other_id in sorted(self.members(f"pool/{config.declared.pool_id}")):
            other = self.config(other_id)
            row = self.row(other_id)
            if other is None or row is None or other_id == config.id:
                continue
            gate = row.launch.gate
            if gate.closed and abs(gate.closed_at - closed_at) <= self.policy(other).sibling_seconds:
                self._pull(other, at)

    def _pull(self, config: Config, at: float) -> None:
        """Have a closed config probed at `at` rather than later."""
        for key, name, gate in self.closing(config):
            sooner = gates.pulled(gate, at)
            if sooner is not gate:
                self._set_gate(key, name, sooner)

    # The agenda

    def _at(self, when: float, kind: str, key: str) -> None:
        heappush(self.world.agenda, (when, kind, key))

    def _gate_changed(self, key: str) -> None:
        """Everything that may be due because of it is on the agenda again."""
        for config_id in sorted(self.members(key)) if "/" in key else [key]:
            if (config := self.config(config_id)) is not None:
                self.remind(config)

    def remind(self, config: Config) -> None:
        """Put on the agenda what a config's gates, its permit and its pool wait for."""
        closing = self.closing(config)
        if not closing:
            return
        for key, _, gate in closing:
            if gate.next_probe_at:
                self._at(gate.next_probe_at, "gate", key)
        row = self.row(config.id)
        if row is not None and row.ready and not row.spent and any(key != config.id for key, _, _ in closing):
            self._at(row.permit_at + self.policy(config).permit_seconds, "permit", config.id)
        due = self._pool_due(config.declared.pool_id)
        if due is not None:
            self._at(due, "pool", config.declared.pool_id)

    def _gate_due(self, key: str, when: float, now: float) -> None:
        row = self.row(key)
        if row is None or not any(getattr(row, name).gate.next_probe_at == when for name in STAGES):
            return
        members = self.members(key) if "/" in key else {key}
        for _, config_id in sorted((self._permit_at(c), c) for c in members):
            config = self.config(config_id)
            if config is not None and self._issue(config, now):
                return

    def _permit_at(self, config_id: str) -> float:
        row = self.row(config_id)
        return row.permit_at if row is not None else 0.0

    def _issue(self, config: Config, now: float, *, early: bool = False) -> bool:
        """Issue a permit if everything that closes the config is due (or `early`) and none has a probe unresolved."""
        row, closing = self.row(config.id), self.closing(config)
        if row is None or not closing or not config.active or any(gate.probe for _, _, gate in closing):
            return False
        if not early and any(gate.next_probe_at > now for _, _, gate in closing):
            return False
        permit = row.permit + 1
        self.rows[config.id] = msgspec.structs.replace(
            row, permit=permit, permit_at=now, ready=True, spent=False, version=row.version + 1
        )
        for key, name, gate in closing:
            self._set_gate(key, name, gates.issued(gate, f"{config.id}#{permit}", now))
        return True

    def _pool_due(self, pool_id: str) -> float | None:
        """When a pool of which everything is closed is owed its next probe; None while anything is open."""
        latest, every = 0.0, None
        for config_id in self.members(f"pool/{pool_id}"):
            config = self.config(config_id)
            if config is None or not config.active:
                continue
            closing = self.closing(config)
            if not closing:
                return None
            latest = max(latest, self._permit_at(config_id), *(max(g.closed_at, g.probe_at) for _, _, g in closing))
            every = self.policy(config).pool_probe_seconds
        return None if every is None else latest + every

    def _pool_owed(self, pool_id: str, when: float, now: float) -> None:
        """While all active configs of a pool are closed by their launches, one attempt is owed per 30 s, whatever the
        delay of each has grown to. A permit that waits for demand holds up only its own config."""
        due = self._pool_due(pool_id)
        if due is None or due > now:
            return
        waiting = []
        for config_id in self.members(f"pool/{pool_id}"):
            config = self.config(config_id)
            closing = self.closing(config) if config is not None else []
            if closing and all(name == "launch" and not gate.probe for _, name, gate in closing):
                waiting.append((max(gate.next_probe_at for _, _, gate in closing), config_id))
        for _, config_id in sorted(waiting):
            config = self.config(config_id)
            if config is not None and self._issue(config, now, early=True):
                return

    def _permit_unspent(self, config_id: str, when: float, now: float) -> None:
        """Nobody has spent a permit of a shared gate: its pool has no demand, and others wait for the answer."""
        config, row = self.config(config_id), self.row(config_id)
        if config is None or row is None or not row.ready or row.spent:
            return
        if when != row.permit_at + self.policy(config).permit_seconds:
            return
        held = [(k, n, g) for k, n, g in self.closing(config) if g.probe == f"{config_id}#{row.permit}"]
        if any(key != config_id for key, _, _ in held) and self._another(config, held):
            self.rows[config_id] = msgspec.structs.replace(row, ready=False, version=row.version + 1)
            for key, name, gate in held:
                self._set_gate(key, name, msgspec.structs.replace(gate, probe="", next_probe_at=now))

    def _another(self, config: Config, held: Iterable[tuple[str, str, Gate]]) -> bool:
        """Whether some other active config shares a gate that a config's permit holds up."""
        shared = {other for key, _, _ in held if key != config.id for other in self.members(key)} - {config.id}
        return any((other := self.config(c)) is not None and other.active for c in shared)

    def _late(self, worker_id: str, when: float, now: float) -> None:
        """A boot that takes too long counts as failed, until it ends one way or the other."""
        boot = self.boot(worker_id)
        if boot is None or boot.late or boot.late_at != when:
            return
        config = self.config(boot.config_id)
        if config is None:
            return
        self.boots[worker_id] = msgspec.structs.replace(boot, late=True)
        failure = Failure(
            now, Scope.IMAGE, "late", True, worker_id, late=True, instance_id=boot.instance_id, console=boot.console
        )
        for key in (boot.image, config.id):
            self._charge(config, key, "boot", now, failure, placed=True)
            self._count_late(key, 1)
        if boot.permit is not None:
            self._settle(config, boot.permit, now, BAD_LUCK, (boot.image, config.id), ended=True)

    def _count_late(self, key: str, by: int) -> None:
        row = self.row(key)
        if row is not None:
            self.rows[key] = with_stage(row, "boot", msgspec.structs.replace(row.boot, late=row.boot.late + by))

    def _expire(self, key: str, when: float, now: float) -> None:
        signal = self.signal_of(key)
        if signal is not None and signal.until == when:
            self.signals[key] = None
            for config_id in sorted(signal.configs):
                if (config := self.config(config_id)) is not None:
                    self.remind(config)

    def _forget(self, config_id: str, when: float, now: float) -> None:
        config = self.config(config_id)
        if config is None or not config.archived_at or config.archived_at + FORGET_SECONDS != when:
            return
        self._leave(config)
        self.configs[config_id] = self.rows[config_id] = None
        for key in config.keys[1:]:
            if not self.members(key):
                self.rows[key] = None

    # Events

    def _launched(self, config: Config, event: worker.WorkerLaunched, at: float) -> None:
        self._succeed(config, "launch", at)
        if self.boot(event.worker_id) is not None:
            self.boots[event.worker_id] = None  # it had registered before the reply
        elif config.declared.boot_evidence:
            late_at = at + self.late_seconds(config)
            self.boots[event.worker_id] = Boot(
                config.id, config.shared["image"], at, late_at, event.instance_id, event.probe_permit,
                console=event.console,
            )  # fmt: skip
            self._at(late_at, "boot", event.worker_id)
        if event.probe_permit is not None:
            self._settle(config, event.probe_permit, at, event.outcome, ())

    def _launch_failed(self, config: Config, event: worker.WorkerLaunchFailed, at: float) -> None:
        self._fail(config, event, event.outcome, at)

    def _delayed(self, config: Config, event: worker.WorkerDelayed, at: float) -> None:
        outcome: Outcome | None = getattr(event, "outcome", None)
        self._fail(config, event, outcome, at)

    def _registered(self, config: Config, event: worker.WorkerRegistered, at: float) -> None:
        boot = self.boot(event.worker_id)
        if event.outcome.stage is not worker.Stage.BOOT:
            self._ended(config, event, at)  # told to leave before it came
            return
        if boot is None:
            self.boots[event.worker_id] = Boot(config.id, config.shared["image"], at, 0.0)
        else:
            self._withdraw(config, event.worker_id, boot, at)
        self._succeed(config, "boot", at, event.boot_seconds)
        if boot is not None and boot.late and boot.permit is not None:
            # A probe that was taken for failed has come after all.
            for key, name, _ in self.closing(config):
                if name == "boot" and key in (boot.image, config.id):
                    self._open(config, key, name, at)
        if event.probe_permit is not None:
            self._settle(config, event.probe_permit, at, event.outcome, ())

    def _claimed(self, config: Config, event: worker.WorkerClaimed, at: float) -> None:
        if event.outcome is not None and event.outcome.result is Result.OK:
            self._succeed(config, "claim", at)
            if event.probe_permit is not None:
                self._settle(config, event.probe_permit, at, event.outcome, ())

    def _requested(self, config: Config, event: worker.WorkerRequested, at: float) -> None:
        row = self.row(config.id)
        if row is not None and event.probe_permit is not None and event.probe_permit == row.permit and not row.spent:
            self.rows[config.id] = msgspec.structs.replace(row, spent=True, version=row.version + 1)

    def _ended(self, config: Config, event: Any, at: float) -> None:
        """Stopping, stopped or lost: an outcome if it ended a stage, none if that was our own doing."""
        boot = self.boot(event.worker_id)
        outcome: Outcome | None = getattr(event, "outcome", None)
        failed_boot = outcome is not None and outcome.result is Result.FAILED and outcome.stage is worker.Stage.BOOT
        was_late = False
        if boot is not None:
            charged = failed_boot and outcome is not None and bool(blame.charged(outcome, config.id, config.shared))
            was_late = boot.late and charged
            if was_late:
                self.boots[event.worker_id] = None
                for key in (boot.image, config.id):
                    self._count_late(key, -1)
            else:
                self._withdraw(config, event.worker_id, boot, at)
        self._fail(config, event, outcome, at, charged_already=was_late)

    def _withdraw(self, config: Config, worker_id: str, boot: Boot, at: float) -> None:
        """A boot is over; if it had been taken for failed, that is taken back."""
        self.boots[worker_id] = None
        if not boot.late:
            return
        policy = self.policy(config)
        for key in (boot.image, config.id):
            self._count_late(key, -1)
            row = self.row(key)
            if row is None:
                continue
            stage = row.boot
            mass = evidence.remaining(max(0.0, stage.at - boot.late_at), policy)
            placed = min(mass, stage.placed)
            if key == config.id:
                self._sum(config.parents["boot"], 0.0, -placed, stage.at, policy)
            gate = gates.withdrawn(stage.gate, worker_id, policy.trip_boot, at, policy)
            opens = stage.gate.closed and not gate.closed
            self._set_gate(
                key, "boot", gate, failures=max(0.0, stage.failures - mass), placed=stage.placed - placed,
                failed=stage.failed - 1, window=policy.reopened_window if opens else stage.window,
            )  # fmt: skip

    def _succeed(self, config: Config, name: str, at: float, boot_seconds: float | None = None) -> None:
        policy = self.policy(config)
        self._charge(config, config.id, name, at, None)
        for key in blame.praised(worker.Stage(name), config.shared):
            row = self.row(key)
            # At rest nothing is left to win: most launches end here.
            if row is None and name == "launch":
                continue
            stage: Stage | None = getattr(row, name) if row is not None else None
            if stage is None or stage.gate.run or stage.gate.unconfirmed or stage.gate.closed_at or stage.window < (
                windows.grown(stage.window, name, policy)
            ):
                self._charge(config, key, name, at, None)
        if boot_seconds is not None:
            row = self.row(config.id)
            if row is not None:
                boots = (*row.boots[1 - policy.boot_samples :], round(boot_seconds, 3))
                self.rows[config.id] = msgspec.structs.replace(row, boots=boots)

    def _fail(
        self, config: Config, event: WorkerEvent, outcome: Outcome | None, at: float, *, charged_already: bool = False
    ) -> None:
        """A worker's failed outcome, or its end without one. Every failure counts as folded, whatever its scope."""
        charged: tuple[str, ...] = ()
        if outcome is not None and outcome.result is Result.FAILED and outcome.stage is not worker.Stage.UNKNOWN:
            name = outcome.stage.value
            charged = blame.charged(outcome, config.id, config.shared)
            if not charged_already:
                failure = Failure(
                    at, outcome.scope, outcome.code[:CODE_LENGTH_MAX], outcome.classified, event.worker_id,
                    instance_id=getattr(event, "instance_id", ""), console=getattr(event, "console", ""),
                    sample=outcome.sample,
                )  # fmt: skip
                for key in charged:
                    self._charge(config, key, name, at, failure, placed=outcome.scope in blame.PLACE)
            row = self.row(config.id)
            if row is not None:
                stage: Stage = getattr(row, name)
                self.rows[config.id] = with_stage(row, name, msgspec.structs.replace(stage, folded=stage.folded + 1))
        if event.probe_permit is not None:
            self._settle(config, event.probe_permit, at, outcome, charged, ended=True)

    def _settle(
        self, config: Config, permit: int, at: float, outcome: Outcome | None, charged: tuple[str, ...], *,
        ended: bool = False,
    ) -> None:  # fmt: skip
        """What the holder of the newest permit has told each gate that waits for it."""
        row = self.row(config.id)
        if row is None or permit != row.permit:
            return
        probe, policy = f"{config.id}#{permit}", self.policy(config)
        told = False
        for key, name, gate in self.closing(config):
            if gate.probe != probe:
                continue
            decisive = outcome is not None and outcome.stage.value == name
            if decisive and outcome is not None and outcome.result is Result.OK:
                self._open(config, key, name, at)
            elif decisive and key in charged and outcome is not None:
                self._set_gate(key, name, gates.probe_failed(gate, outcome.code, at, policy))
            elif ended:
                self._set_gate(key, name, gates.given_back(gate, at, policy))
            else:
                continue
            told = True
        row = self.row(config.id)
        if row is not None and row.ready and (told or ended):
            self.rows[config.id] = msgspec.structs.replace(row, ready=False, version=row.version + 1)
            self.remind(config)

    def late_seconds(self, config: Config) -> float:
        """How long a boot may take before it counts as failed, by what was observed of this config."""
        policy, row = self.policy(config), self.row(config.id)
        if row is None or len(row.boots) < policy.late_samples:
            return policy.late_seconds
        place = max(0, ceil(policy.late_quantile * len(row.boots)) - 1)
        return max(policy.late_min_seconds, policy.late_factor * sorted(row.boots)[place])


def _merge(theirs: dict[str, Any], ours: Mapping[str, Any]) -> None:
    for key, value in ours.items():
        if value is None:
            theirs.pop(key, None)
        else:
            theirs[key] = value


_MOVES: Final[dict[type[Any], Callable[[Draft, Config, Any, float], None]]] = {
    worker.WorkerRequested: Draft._requested,
    worker.WorkerDelayed: Draft._delayed,
    worker.WorkerLaunched: Draft._launched,
    worker.WorkerLaunchFailed: Draft._launch_failed,
    worker.WorkerRegistered: Draft._registered,
    worker.WorkerClaimed: Draft._claimed,
    worker.WorkerStopping: Draft._ended,
    worker.WorkerStopped: Draft._ended,
    worker.WorkerLost: Draft._ended,
}
_TIMERS: Final[dict[str, Callable[[Draft, str, float, float], None]]] = {
    "gate": Draft._gate_due,
    "pool": Draft._pool_owed,
    "permit": Draft._permit_unspent,
    "boot": Draft._late,
    "signal": Draft._expire,
    "forget": Draft._forget,
}
