"""What the active instance does in a turn: facts fold into a draft; what has changed is stored, told and journalled
with their positions; then the draft becomes what is known."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from slipway_common import outbox
from slipway_common.consume import Batch
from slipway_common.errors import BadEvent
from slipway_common.events.alert import Alert, AlertRaised
from slipway_common.owner import Turn
from slipway_common.postgres import Connection
from slipway_common.records import Received, Record
from slipway_common.signal_rules import DEFAULT_RULES, Rules
from slipway_common.telemetry import logger
from slipway_common.topics import LAUNCH_CONFIG_LIFECYCLE, LAUNCH_CONFIG_SIGNAL, WORKER_LIFECYCLE, Topic
from slipway_weight_calculator import metrics
from slipway_weight_calculator.domain import alerts
from slipway_weight_calculator.domain.policy import PROFILES, Policy
from slipway_weight_calculator.domain.world import Draft, World
from slipway_weight_calculator.handlers import configs, outcomes, signals
from slipway_weight_calculator.loops.publish import Publishing
from slipway_weight_calculator.store import journal, weights
from slipway_weight_calculator.store import signals as stored_signals
from slipway_weight_calculator.store import world as stored
from slipway_weight_calculator.store.signals import Refused

LOG = logger(__name__)
# A worker's first outcome finds its config if that is declared in the same turn.
TOPICS: Final = (LAUNCH_CONFIG_LIFECYCLE, WORKER_LIFECYCLE, LAUNCH_CONFIG_SIGNAL)


class Folding:
    """The facts of one turn, in their order, over a world that they leave alone. A pure function of the world, the
    turn's time and the facts: the journal's replay does the same."""

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
        """All of them or, if one raises, none."""
        try:
            self._fold(events)
        except Exception as error:
            # A bad event is refused before it has touched anything; however many come alone, nothing is folded again.
            if len(events) > 1 or not isinstance(error, BadEvent):
                self.draft.discard()
                self._begin()
                self._fold(self.folded)
            raise
        self.folded += events

    def _fold(self, events: Sequence[Received]) -> None:
        draft, now, traces = self.draft, self.now, self.traces
        places: dict[int, str] = {}
        for received in events:
            topic = received.topic
            if topic == WORKER_LIFECYCLE.name:
                place = places.get(received.partition)
                if place is None:
                    place = places[received.partition] = f"{topic}/{received.partition}"
                self.clamped += outcomes.fold(draft, received, now, place)
                if received.event is not None:
                    traces[received.event.launch_config_id] = received.traceparent
            elif topic == LAUNCH_CONFIG_LIFECYCLE.name:
                dropped = configs.fold(draft, received, now, self.rules)
                self.refused += [Refused(signal.event(), why) for signal, why in dropped]
                traces[received.subject] = received.traceparent
            elif why := signals.fold(draft, received, now, self.rules):
                self.refused.append(Refused(received.event, why))

    def bury(self, records: Iterable[Record]) -> None:
        """What is dead or parked counts as folded, and a probe that it tells of as over."""
        for record in records:
            if record.topic == WORKER_LIFECYCLE.name:
                outcomes.count_dead(self.draft, record, self.now)

    def advance(self, until: float) -> None:
        """Facts come before time: what was read may say that what seems to be due has happened long ago."""
        self.draft.advance(until)

    def settle(self) -> None:
        """What was folded had been dead: it was counted then."""
        for received in self.folded:
            if received.topic == WORKER_LIFECYCLE.name:
                outcomes.uncount_settled(self.draft, received)


class Calculation:
    """The weight-calculator's work, as slipway_common.exclusive asks for it."""

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
            folding.bury(buried.record for buried in batch.buried)
        elif folding.folded:
            folding.settle()
            settled = folding.folded
        folding.advance(turn.until)
        self._told: list[Alert] = alerts.changes(draft, self.alerts, turn.at)
        changed = stored.changes(draft, self._told)
        if changed or batch is not None or settled:
            await stored.write(tx, changed)
            await journal.write(tx, turn, batch, settled)
        await stored_signals.refuse(tx, folding.refused, turn.at)
        records, told = self.publishing.look(draft, turn.at, folding.traces, behind=turn.behind)
        await weights.write(tx, told, turn.at)
        events: list[Any] = [*self._told, *records]
        await outbox.enqueue(tx, events)
        self._records, self._tells = len(records), bool(events)

    def committed(self) -> bool:
        folding = self._folding
        metrics.count_turn(folding.draft, folding.folded, records=self._records, clamped=folding.clamped)
        for refused in folding.refused:
            metrics.REFUSED.labels(refused.why.partition(":")[0]).inc()
            LOG.info("signal refused", source=refused.event.source, kind=refused.event.kind, why=refused.why)
        folding.draft.commit()
        self.alerts = alerts.after(self.alerts, self._told)
        self._note_due(since=folding.now)
        return self._tells

    def due(self) -> float | None:
        return self._due

    def _note_due(self, since: float) -> None:
        found = (self.world.due(), alerts.due(self.alerts, Draft(self.world), since), self.publishing.due())
        self._due = min((at for at in found if at is not None), default=None)
