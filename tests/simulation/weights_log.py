"""Input of the weight-calculator in one seed's history, as a log.

Configs of several accounts, pools, images and quotas are declared and changed, revisions with other images replace each
other and are deleted, a fleet launches on them with and without faults, and external signals arrive. Records may be
late, out of order across keys, duplicated, or undecodable, and may name another image than their config declares.
"""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

import msgspec
from aiokafka.structs import ConsumerRecord

from slipway_api.events.topics import LAUNCH_CONFIG_LIFECYCLE, LAUNCH_CONFIG_SIGNAL, TOPIC_OF, WORKER_LIFECYCLE
from slipway_api.events.worker import Scope, WorkerLaunchFailed, WorkerRequested
from slipway_common.messaging.consume import Place
from slipway_common.messaging.envelope import Envelope, encode
from slipway_common.messaging.records import Record
from slipway_common.messaging.relay import partition_for
from tests.simulation.weights_fleet import ImageStory, RollOutFleet
from tests.support.worlds import T0, Story, config, signal_event

PARTITIONS: Final = 3
TOPICS: Final = (LAUNCH_CONFIG_LIFECYCLE, WORKER_LIFECYCLE, LAUNCH_CONFIG_SIGNAL)
EVENTS: Final = (70, 150)
LAGGING: Final = 0.25  # fraction of workers whose events are written up to LAG_SECONDS late
LAG_SECONDS: Final = 20.0
DELETED: Final = 0.7  # fraction of archived configs that get a tombstone
REPEATED: Final = 0.06  # chance that the newest records of a partition are sent again
REPEATS_MAX: Final = 3
DECLARED_LATE_SECONDS: Final = 60.0  # delay of the declaration of a config whose outcomes arrive earlier
TROUBLES: Final = (Scope.CAPACITY, Scope.CAPACITY, Scope.QUOTA, Scope.CREDENTIAL, Scope.IMAGE)
UNKNOWN: Final = "io.slipway.worker.dreamt.v1"
READ_BY_SECONDS: Final = 60.0  # time within which every record is read
CLEAR_SECONDS: Final = DECLARED_LATE_SECONDS + 2 * READ_BY_SECONDS  # time after which all configs are known


Offset = tuple[str, int, int]
"""Topic, partition and offset of a record."""


class LogRecord(msgspec.Struct, frozen=True):
    """One record to write at `written`, of an event at `at`; both in seconds since the start."""

    written: float
    at: float
    event: Any
    type: str
    subject: str
    key: str
    value: bytes | None


