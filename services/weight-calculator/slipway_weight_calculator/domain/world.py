"""All that is known, as one value, and the only ways in which it changes: declare, fold, signal, advance. Pure.

A Draft is what one commit changes; the World beneath it stays as it is until the draft is committed. Everything in it
follows from the state, the events and the instants given, so that the same journal gives the same rows: whatever could
happen by time alone has an entry in `World.agenda`, derived from the state, and is done by the first `advance` at or
behind its instant. An entry whose instant is not what the state says does nothing, so it does not matter which entries
were left behind by a draft that was discarded, or were there before a restart.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from math import ceil, inf
from typing import Any, Final

from msgspec.structs import replace

from slipway_common.events import worker
from slipway_common.events.launch_config import LaunchConfigState
from slipway_common.events.signal import SignalRaised
from slipway_common.events.worker import Outcome, Result, Scope, WorkerEvent
from slipway_common.scopes import FORGOTTEN_AFTER_SECONDS, credential_key, image_key
from slipway_common.signal_rules import DEFAULT_RULES, Rules, is_provisioners
from slipway_weight_calculator.domain import blame, evidence, gates, windows
from slipway_weight_calculator.domain import signals as opinions
from slipway_weight_calculator.domain.evidence import Stage, Sum
from slipway_weight_calculator.domain.gates import CODE_LENGTH_MAX, Failure, Gate
from slipway_weight_calculator.domain.policy import DEFAULT_PROFILE, PROFILES, Policy
from slipway_weight_calculator.domain.rows import (
    STAGES,
    Boot,
    Config,
    Row,
    config_of,
    introduced,
    new_row,
    new_shared_row,
)
from slipway_weight_calculator.domain.signals import Signal

OK, FAILED = Result.OK, Result.FAILED
LAUNCH, BOOT = worker.Stage.LAUNCH, worker.Stage.BOOT
LATE: Final = Outcome(BOOT, FAILED, Scope.IMAGE, "", "late")
UNKNOWN: Final[Any] = object()  # a draft says nothing of a key; None: it has deleted the value

Closing = tuple[str, str, Gate]
"""Key, stage and gate of what closes a config."""
Entry = tuple[float, str, str]
"""Instant, kind and key of what time alone may do."""


class Policies(dict[str, Policy]):
    """By profile; the default one's is everybody's of whom none is known."""

    def __missing__(self, profile: str) -> Policy:
        return self[DEFAULT_PROFILE]


class World:
    """Values by key. `rows` are keyed by config id or shared key; `boots` by worker id; `signals` by their own key.

    The rest is derived from these: `members` (who is in a pool, or shares a key), `said` (keys of the signals on a
    config), `sums` (what places have seen), `agenda` (instants at which time alone may change something; `noted` are
    those of its entries that gates and permits wait for).
    """

    def __init__(self, policies: Mapping[str, Policy] = PROFILES) -> None:
        self.policies = Policies({**PROFILES, **policies})
        self.configs: dict[str, Config] = {}
        self.rows: dict[str, Row] = {}
        self.boots: dict[str, Boot] = {}
        self.signals: dict[str, Signal] = {}
        self.members: dict[str, set[str]] = {}
        self.said: dict[str, set[str]] = {}
        self.sums: dict[str, Sum] = {}
        self.agenda: list[Entry] = []
        self.noted: set[Entry] = set()

    def policy(self, config: Config) -> Policy:
        return self.policies[config.profile]

    def due(self) -> float | None:
        """The next instant at which `advance` may change something. To be asked between drafts.

        Nearly every probe is settled long before it would be lost, and nobody is woken for that.
        """
        agenda = self.agenda
        while agenda and agenda[0][1] == "lost" and not self._may_be_lost(*agenda[0]):
            self.noted.discard(heappop(agenda))
        return agenda[0][0] if agenda else None

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
        """Take over stored values into an empty world, and derive the rest from them."""
        draft = Draft(self)
        self.rows.update(rows)
        for config in configs:
            draft.join(config_of(config.declared, config.archived_at))  # what follows may follow otherwise by now
        draft.boots.update(boots)
        for key, signal in signals.items():
            draft.say(key, signal)
        for worker_id, boot in boots.items():
            if boot.late_at and not boot.late:
                heappush(self.agenda, (boot.late_at, "boot", worker_id))
        draft.commit()


class Draft:
    """What one commit changes, over a world that it leaves alone until `commit`.

    `configs`, `rows`, `boots` and `signals` hold the changed values by key; None: deleted. `seen` maps a config to the
    positions behind the newest events folded for it.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.configs: dict[str, Config | None] = {}
        self.rows: dict[str, Row | None] = {}
        self.boots: dict[str, Boot | None] = {}
        self.signals: dict[str, Signal | None] = {}
        self.seen: dict[str, dict[str, int]] = {}
        self._members: dict[str, set[str]] = {}
        self._said: dict[str, set[str]] = {}
        self._sums: dict[str, Sum] = {}
        self._counted: dict[str, tuple[Config | None, Row | None]] = {}  # of changed configs: as the sums know them
        self._stirred: set[str] = set()  # configs and shared keys of which the agenda knows less than the gates
        self._done: list[Entry] = []

    # Reading: the draft's value, else the world's.

    def config(self, config_id: str) -> Config | None:
        config: Config | None = self.configs.get(config_id, UNKNOWN)
        return self.world.configs.get(config_id) if config is UNKNOWN else config

    def row(self, key: str) -> Row | None:
        row: Row | None = self.rows.get(key, UNKNOWN)
        return self.world.rows.get(key) if row is UNKNOWN else row

    def boot(self, worker_id: str) -> Boot | None:
        boot: Boot | None = self.boots.get(worker_id, UNKNOWN)
        return self.world.boots.get(worker_id) if boot is UNKNOWN else boot

    def live_signal(self, key: str) -> Signal | None:
        signal: Signal | None = self.signals.get(key, UNKNOWN)
        return self.world.signals.get(key) if signal is UNKNOWN else signal

    def live_signals(self) -> Iterator[tuple[str, Signal]]:
        for key in sorted({*self.world.signals, *self.signals}):
            if (signal := self.live_signal(key)) is not None:
                yield key, signal

    def said(self, config_id: str) -> list[Signal]:
        """The opinions on a config, in order of their keys."""
        keys = self._said.get(config_id)
        found = [self.live_signal(key) for key in sorted(self.world.said.get(config_id, ()) if keys is None else keys)]
        return [signal for signal in found if signal is not None]

    def members(self, key: str) -> set[str]:
        """Ids of the configs of a pool ("pool/id") or of those that share a key."""
        members = self._members.get(key)
        return self.world.members.get(key, set()) if members is None else members

    def sum_of(self, key: str) -> Sum:
        """What all configs of a place have seen of a stage."""
        if self._counted:
            self._count()
        return self._sums.get(key) or self.world.sums.get(key) or evidence.NOTHING

    def policy(self, config: Config) -> Policy:
        return self.world.policies[config.profile]

    def closing(self, config: Config) -> list[Closing]:
        """Everything that closes a config."""
        found = []
        for key in config.keys:
            row = self.row(key)
            if row is not None:
                for name in config.stages:
                    gate: Gate = getattr(row, name).gate
                    if gate.closed_at > 0:
                        found.append((key, name, gate))
        return found

    def probe_is_ready(self, config: Config, closing: Iterable[Closing]) -> bool:
        """Whether the newest permit may be spent: everything that closes the config has to wait for its answer."""
        row = self.row(config.id)
        if row is None or not row.ready or row.spent:
            return False
        return all(gate.probe == _probe(config, row) for _, _, gate in closing)

    # Changing: declarations, events, opinions, time.

    def declare(self, state: LaunchConfigState, now: float) -> None:
        """Create or change a config; a state of a lower revision than the known one's changes nothing."""
        known, archived = self.config(state.launch_config_id), state.state == "archived"
        if known is not None and state.revision < known.declared.revision:
            return
        was_archived = known is not None and known.declared.state == "archived"
        since = 0.0 if not archived else known.archived_at if known is not None and was_archived else now
        config = config_of(state, archived_at=since)
        if known is None:
            self.join(config, now)
        elif config != known:
            self._release(known, config, now)
            self._leave(known, [key for key in known.groups if key not in config.groups])
            self.join(config)

    def archive(self, config_id: str, now: float) -> None:
        """A tombstone says it too. Outcomes of its last workers are still to come."""
        config = self.config(config_id)
        if config is not None and config.declared.state != "archived":
            self.declare(replace(config.declared, state="archived"), now)

    def fold(self, event: WorkerEvent, at: float, place: str = "", next_offset: int = 0) -> None:
        """One event of a worker at the time of the fact, in seconds since the epoch; most of its life moves nothing.

        `place` and `next_offset` say where in the log: a record tells up to where it has seen.
        """
        moves = _MOVES.get(type(event))
        if moves is None:
            return
        config_id = event.launch_config_id
        config: Config | None = self.configs.get(config_id, UNKNOWN)
        if config is UNKNOWN:
            config = self.world.configs.get(config_id)
        if config is None:
            config = introduced(event, at)
            self.join(config, at)
        moves(self, config, event, at)
        if place:
            seen = self.seen.get(config_id)
            if seen is None:
                seen = self.seen[config_id] = {}
            seen[place] = next_offset

    def signal(self, event: SignalRaised, at: float, rules: Rules = DEFAULT_RULES) -> str:
        """One opinion from outside, heard at `at`; returns why it has no effect, empty if it has, or if the effect is
        the provisioner's."""
        boot = self.boot(event.target_id) if event.target_kind == "worker" else None
        booting = boot.config_id if boot is not None else ""
        configs = self._concerned(event, booting)
        reached = opinions.reached(event, configs, booting)
        held = {signal.key: signal for id_ in configs for signal in self.said(id_) if signal.until > at}
        problem = opinions.problem(event, reached, configs, held, at, rules)
        if problem or is_provisioners(event):
            return problem
        self._stirred |= reached
        if event.kind == "recovered":
            for key in opinions.lifted(event, held):
                self._stirred.update(held[key].configs)
                self.say(key, None)
            for config_id in sorted(reached):
                self._pull(configs[config_id], STAGES, at, by=gates.asked)
        self.say(*opinions.kept(event, reached, at))
        return ""

    def recount(self, config_id: str, now: float, rules: Rules = DEFAULT_RULES) -> list[tuple[Signal, str]]:
        """After a config was declared otherwise: drop the words by which a source would close more than its share of a
        pool by now, the newest first. Returns them, and why."""
        dropped = []
        found = (self.world.configs.get(config_id), self.config(config_id))
        for pool_id in sorted({config.declared.pool_id for config in found if config is not None}):
            ids = sorted(self.members(f"pool/{pool_id}"))
            configs = {id_: config for id_ in ids if (config := self.config(id_)) is not None}
            held = {signal.key: signal for id_ in configs for signal in self.said(id_) if signal.until > now}
            for key, why in opinions.beyond_share(pool_id, configs, held, rules) if held else ():
                self._stirred.update(held[key].configs)
                self.say(key, None)
                dropped.append((held[key], why))
        return dropped

    def say(self, key: str, signal: Signal | None) -> None:
        """Keep an opinion, or drop it."""
        before = self.live_signal(key)
        for config_id in before.configs if before is not None else ():
            _own(self._said, self.world.said, config_id).discard(key)
        for config_id in signal.configs if signal is not None else ():
            _own(self._said, self.world.said, config_id).add(key)
        self.signals[key] = signal
        if signal is not None:
            heappush(self.world.agenda, (signal.until, "signal", key))

    def _concerned(self, event: SignalRaised, booting: str) -> dict[str, Config]:
        """The configs that a signal may reach, and the others of their pools, of which it may close a share only."""
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
        """Count a failure as seen that could not be folded, or no longer; a config that is not known has no count."""
        row = self.row(config_id) if self.config(config_id) is not None else None
        if row is not None:
            stage: Stage = getattr(row, name)
            self._set(config_id, name, replace(stage, folded=stage.folded + by))

    def give_up(self, config_id: str, permit: int, now: float) -> None:
        """Nobody will tell any more what the holder of a permit has come to."""
        config = self.config(config_id)
        if config is not None:
            self._settle(config, permit, now, None, (), ended=True)

    def advance(self, now: float) -> None:
        """What time alone changes up to `now`: permits that are due, starts that are late, opinions that expire."""
        self._note_what_is_due()
        agenda, noted = self.world.agenda, self.world.noted
        while agenda and agenda[0][0] <= now:
            entry = heappop(agenda)
            noted.discard(entry)
            self._done.append(entry)
            when, kind, key = entry
            _TIMERS[kind](self, key, when, now)
            if self._stirred:
                self._note_what_is_due()

    def commit(self) -> None:
        """Make it the world's; after the database has committed."""
        world = self.world
        if self._counted:
            self._count()
        self._note_what_is_due()
        _merge(world.configs, self.configs)
        _merge(world.rows, self.rows)
        _merge(world.boots, self.boots)
        _merge(world.signals, self.signals)
        _merge(world.members, {key: members or None for key, members in self._members.items()})
        _merge(world.said, {config_id: keys or None for config_id, keys in self._said.items()})
        world.sums.update(self._sums)

    def discard(self) -> None:
        """Forget it: what time has done in it is still to be done."""
        for entry in self._done:
            heappush(self.world.agenda, entry)

    # Who belongs to what

    def join(self, config: Config, at: float = 0.0) -> None:
        """Make it known under all that it shares; `at` is when, for one that has no row yet."""
        self._count_again(config.id)
        self.configs[config.id] = config
        for key in config.groups:
            if config.id not in self.members(key):
                _own(self._members, self.world.members, key).add(config.id)
        if self.row(config.id) is None:
            self.rows[config.id] = new_row(self.policy(config), config.declared.revision, at)
        # Others may have waited for somebody to probe what they share, or for the last open one of their pool.
        self._stirred.add(config.id)
        self._stirred.update(key for key in config.keys[1:] if self.row(key) is not None)

    def _leave(self, config: Config, keys: Iterable[str]) -> None:
        """Make it unknown under these keys; what nobody shares any more is forgotten."""
        self._count_again(config.id)
        for key in keys:
            members = _own(self._members, self.world.members, key)
            members.discard(config.id)
            if not members and self.row(key) is not None:
                self.rows[key] = None
            self._stirred.add(key)

    def _release(self, known: Config, config: Config, now: float) -> None:
        """Give back what nobody will answer any more: a permit that a config which is not active cannot spend, and
        probes of what it shares no longer."""
        row = self.row(known.id)
        if row is None or not row.ready:
            return
        unspendable = not config.active and not row.spent
        for key, name, gate in self.closing(known):
            if gate.probe == _probe(known, row) and (unspendable or key not in config.keys):
                self._set_gate(key, name, gates.released(gate, now))
        if unspendable:
            self._set_permit(known.id, ready=False, unanswered_at=now)

    # What the places of a config have seen

    def _count_again(self, config_id: str) -> None:
        """Before a config or the evidence of its row changes: keep what the sums have counted of it."""
        if config_id not in self._counted:
            self._counted[config_id] = (self.config(config_id), self.row(config_id))

    def _count(self) -> None:
        """Bring the sums up to what the rows say."""
        counted, self._counted = self._counted, {}
        for config_id, (was, had) in counted.items():
            config, row = self.config(config_id), self.row(config_id)
            same = was is not None and config is not None and was.parents == config.parents
            for name in STAGES:
                before: Stage | None = getattr(had, name) if had is not None and was is not None else None
                after: Stage | None = getattr(row, name) if row is not None and config is not None else None
                if same and before is after:
                    continue
                if same and config is not None:
                    self._add(config, name, before, after)
                else:
                    if was is not None and before is not None and before.at:
                        self._add(was, name, before, None)
                    if config is not None and after is not None and after.at:
                        self._add(config, name, None, after)

    def _add(self, config: Config, name: str, before: Stage | None, after: Stage | None) -> None:
        policy = self.policy(config)
        change = evidence.change(before, after, policy)
        for key in config.parents[name]:
            total = self._sums.get(key) or self.world.sums.get(key) or evidence.NOTHING
            self._sums[key] = evidence.together(total, change, policy)

    # Evidence, windows and gates of one stage of one row

    def _set(self, key: str, name: str, stage: Stage) -> None:
        row = self.row(key)
        if row is None:
            return
        was, gate = getattr(row, name).gate, stage.gate
        if (was.closed_at, was.probe, was.next_probe_at) != (gate.closed_at, gate.probe, gate.next_probe_at):
            self._stirred.add(key)
        if "/" not in key:
            self._count_again(key)
        changed: dict[str, Any] = {name: stage, "version": row.version + 1}
        self.rows[key] = replace(row, **changed)

    def _set_gate(self, key: str, name: str, gate: Gate, **changes: Any) -> None:
        row = self.row(key)
        if row is not None:
            self._set(key, name, replace(getattr(row, name), gate=gate, **changes))

    def _set_permit(self, config_id: str, **changes: Any) -> None:
        row = self.row(config_id)
        if row is not None:
            self._stirred.add(config_id)
            self.rows[config_id] = replace(row, version=row.version + 1, **changes)

    def _succeed(self, config: Config, name: str, at: float, boot_seconds: float = 0.0) -> None:
        """A success, of the config's own row and of what it shares. Most events that move anything end here: it is
        written for speed."""
        config_id, policy, rows, stored = config.id, self.world.policies[config.profile], self.rows, self.world.rows
        row: Row | None = rows.get(config_id, UNKNOWN)
        if row is UNKNOWN:
            row = stored.get(config_id)
        if row is None or name not in config.stages:
            return
        if config_id not in self._counted:
            self._counted[config_id] = (config, row)
        if name == "launch":
            rows[config_id] = replace(row, launch=_praised(row.launch, name, at, policy), version=row.version + 1)
        elif name == "boot":
            boots = (*row.boots[1 - policy.boot_samples :], boot_seconds)
            rows[config_id] = replace(
                row,
                boot=_praised(row.boot, name, at, policy),
                version=row.version + 1,
                boots=boots,
                slow_seconds=_slow(row, boots, policy),
            )
        else:
            rows[config_id] = replace(row, claim=_praised(row.claim, name, at, policy), version=row.version + 1)
        for key in config.praised[name]:
            shared: Row | None = rows.get(key, UNKNOWN)
            if shared is UNKNOWN:
                shared = stored.get(key)
            if shared is None:
                # Launches go well unless somebody says otherwise; boots and claims have to be shown.
                if name == "launch":
                    continue
                shared = new_shared_row(policy, at)
            stage: Stage = getattr(shared, name)
            if not _is_at_rest(stage, name, policy):
                changed: dict[str, Any] = {name: _praised(stage, name, at, policy), "version": shared.version + 1}
                rows[key] = replace(shared, **changed)

    def _charge(self, config: Config, key: str, name: str, at: float, failure: Failure, *, placed: bool) -> None:
        """One failure of a row's stage."""
        policy = self.policy(config)
        row = self.row(key)
        if row is None:
            if not self.members(key):
                return  # whoever had it has left
            row = self.rows[key] = new_shared_row(policy, at)
        stage: Stage = getattr(row, name)
        gate, window = stage.gate, stage.window
        if gate.closed_at == 0:
            window = windows.shrunk(window, name, policy)
        if at >= stage.ok_at:
            # What runs out again as soon as it is used is a quota that was reached: successes until then prove nothing.
            proven = stage.window >= policy.proven_window and failure.scope is not Scope.QUOTA
            gate = gates.failed(gate, failure, _trip(name, policy), key, policy, proven=proven)
        self._set(key, name, evidence.after(stage, at, window, gate, policy, failed=True, placed=placed))

    def _open(self, config: Config, key: str, name: str, at: float) -> None:
        """A probe has succeeded. What failed belonged to the outage that has ended: it fades as much again as it has
        while the gate was closed, so that a long outage is behind us and a short one is remembered."""
        row = self.row(key)
        if row is None:
            return
        stage, policy = getattr(row, name), self.policy(config)
        kept = evidence.remaining(max(0.0, at - stage.gate.closed_at), policy)
        self._set_gate(
            key,
            name,
            gates.opened(stage.gate, at),
            failures=stage.failures * kept,
            placed=stage.placed * kept,
            window=policy.reopened_window,
        )
        if name == "launch":
            self._pull_siblings(config, stage.gate.closed_at, at)

    def _pull_siblings(self, config: Config, closed_at: float, at: float) -> None:
        """An outage that began together may have ended together."""
        for other_id in sorted(self.members(config.pool) - {config.id}):
            other, row = self.config(other_id), self.row(other_id)
            if other is None or row is None or not row.launch.gate.closed:
                continue
            if abs(row.launch.gate.closed_at - closed_at) <= self.policy(other).sibling_seconds:
                self._pull(other, ("launch",), at)

    def _pull(
        self, config: Config, names: Iterable[str], at: float, by: Callable[[Gate, float, Policy], Gate] = gates.pulled
    ) -> None:
        """Have what closes a config in these stages probed at `at` rather than later."""
        for key, name, gate in self.closing(config):
            sooner = by(gate, at, self.policy(config))
            if name in names and sooner is not gate:
                self._set_gate(key, name, sooner)

    # The agenda

    def _note_what_is_due(self) -> None:
        """Put on the agenda what gates, permits and pools wait for, wherever something has stirred."""
        stirred, self._stirred = self._stirred, set()
        configs, pools = set(), set()
        for key in stirred:
            configs |= self.members(key) if "/" in key else {key}
        for config_id in configs:
            config, row = self.config(config_id), self.row(config_id)
            if config is None or row is None:
                continue
            pools.add(config.pool)
            if config.archived_at:
                self._note(config.archived_at + FORGOTTEN_AFTER_SECONDS, "forget", config_id)
            closing = self.closing(config)
            for key, _, gate in closing:
                if gate.next_probe_at:
                    self._note(gate.next_probe_at, "gate", key)
            if closing and row.ready:
                self._note(row.lost_at, "lost", config_id)
                if not row.spent:
                    self._note(row.permit_at + self.policy(config).permit_seconds, "permit", config_id)
        for key in pools:
            due, _ = self._pool_due(key)
            if due < inf:
                self._note(due, "pool", key)

    def _note(self, when: float, kind: str, key: str) -> None:
        entry = (when, kind, key)
        if entry not in self.world.noted:
            self.world.noted.add(entry)
            heappush(self.world.agenda, entry)

    def _gate_due(self, key: str, when: float, now: float) -> None:
        """A gate may be probed: by the first of those that it closes for whom nothing else stands in the way."""
        row = self.row(key)
        if row is None:
            return
        due = [
            gate.closed_at for gate in (row.launch.gate, row.boot.gate, row.claim.gate) if gate.next_probe_at == when
        ]
        if due:
            members = self.members(key) if "/" in key else {key}
            self._issue_first([self._turn(member, min(due)) for member in members], when, now)

    def _turn(self, config_id: str, closed_at: float) -> tuple[float, float, str]:
        """Who is busiest probes first: there a permit is spent at once."""
        row = self.row(config_id)
        return (inf, 0.0, config_id) if row is None else (_came_back(row, closed_at), -row.launch.at, config_id)

    def _issue_first(
        self, turns: Iterable[tuple[float, float, str]], when: float, now: float, *, early: bool = False
    ) -> None:
        for _, _, config_id in sorted(turns):
            config = self.config(config_id)
            if config is not None and self._issue(config, when, now, early=early):
                return

    def _issue(self, config: Config, when: float, now: float, *, early: bool) -> bool:
        """Issue a permit if everything that closes the config is due at `when` (or `early`) and no probe of any of it
        is unresolved. One that nobody has spent when something else closes makes way for one that answers for all."""
        row, closing = self.row(config.id), self.closing(config)
        if row is None or not closing or not config.active or self.probe_is_ready(config, closing):
            return False
        if opinions.is_down(self.said(config.id)) is not None:
            return False  # it would not be spent
        if any(_is_probed(gate, config, row) for _, _, gate in closing):
            return False
        if not early and any(gate.next_probe_at > when for _, _, gate in closing):
            return False
        lost_at = now + self.policy(config).unspent_seconds
        self._set_permit(config.id, permit=row.permit + 1, permit_at=now, ready=True, spent=False, lost_at=lost_at)
        for key, name, gate in closing:
            self._set_gate(key, name, gates.issued(gate, f"{config.id}#{row.permit + 1}", now))
        return True

    def _pool_due(self, key: str) -> tuple[float, list[tuple[float, float, str]]]:
        """When a pool is owed a probe, whatever the delays of its gates have grown to, and whose turn it is then.

        It is owed one attempt per 30 s as long as everything in it is closed; a probe that is under way, or waits for
        demand, holds up only its own config. Boots and claims are not probed sooner: each attempt costs a machine.
        """
        last, every, waiting = 0.0, inf, []
        for config_id in self.members(key):
            config, row = self.config(config_id), self.row(config_id)
            if config is None or row is None or not config.active:
                continue
            closing = self.closing(config)
            if not closing:
                if opinions.is_down(self.said(config_id)) is None:
                    return inf, []
                continue
            every = min(every, self.policy(config).pool_probe_seconds)
            since = min(gate.closed_at for _, _, gate in closing)
            last = max(last, row.permit_at, since)
            if self.probe_is_ready(config, closing) or opinions.is_down(self.said(config_id)) is not None:
                continue
            if all(name == "launch" and not _is_probed(gate, config, row) for _, name, gate in closing):
                probed = max(gate.probe_at for _, _, gate in closing)
                soonest = max(gate.next_probe_at for _, _, gate in closing)
                waiting.append((probed, (_came_back(row, since), soonest, config_id)))
        due = max(last, min((probed for probed, _ in waiting), default=inf)) + every
        return due, [turn for probed, turn in waiting if probed + every <= due]

    def _pool_owed(self, key: str, when: float, now: float) -> None:
        due, turns = self._pool_due(key)
        if due == when:
            self._issue_first(turns, when, now, early=True)

    def _permit_unspent(self, config_id: str, when: float, now: float) -> None:
        """Nobody has spent the permit of a shared gate: its pool has no demand, and others wait for the answer."""
        config, row = self.config(config_id), self.row(config_id)
        if config is None or row is None or not row.ready or row.spent:
            return
        if when != row.permit_at + self.policy(config).permit_seconds:
            return
        held = [(k, name, gate) for k, name, gate in self.closing(config) if gate.probe == _probe(config, row)]
        others = {other for key, _, _ in held if key != config_id for other in self.members(key)} - {config_id}
        if any((other := self.config(c)) is not None and other.active for c in others):
            self._set_permit(config_id, ready=False, unanswered_at=now)
            for key, name, gate in held:
                self._set_gate(key, name, gates.released(gate, now))

    def _permit_lost(self, config_id: str, when: float, now: float) -> None:
        """Nothing more was heard of a permit that something waits for."""
        config, row = self.config(config_id), self.row(config_id)
        if config is None or row is None or not row.ready or row.lost_at != when:
            return
        if any(gate.probe == _probe(config, row) for _, _, gate in self.closing(config)):
            self.give_up(config_id, row.permit, now)

    def _heard(self, config: Config, permit: int | None, at: float) -> None:
        """The holder of the newest permit goes on."""
        row = self.row(config.id)
        if row is not None and row.ready and permit == row.permit:
            lost_at = at + self.policy(config).unheard_seconds
            self.rows[config.id] = replace(row, version=row.version + 1, lost_at=lost_at)
            self._note(lost_at, "lost", config.id)

    def _late(self, worker_id: str, when: float, now: float) -> None:
        """A boot that takes too long counts as failed, until it ends one way or the other."""
        boot = self.boot(worker_id)
        config = self.config(boot.config_id) if boot is not None else None
        if boot is None or config is None or boot.late or boot.late_at != when:
            return
        self.boots[worker_id] = replace(boot, late=True, late_at=now)
        failure = Failure(
            now, Scope.IMAGE, "late", True, worker_id, late=True, instance_id=boot.instance_id, console=boot.console
        )
        for key in (boot.image, config.id):
            self._charge(config, key, "boot", now, failure, placed=True)
            row = self.row(key)
            if row is not None:
                self._set(key, "boot", replace(row.boot, late=row.boot.late + 1))
        if boot.permit is not None:
            self._settle(config, boot.permit, now, LATE, (boot.image, config.id), ended=True)

    def _expire(self, key: str, when: float, now: float) -> None:
        signal = self.live_signal(key)
        if signal is not None and signal.until == when:
            self.say(key, None)
            self._stirred.update(signal.configs)

    def _forget(self, config_id: str, when: float, now: float) -> None:
        config = self.config(config_id)
        if config is None or not config.archived_at or config.archived_at + FORGOTTEN_AFTER_SECONDS != when:
            return
        self._leave(config, config.groups)
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
        lost_at = at + self.policy(config).unheard_seconds
        self._set_permit(config.id, ready=True, spent=True, lost_at=lost_at)
        # If it was taken back meanwhile, it holds again what nobody else has got.
        for key, name, gate in self.closing(config):
            if not gate.probe:
                self._set_gate(key, name, gates.issued(gate, _probe(config, row), at))

    def _delayed(self, config: Config, event: worker.WorkerDelayed, at: float) -> None:
        self._heard(config, event.probe_permit, at)

    def _launched(self, config: Config, event: worker.WorkerLaunched, at: float) -> None:
        worker_id, outcome, boots = event.worker_id, event.outcome, self.boots
        if outcome.stage is LAUNCH and outcome.result is OK:
            self._succeed(config, "launch", at)
        if (boots[worker_id] if worker_id in boots else self.world.boots.get(worker_id)) is not None:
            boots[worker_id] = None  # it had registered before the reply
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
            heappush(self.world.agenda, (late_at, "boot", worker_id))
            self._heard(config, event.probe_permit, late_at)
        if event.probe_permit is not None:
            self._settle(config, event.probe_permit, at, outcome, ())

    def _launch_failed(self, config: Config, event: worker.WorkerLaunchFailed, at: float) -> None:
        self._fail(config, event, event.outcome, at)

    def _registered(self, config: Config, event: worker.WorkerRegistered, at: float) -> None:
        outcome, boot = event.outcome, self.boot(event.worker_id)
        came = outcome.stage is BOOT and outcome.result is OK
        if boot is not None:
            self._boot_over(config, event.worker_id, boot, at, came=came)
        elif came:
            self.boots[event.worker_id] = Boot(config.id, config.shared["image"], at, 0.0)  # the reply is still to come
        if not came:
            self._fail(config, event, outcome, at)  # told to leave before it came
            return
        self._succeed(config, "boot", at, event.boot_seconds)
        if boot is not None and boot.late and boot.permit is not None:
            # A probe that was taken for failed has come after all.
            for key, name, _ in self.closing(config):
                if name == "boot" and key in (boot.image, config.id):
                    self._open(config, key, name, at)
        if event.probe_permit is not None:
            self._heard(config, event.probe_permit, at)
            self._settle(config, event.probe_permit, at, outcome, ())

    def _claimed(self, config: Config, event: worker.WorkerClaimed, at: float) -> None:
        if event.outcome is not None and event.outcome.result is OK:
            self._succeed(config, "claim", at)
            if event.probe_permit is not None:
                self._settle(config, event.probe_permit, at, event.outcome, ())

    def _ended(self, config: Config, event: worker.WorkerStopping | worker.WorkerLost, at: float) -> None:
        """With an outcome if it ended a stage, without one if that was our own doing."""
        boot, outcome = self.boot(event.worker_id), event.outcome
        if boot is not None and outcome is not None and outcome.stage is BOOT:
            blamed = self._blamed(config, outcome)
            failure = _failure(event, outcome, at)
            self._boot_over(config, event.worker_id, boot, at, failure=failure, blamed=blamed)
            self._fail(config, event, outcome, at, charged_already=(boot.image, config.id) if boot.late else ())
        else:
            if boot is not None:
                self._boot_over(config, event.worker_id, boot, at)
            if outcome is not None or event.probe_permit is not None:
                self._fail(config, event, outcome, at)

    def _stopped(self, config: Config, event: worker.WorkerStopped, at: float) -> None:
        boot = self.boot(event.worker_id)
        if boot is not None:
            self._boot_over(config, event.worker_id, boot, at)
        if event.probe_permit is not None:
            self._settle(config, event.probe_permit, at, None, (), ended=True)

    def _boot_over(
        self,
        config: Config,
        worker_id: str,
        boot: Boot,
        at: float,
        *,
        came: bool = False,
        failure: Failure | None = None,
        blamed: tuple[str, ...] = (),
    ) -> None:
        """A boot has ended. If it had been taken for failed, that stays true where it is `blamed`, and is taken back
        elsewhere; a gate that was closed by nothing but such starts opens only when one of them has come."""
        self.boots[worker_id] = None
        if not boot.late:
            return
        policy = self.policy(config)
        for key in (boot.image, config.id):
            row = self.row(key)
            if row is None:
                continue
            stage, late = row.boot, max(0, row.boot.late - 1)
            if failure is not None and key in blamed:
                self._set_gate(key, "boot", gates.confirmed(stage.gate, failure), late=late)
                continue
            mass = evidence.remaining(max(0.0, stage.at - boot.late_at), policy)
            gate, window = gates.withdrawn(stage.gate, worker_id), stage.window
            if came and gates.unfounded(gate, late, policy.trip_boot):
                gate, window = gates.opened(gate, at), policy.reopened_window
            self._set_gate(
                key,
                "boot",
                gate,
                failures=max(0.0, stage.failures - mass),
                placed=max(0.0, stage.placed - mass),
                failed=max(0, stage.failed - 1),
                late=late,
                window=window,
            )

    def _blamed(self, config: Config, outcome: Outcome) -> tuple[str, ...]:
        """Keys that a failed outcome is charged to: none of a stage that is not judged."""
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
        charged_already: tuple[str, ...] = (),
    ) -> None:
        """A worker's failed outcome, or its end without one. Every failure counts as folded, whatever its scope."""
        blamed: tuple[str, ...] = ()
        if outcome is not None and outcome.result is FAILED and outcome.stage is not worker.Stage.UNKNOWN:
            name, blamed = outcome.stage.value, self._blamed(config, outcome)
            failure = _failure(event, outcome, at)
            for key in blamed:
                if key not in charged_already:
                    self._charge(config, key, name, at, failure, placed=outcome.scope in blame.PLACE)
            row = self.row(config.id)
            if row is not None:
                stage: Stage = getattr(row, name)
                self._set(config.id, name, replace(stage, folded=stage.folded + 1))
        if event.probe_permit is not None:
            self._settle(config, event.probe_permit, at, outcome, blamed, ended=True)

    def _settle(
        self,
        config: Config,
        permit: int,
        at: float,
        outcome: Outcome | None,
        blamed: tuple[str, ...],
        *,
        ended: bool = False,
    ) -> None:
        """What the holder of the newest permit has told each gate that waits for it; `ended`: it will tell no more."""
        row = self.row(config.id)
        if row is None or permit != row.permit:
            return
        probe, policy = _probe(config, row), self.policy(config)
        told = answered = False
        for key, name, gate in self.closing(config):
            if gate.probe != probe:
                continue
            decisive = outcome is not None and outcome.stage.value == name
            if decisive and outcome is not None and outcome.result is OK:
                self._open(config, key, name, at)
                answered = True
            elif decisive and outcome is not None and key in blamed:
                self._set_gate(key, name, gates.probe_failed(gate, outcome.code, at, policy))
                answered = True
            elif ended:
                self._set_gate(key, name, gates.given_back(gate, at, policy))
            else:
                continue
            told = True
        if row.ready and (told or ended):
            self._set_permit(config.id, ready=False, unanswered_at=0.0 if answered else at)

    def late_seconds(self, config: Config) -> float:
        """How long a boot may take before it counts as failed, by what was observed of this config."""
        policy, row = self.world.policies[config.profile], self.row(config.id)
        if row is None or not row.slow_seconds:
            return policy.late_seconds
        return max(policy.late_min_seconds, policy.late_factor * row.slow_seconds)


