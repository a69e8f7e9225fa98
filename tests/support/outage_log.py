"""Generator of tests/data/outage.jsonl: two hours of a fleet that launches in all configs in turn, despite failures.

    .venv/bin/python -m tests.support.outage_log > tests/data/outage.jsonl

A zone fails for half an hour, a new image never registers, a quota is exhausted, and a monitor reports a zone; some
calls are throttled, some starts are cancelled by the fleet itself. Some records are duplicates, some arrive out of
order. Everything follows from the seed.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

import msgspec

from slipway_common.base.ids import digest
from slipway_common.events import worker
from slipway_common.events.launch_config import LaunchConfigArchived, LaunchConfigCreated
from slipway_common.events.scopes import quota_key
from slipway_common.events.signal import SignalRaised
from slipway_common.events.topics import TOPIC_OF
from slipway_common.events.worker import Outcome, Result, Scope, Stage

FILE: Final = Path(__file__).parents[1] / "data" / "outage.jsonl"
SEED: Final = 191
START: Final = datetime(2026, 1, 5, 9, tzinfo=UTC)
MINUTES: Final = 120
STARTS_PER_MINUTE: Final = 5.0
REPEATED: Final = 0.01
BEHIND: Final = 0.05
BEHIND_SECONDS: Final = 8.0
PARTITIONS: Final = 4
BOOT_TIMEOUT_SECONDS: Final = 900.0

Happening = tuple[float, Any]
"""Seconds since the start, and the event."""


class Place:
    """A launch config of one revision that exists from `begin` to `end`, in minutes."""

    def __init__(
        self, name: str, pool: str, account: str, family: str, image: str, *, begin: float = 0.0, end: float = MINUTES
    ) -> None:
        self.name, self.pool, self.account, self.image = name, pool, account, image
        self.id = f"{name}@{digest(image.encode())[:6]}"
        self.region, self.zone = f"{account}-1", name.rpartition("-")[2]
        self.family, self.begin, self.end = family, begin, end

    @property
    def ids(self) -> dict[str, Any]:
        return {
            "pool_id": self.pool,
            "launch_config_id": self.id,
            "account_id": self.account,
            "image_revision": self.image,
        }

    def declared(self, *, archived: bool = False) -> Any:
        kind = LaunchConfigArchived if archived else LaunchConfigCreated
        return kind(
            launch_config_id=self.id,
            name=self.name,
            pool_id=self.pool,
            account_id=self.account,
            region=self.region,
            zone=self.zone,
            instance_type=f"{self.family}.large",
            image_revision=self.image,
            base_weight=1.0,
            price_factor=1.0,
            state="archived" if archived else "active",
            revision=2 if archived else 1,
        )

    def fault(self, at: float) -> Outcome | None:
        """Outcome of a launch requested at `at` seconds if it is refused, else None."""
        minute = at / 60
        if self.zone == "b" and 20 <= minute < 50:
            key = f"{self.family}.large/{self.zone}/on-demand"
            return Outcome(Stage.LAUNCH, Result.FAILED, Scope.CAPACITY, key, "InsufficientCapacity")
        if self.account == "sim-b" and self.family == "c5" and 70 <= minute < 85:
            key = quota_key(self.account, self.region, self.family).id
            return Outcome(Stage.LAUNCH, Result.FAILED, Scope.QUOTA, key, "QuotaExceeded")
        return None


PLACES: Final = (
    Place("linux-a", "linux", "sim-a", "m5", "linux-1"),
    Place("linux-b", "linux", "sim-a", "m5", "linux-1"),
    Place("linux-c", "linux", "sim-b", "m5", "linux-1"),
    Place("linux-d", "linux", "sim-b", "m5", "linux-2", begin=35, end=80),  # the image that never registers
    Place("win-a", "win", "sim-b", "c5", "win-1"),
    Place("win-b", "win", "sim-b", "c5", "win-1"),
)


def life(place: Place, at: float, chance: Random) -> Iterator[Happening]:
    """Events of one start."""
    ids = place.ids | {"worker_id": str(UUID(int=chance.getrandbits(128), version=4))}
    batch = f"batch-{chance.getrandbits(32):08x}"
    yield at, worker.WorkerRequested(decision_id=f"decision-{chance.getrandbits(32):08x}", **ids)
    if chance.random() < 0.02:
        yield at + 2, worker.WorkerStopped(reason="more workers than wanted", cancelled=True, **ids)
        return
    if chance.random() < 0.03:
        yield at + 1, worker.WorkerDelayed(reason="throttled", **ids)
        at += chance.uniform(5, 30)
    answered = at + chance.uniform(1, 4)
    refused = place.fault(at)
    if refused is None and chance.random() < 0.01:
        refused = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CONFIG, place.id, "OddFault", classified=False)
    if refused is not None:
        yield answered, worker.WorkerLaunchFailed(batch_id=batch, outcome=refused, **ids)
        return
    instance = f"i-{chance.getrandbits(40):010x}"
    yield (
        answered,
        worker.WorkerLaunched(instance_id=instance, batch_id=batch, outcome=Outcome(Stage.LAUNCH, Result.OK), **ids),
    )
    if place.image == "linux-2":
        late = Outcome(Stage.BOOT, Result.FAILED, Scope.IMAGE, place.image, "boot_timeout")
        end = answered + BOOT_TIMEOUT_SECONDS
        yield end, worker.WorkerStopping(reason="did not register in time", outcome=late, instance_id=instance, **ids)
        yield end + 30, worker.WorkerStopped(reason="did not register in time", **ids)
        return
    boot = 90 * chance.lognormvariate(0.0, 0.35)
    at = answered + boot
    yield (
        at,
        worker.WorkerRegistered(
            instance_id=instance, boot_seconds=round(boot, 3), outcome=Outcome(Stage.BOOT, Result.OK), **ids
        ),
    )
    at += chance.expovariate(1 / 5.0)
    first = Outcome(Stage.CLAIM, Result.OK)
    yield at, worker.WorkerClaimed(task_id=f"task-{chance.getrandbits(32):08x}", source="queue", outcome=first, **ids)
    at += chance.expovariate(1 / 1200.0)
    yield at, worker.WorkerStopped(reason="ended by itself", **ids)


def happened(chance: Random) -> list[Happening]:
    """All events, by their time."""
    events: list[Happening] = []
    for place in PLACES:
        events.append((place.begin * 60, place.declared()))
        if place.end < MINUTES:
            events.append((place.end * 60, place.declared(archived=True)))
    for minute, kind in ((22, "degraded"), (52, "recovered")):
        events.append(
            (
                minute * 60,
                SignalRaised(
                    source="status-page",
                    target_kind="zone",
                    target_id="b",
                    kind=kind,
                    reason="the zone's page says so",
                    observed_at=START + timedelta(minutes=minute),
                    ttl_seconds=3600.0,
                ),
            )
        )
    at, turn = 0.0, 0
    while (at := at + chance.expovariate(STARTS_PER_MINUTE / 60)) < (MINUTES - 5) * 60:
        open_ = [place for place in PLACES if place.begin * 60 + 5 <= at < place.end * 60]
        turn += 1
        events += life(open_[turn % len(open_)], at, chance)
    return sorted((t for t in events if t[0] <= MINUTES * 60), key=lambda t: t[0])


def lines(seed: int = SEED) -> Iterator[str]:
    """The log as `slipway events tail -o json` prints it."""
    chance = Random(seed)
    ends: dict[tuple[str, int], int] = {}
    for _, event, at, id_ in _arrived(happened(chance), chance):
        topic = TOPIC_OF[type(event)]
        subject = topic.subject(event)
        partition = sum(subject.encode()) % PARTITIONS
        offset = ends[topic.name, partition] = ends.get((topic.name, partition), -1) + 1
        source = "/monitors/status-page" if isinstance(event, SignalRaised) else "/slipway/provisioner"
        yield json.dumps(
            {
                "specversion": "1.0",
                "id": id_,
                "type": event.type,
                "source": source,
                "subject": subject,
                "time": (START + timedelta(seconds=round(at, 3))).isoformat(),
                "topic": topic.name,
                "partition": partition,
                "offset": offset,
                "data": _without_empty(msgspec.to_builtins(event)),
            }
        )


def _without_empty(value: Any) -> Any:
    """The value without empty fields."""
    if not isinstance(value, dict):
        return value
    return {name: _without_empty(each) for name, each in value.items() if each not in (None, "")}


def _arrived(events: Sequence[Happening], chance: Random) -> list[tuple[float, Any, float, str]]:
    """Events in their order of arrival: most at once, some late, some twice; those of one subject stay in order."""
    rows: list[tuple[float, Any, float, str]] = []
    newest: dict[str, float] = {}
    for number, (at, event) in enumerate(events):
        subject = TOPIC_OF[type(event)].subject(event)
        behind = chance.uniform(0, BEHIND_SECONDS) if chance.random() < BEHIND else 0.0
        arrives = newest[subject] = max(newest.get(subject, 0.0), at + behind)
        rows.append((arrives, event, at, id_ := f"event-{number:05d}"))
        if chance.random() < REPEATED:
            rows.append((arrives + chance.uniform(0, 30), event, at, id_))
    return sorted(rows, key=lambda row: row[0])


if __name__ == "__main__":
    for line in lines():
        sys.stdout.write(line + "\n")