class History:
    """Log of a seed. `end` is the time of its last record in seconds since the start.

    `left_out` are the records that must have no effect: those that are `repeated`, and those of an unknown type.
    `deleted` are the configs that have a tombstone.
    """

    def __init__(self, seed: int) -> None:
        self.chance = Random(f"history {seed}")
        self.records: dict[Place, list[ConsumerRecord[bytes, bytes]]] = {
            (topic.name, partition): [] for topic in TOPICS for partition in range(PARTITIONS)
        }
        self.repeated: set[Offset] = set()
        self.left_out: set[Offset] = set()
        self.deleted: set[str] = set()
        self._numbers: Counter[tuple[str, Place]] = Counter()
        records = sorted(self._records(), key=lambda one: one.written)
        self.end = records[-1].written
        self._renumbered_at = self.end * self.chance.choice([0.5, 2.0])  # the provisioner's database is restored
        for one in records:
            self._write(one)
        self.left_out |= self.repeated

    def _records(self) -> Iterator[LogRecord]:
        lags: dict[str, float] = {}
        newest: dict[str, float] = {}  # by worker id, whose events keep their order
        late = self.chance.choice(["a", "b"])
        dead = 0
        for word, what, at in self._story().log:
            fact = at - T0
            if word == "declare":
                written = fact + DECLARED_LATE_SECONDS if what.name == late and not fact else fact
                gone = what.state == "archived" and self.chance.random() < DELETED
                if gone:
                    self.deleted.add(what.launch_config_id)
                yield _log_record(written, fact, what, None if gone else msgspec.json.encode(what))
            elif word == "signal":
                yield _log_record(fact, fact, what, msgspec.json.encode(what))
            elif word == "fold":
                worker_id, value = what.worker_id, msgspec.json.encode(what)
                if worker_id not in lags:
                    lags[worker_id] = self.chance.uniform(0, LAG_SECONDS) * (self.chance.random() < LAGGING)
                written = newest[worker_id] = max(fact + lags[worker_id], newest.get(worker_id, 0.0))
                if isinstance(what, WorkerLaunchFailed) and fact > CLEAR_SECONDS and dead < 3:
                    dead += 1
                    value = value.replace(b'"batch_id":"b"', b'"batch_id":7')
                elif isinstance(what, WorkerRequested) and self.chance.random() < 0.05:
                    yield msgspec.structs.replace(_log_record(written, fact, what, value), type=UNKNOWN)
                    continue
                yield _log_record(written, fact, what, value)

    def _story(self) -> Story:
        """A story of a fleet that uses the permits of a calculator without delay."""
        chance = self.chance
        states = [
            config("a@0", instance_type="m5.large", image_revision="linux-2"),
            config("b@0", instance_type="m5.xlarge", image_revision="linux-2"),
            config("c@0", account="sim-b", image_revision="linux-2", profile="spot"),
            config("d@0", account="sim-b", pool="win", instance_type="c5.large", image_revision="win-1"),
            config("e@0", pool="win", instance_type="c5.large", image_revision="win-1", claim_evidence="none"),
            config("team/f@0", account="sim-b", image_revision="linux-3", on_bad_image="freeze", freeze_after=3),
        ]
        story = ImageStory(chance, *states[: chance.randint(3, len(states))])
        fleet = RollOutFleet(story, [what for _, what, _ in story.log], chance)
        for config_id in chance.sample(sorted(fleet.configs), 2):
            fleet.troubles[config_id, chance.choice(["requested", "requested", "starting"])] = chance.choice(TROUBLES)
        number = chance.randint(*EVENTS)
        while sum(word != "advance" for word, _, _ in story.log) < number:
            fleet.step()
            if chance.random() < 0.25:
                fleet.change()
            if chance.random() < 0.1:
                at = fleet.now
                kind = chance.choice(["down", "degraded", "capacity_hint", "recovered", "recovered", "rumour"])
                target = chance.choice([("config", "a"), ("zone", "b"), ("image", "linux-2"), ("account", "sim-b")])
                value = 3.0 if kind == "capacity_hint" else None
                story.signal(signal_event(kind, *target, at=at, ttl_seconds=chance.choice([30, 200]), value=value), at)
        return story

    def _write(self, one: LogRecord) -> None:
        """Append a record as the relay does, or as an external producer does, without a sequence number.

        Sometimes the newest records are appended again, as after a lost acknowledgement.
        """
        topic = TOPIC_OF[type(one.event)]
        place = (topic.name, partition_for(one.key, PARTITIONS))
        source = "/monitor" if topic is LAUNCH_CONFIG_SIGNAL else "/slipway/provisioner"
        numbered: dict[str, Any] = {}
        if topic is not LAUNCH_CONFIG_SIGNAL:
            incarnation = f"{source}/{1 + (one.written > self._renumbered_at)}"
            number = self._numbers[incarnation, place] = self._numbers[incarnation, place] + 1
            numbered = {"sequence_number": number, "previous": number - 1, "sequence_source": incarnation}
        offset = len(self.records[place])
        envelope = Envelope(
            id=f"{place[1]}-{offset}",
            type=one.type,
            source=source,
            subject=one.subject,
            time=datetime.fromtimestamp(T0 + one.at, UTC),
            **numbered,
        )
        if one.type == UNKNOWN:
            self.left_out.add((*place, offset))
        self._append(place, one.written, one.key.encode(), one.value, encode(envelope))
        if self.chance.random() < REPEATED:
            newest = self.records[place][-self.chance.randint(1, REPEATS_MAX) :]
            for record in newest:
                self.repeated.add((*place, len(self.records[place])))
                self._append(place, one.written, record.key, record.value, record.headers)

    def _append(self, place: Place, written: float, key: Any, value: bytes | None, headers: Any) -> None:
        topic, partition = place
        records = self.records[place]
        timestamp = int((T0 + written) * 1000)
        records.append(
            ConsumerRecord(topic, partition, len(records), timestamp, 0, key, value, None, 0, 0, tuple(headers))
        )

    @property
    def log(self) -> dict[Place, list[Record]]:
        """Records by partition, as the services' own type."""
        return {
            (topic, partition): [
                Record(topic, partition, raw.offset, raw.key, raw.value, raw.headers, raw.timestamp) for raw in records
            ]
            for (topic, partition), records in self.records.items()
        }

    def ends(self) -> dict[Place, int]:
        """End offset of each partition that has records."""
        return {place: len(records) for place, records in self.records.items() if records}

    def failures(self) -> Counter[tuple[str, str]]:
        """Distinct failures in the log by config and stage, including those in undecodable records, without those of
        deleted configs."""
        found: Counter[tuple[str, str]] = Counter()
        for (topic, partition), records in self.records.items():
            for record in records if topic == WORKER_LIFECYCLE.name else ():
                event = json.loads(record.value or b"{}")
                outcome = event.get("outcome") or {}
                if event.get("launch_config_id") in self.deleted:
                    continue
                if (topic, partition, record.offset) not in self.repeated and outcome.get("result") == "failed":
                    found[event["launch_config_id"], outcome["stage"]] += 1
        return found


def _log_record(written: float, at: float, event: Any, value: bytes | None) -> LogRecord:
    topic = TOPIC_OF[type(event)]
    return LogRecord(written, at, event, event.type, topic.subject(event), topic.key(event), value)
