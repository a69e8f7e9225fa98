"""Facade of the domain: health state of the whole deployment, and every transition that callers may apply. Pure.

A transition changes a Draft, the changes of one commit; the World beneath it stays unchanged until `commit`. Everything
follows from the state, the events and the given times, so the same journal gives the same rows. Transitions that depend
on time alone have a timer, derived from the state; the first `advance` at or after its time fires it.
"""

from collections.abc import Iterable, Mapping
from heapq import heappop, heappush

from slipway_api.events.launch_config import LaunchConfigState
from slipway_api.events.scopes import Key
from slipway_api.events.signal import SignalRaised
from slipway_api.events.worker import WorkerEvent
from slipway_common.base.signal_rules import DEFAULT_RULES, Rules
from slipway_weight_calculator.domain import health, health_signals, image_moves, probes
from slipway_weight_calculator.domain.draft import UNCHANGED, Draft, Values
from slipway_weight_calculator.domain.outcomes import EVENT_HANDLERS, TIMER_HANDLERS
from slipway_weight_calculator.domain.outcomes import forget as forget_config
from slipway_weight_calculator.domain.rows import Boot, Config, Row, config_of, named_by, undeclared
from slipway_weight_calculator.domain.signals import Signal


class World(Values):
    """Health state of the deployment. It changes only by `load` and by the commit of a draft."""

    def load(
        self,
        configs: Iterable[Config],
        rows: Mapping[Key, Row],
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
            if boot.judged_at:
                heappush(self.timers, (boot.judged_at, "boot", worker_id))
            if boot.overdue_at:
                heappush(self.timers, (boot.overdue_at, "overdue", worker_id))
        commit(draft)

    def due(self) -> float | None:
        """The next time at which `advance` may change something; call it between drafts.

        Nearly every probe is resolved long before it would be lost, so timers of resolved ones are dropped here.
        """
        timers = self.timers
        while timers and timers[0][1] == "lost":
            when, _, key = timers[0]
            row = self.rows.get(key)
            if row is not None and row.ready and row.lost_at == when:
                break
            self.scheduled.discard(heappop(timers))
        return timers[0][0] if timers else None


def declare(draft: Draft, state: LaunchConfigState, now: float) -> None:
    """Create or change a config; a state with a lower revision than the known one is ignored.

    One that is new, or comes back, gets the live signals on the other revisions of its name that are about it too.
    """
    known, archived = draft.config(state.launch_config_id), state.state == "archived"
    if known is not None and state.revision < known.declared.revision:
        return
    was_archived = known is not None and known.declared.state == "archived"
    since = 0.0 if not archived else known.archived_at if known is not None and was_archived else now
    config = config_of(state, archived_at=since)
    if known is None:
        draft.add_config(config, now)
    elif config != known:
        image_moves.move(draft, known, config, now)
        probes.return_permit(draft, known, config, now)
        draft.remove_config(known, [key for key in known.groups if key not in config.groups])
        draft.add_config(config)
    if not config.archived_at and (known is None or known.archived_at):
        health_signals.extend(draft, config, now)


def forget(draft: Draft, config_id: str, now: float) -> None:
    """Delete a config after its tombstone. Until then an archived one keeps its health, and may be declared again."""
    config = draft.config(config_id)
    if config is not None:
        forget_config(draft, config, now)


def fold(draft: Draft, event: WorkerEvent, at: float, partition: str = "", next_offset: int = 0) -> None:
    """Apply one worker event; `at` is its time in seconds since the epoch. Most events change nothing.

    `partition` ("topic/number") and `next_offset` are published with the record as the position it includes.
    """
    handler = EVENT_HANDLERS.get(type(event))
    if handler is None:
        return
    config_id = event.launch_config_id
    config: Config | None = draft.configs.get(config_id, UNCHANGED)
    if config is UNCHANGED:
        config = draft.world.configs.get(config_id)
    if config is None:
        config = undeclared(event, at)
        draft.add_config(config, at)
    if event.image_revision != config.declared.image_revision:
        config = named_by(event, config)
    handler(draft, config, event, at)
    if partition:
        seen = draft.seen.get(config_id)
        if seen is None:
            seen = draft.seen[config_id] = {}
        seen[partition] = next_offset


def apply_signal(draft: Draft, event: SignalRaised, at: float, rules: Rules = DEFAULT_RULES) -> str:
    """Apply a signal received at `at`; returns the reason if it has no effect."""
    return health_signals.apply(draft, event, at, rules)


def enforce_shares(draft: Draft, config_id: str, now: float, rules: Rules = DEFAULT_RULES) -> list[tuple[Signal, str]]:
    """Drop the signals that exceed a source's share of a pool after a config has changed; returns them with reasons."""
    return health_signals.enforce_shares(draft, config_id, now, rules)


def count_folded(draft: Draft, config_id: str, stage: str, by: int = 1) -> None:
    """Count failures that were not folded as seen, or undo that (`by` -1)."""
    health.count_folded(draft, config_id, stage, by)


def abandon_probe(draft: Draft, config_id: str, permit: int, now: float) -> None:
    """End a probe whose outcome will never arrive."""
    probes.abandon(draft, config_id, permit, now)


def advance(draft: Draft, now: float) -> None:
    """Fire all timers up to `now`: permits that are due, starts that are slow or late, signals that expire."""
    probes.schedule(draft)
    timers, scheduled = draft.world.timers, draft.world.scheduled
    while timers and timers[0][0] <= now:
        when, kind, subject = timer = heappop(timers)
        scheduled.discard(timer)
        draft.fired.append(timer)
        TIMER_HANDLERS[kind](draft, subject, when, now)
        if draft.touched:
            probes.schedule(draft)


def commit(draft: Draft) -> None:
    """Apply the draft to its world; call it after the database has committed."""
    probes.schedule(draft)
    draft.apply()


def discard(draft: Draft) -> None:
    """Drop the draft and restore the timers that it has fired."""
    for timer in draft.fired:
        heappush(draft.world.timers, timer)
