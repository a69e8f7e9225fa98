"""Turns of the leader: events are folded into a draft; its changes are stored, published and journalled together with
the positions of the events; then the draft is applied to the world."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from slipway_api.events.alert import Alert, AlertRaised
from slipway_api.events.topics import LAUNCH_CONFIG_LIFECYCLE, LAUNCH_CONFIG_SIGNAL, WORKER_LIFECYCLE, Topic
from slipway_common.base.errors import BadEvent
from slipway_common.base.signal_rules import DEFAULT_RULES, Rules, redacted_signal
from slipway_common.database.postgres import Connection
from slipway_common.messaging import outbox
from slipway_common.messaging.consume import Batch
from slipway_common.messaging.leadership import Turn
from slipway_common.messaging.records import Received, Record
from slipway_common.observability.telemetry import logger
from slipway_weight_calculator import metrics
from slipway_weight_calculator.domain import alerts
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.policy import PROFILES, Policy
from slipway_weight_calculator.domain.world import World, advance, commit, discard
from slipway_weight_calculator.handlers import configs, outcomes, signals
from slipway_weight_calculator.loops.publish import Publishing
from slipway_weight_calculator.store import journal, weights
from slipway_weight_calculator.store import signals as stored_signals
from slipway_weight_calculator.store import world as stored
from slipway_weight_calculator.store.signals import Refused

LOG = logger(__name__)
# Configs come first, so that a worker's first outcome finds a config declared in the same turn.
TOPICS: Final = (LAUNCH_CONFIG_LIFECYCLE, WORKER_LIFECYCLE, LAUNCH_CONFIG_SIGNAL)


class Folding:
    """Folds the events of one turn, in their order, into a draft over an unchanged world.

    A pure function of the world, the turn's time and the events, so that a replay of the journal gives the same result.
    """

    def __init__(self, world: World, now: float, rules: Rules) -> None:
        self.world = world
        self.now = now
        self.rules = rules
        self.folded: list[Received] = []
        self._begin()

    def _begin(self) -> None:
        self.draft = Draft(self.world)
        self.refused: list[Refused] = []
        self.traces: dict[str, str] = {}
        self.clamped = 0

    def fold(self, events: Sequence[Received]) -> None:
        """Fold all events or, if one raises, none."""
        try:
            self._fold(events)
        except Exception as error:
            # A single bad event is rejected before it changes anything, so the draft need not be rebuilt.
            if len(events) > 1 or not isinstance(error, BadEvent):
                discard(self.draft)
                self._begin()
                self._fold(self.folded)
            raise
        self.folded += events

    def _fold(self, events: Sequence[Received]) -> None:
        draft, now, traces = self.draft, self.now, self.traces
        partitions: dict[int, str] = {}
        for received in events:
            topic = received.topic
            if topic == WORKER_LIFECYCLE.name:
                partition = partitions.get(received.partition)
                if partition is None:
                    partition = partitions[received.partition] = f"{topic}/{received.partition}"
                self.clamped += outcomes.fold(draft, received, now, partition)
                if received.event is not None:
                    traces[received.event.launch_config_id] = received.traceparent
            elif topic == LAUNCH_CONFIG_LIFECYCLE.name:
                dropped = configs.fold(draft, received, now, self.rules)
                self.refused += [Refused(signal.event(), reason) for signal, reason in dropped]
                traces[configs.config_in(received.subject)] = received.traceparent
            elif reason := signals.fold(draft, received, now, self.rules):
                self.refused.append(Refused(redacted_signal(received.event), reason))

    def dead_letter(self, records: Iterable[Record]) -> None:
        """Count dead-lettered and parked records as folded, and their probes as ended."""
        for record in records:
            if record.topic == WORKER_LIFECYCLE.name:
                outcomes.count_dead(self.draft, record, self.now)

    def advance(self, until: float) -> None:
        """Fire timers, after the events: these may show that something due has already happened."""
        advance(self.draft, until)

    def settle(self) -> None:
        """Undo the count of dead letters that have been folded now; they were counted when they were dead-lettered."""
        for received in self.folded:
            if received.topic == WORKER_LIFECYCLE.name:
                outcomes.uncount_settled(self.draft, received)


class Calculation:
    """Work of the weight-calculator, for slipway_common.messaging.leader_loop."""

    topics: Sequence[Topic] = TOPICS

    def __init__(
        self,
        policies: Mapping[str, Policy] = PROFILES,
        rules: Rules = DEFAULT_RULES,
        *,
        refresh_seconds: float = 60.0,
        republish_seconds: float = 600.0,
    ) -> None:
        self.policies = policies
        self.rules = rules
        self.publishing = Publishing(refresh_seconds, republish_seconds)
        self.world = World(policies)
        self.alerts: dict[str, AlertRaised] = {}
        self._due: float | None = None

    async def load(self, tx: Connection) -> None:
        self.world, self.alerts = await stored.read(tx, self.policies)
        self.publishing.load(await weights.read(tx), self.world.configs)
        self._note_due(since=0.0)

    def begin(self, turn: Turn) -> None:
        self._folding = Folding(self.world, turn.at, self.rules)

    async def handle(self, tx: Connection, events: Sequence[Received]) -> None:
        self._folding.fold(events)

    async def store(self, tx: Connection, turn: Turn, batch: Batch | None) -> None:
        folding, draft = self._folding, self._folding.draft
        settled: Sequence[Received] = ()
        if batch is not None:
            folding.dead_letter(record.record for record in batch.dead_records)
        elif folding.folded:
            folding.settle()
            settled = folding.folded
        folding.advance(turn.until)
        self._alert_changes: list[Alert] = alerts.changes(draft, self.alerts, turn.at)
        changed = stored.changes(draft, self._alert_changes)
        if changed or batch is not None or settled:
            await stored.write(tx, changed)
            await journal.write(tx, turn, batch, settled)
        await stored_signals.refuse(tx, folding.refused, turn.at)
        records, published = self.publishing.publish(draft, turn.at, folding.traces, behind=turn.behind)
        await weights.write(tx, published)
        events: list[Any] = [*self._alert_changes, *records]
        await outbox.enqueue(tx, events)
        self._records, self._has_events = len(records), bool(events)

    def committed(self) -> bool:
        folding = self._folding
        metrics.count_turn(folding.draft, folding.folded, records=self._records, clamped=folding.clamped)
        for refused in folding.refused:
            metrics.REFUSED.labels(refused.reason.partition(":")[0]).inc()
            LOG.info("signal refused", source=refused.event.source, kind=refused.event.kind, reason=refused.reason)
        commit(folding.draft)
        self.alerts = alerts.after(self.alerts, self._alert_changes)
        self._note_due(since=folding.now)
        return self._has_events

    def due(self) -> float | None:
        return self._due

    def _note_due(self, since: float) -> None:
        found = (self.world.due(), alerts.due(self.alerts, Draft(self.world), since), self.publishing.due())
        self._due = min((at for at in found if at is not None), default=None)