def _praised(stage: Stage, name: str, at: float, policy: Policy) -> Stage:
    """A stage after one more success."""
    gate, window = stage.gate, stage.window
    if gate.unconfirmed:
        gate = gates.succeeded(gate, at if at > stage.ok_at else stage.ok_at)
    if not gate.closed_at:
        window = windows.grown(window, name, policy)
    return evidence.after(stage, at, window, gate, policy)


def _is_at_rest(stage: Stage, name: str, policy: Policy) -> bool:
    """Whether nothing is left to win by a success."""
    gate = stage.gate
    return not (gate.unconfirmed or gate.closed_at) and stage.window >= windows.grown(stage.window, name, policy)


def _slow(row: Row, boots: tuple[float, ...], policy: Policy) -> float:
    """The quantile of boot times that the policy asks for. It moves only if what came or what went lies above it."""
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
    """How gates name the newest permit of a config."""
    return f"{config.id}#{row.permit}"


def _came_back(row: Row, closed_at: float) -> float:
    """When a permit came back without an answer since then, else 0. Who let one lapse comes behind all others, or one
    without demand would hold them up again and again."""
    return row.unanswered_at if row.unanswered_at > closed_at else 0.0


def _is_probed(gate: Gate, config: Config, row: Row) -> bool:
    """Whether a probe is under way, or may be begun, other than by the config's own permit that nobody has spent."""
    return gate.probe != "" and not (row.ready and not row.spent and gate.probe == _probe(config, row))


def _trip(name: str, policy: Policy) -> int:
    trip: int = getattr(policy, f"trip_{name}")
    return trip


def _own(mine: dict[str, set[str]], theirs: Mapping[str, set[str]], key: str) -> set[str]:
    """A set that may be changed, since it is a draft's own."""
    if key not in mine:
        mine[key] = set(theirs.get(key, ()))
    return mine[key]


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
    worker.WorkerStopped: Draft._stopped,
    worker.WorkerLost: Draft._ended,
}
_TIMERS: Final[dict[str, Callable[[Draft, str, float, float], None]]] = {
    "gate": Draft._gate_due,
    "pool": Draft._pool_owed,
    "permit": Draft._permit_unspent,
    "lost": Draft._permit_lost,
    "boot": Draft._late,
    "signal": Draft._expire,
    "forget": Draft._forget,
}
