"""Check of the images' rows at each commit: an outcome moves only the image that its event names.

It compares the stored rows before and after a commit with the texts of the events that the commit has taken. It knows
nothing of the calculator's handlers and keys, so it also finds a handler that attributes an outcome to the image that a
launch config declares by now.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from slipway_api.events.topics import LAUNCH_CONFIG_LIFECYCLE, WORKER_LIFECYCLE
from slipway_api.percent import decoded
from slipway_common.database.postgres import Connection
from slipway_common.messaging.consume import Place
from slipway_common.messaging.records import Record
from slipway_weight_calculator.domain.evidence import Stage
from slipway_weight_calculator.domain.rows import STAGES, Row
from slipway_weight_calculator.store.journal import Entry
from tests.support.weight_calculator import covers, in_range

RECORDING: Final = """
CREATE TABLE image_change (
    number bigserial, transaction xid8 NOT NULL DEFAULT pg_current_xact_id(), key text NOT NULL, before text, after text
);
CREATE FUNCTION record_image_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(NEW.key, OLD.key) LIKE 'image/%' THEN
        INSERT INTO image_change (key, before, after) VALUES (coalesce(NEW.key, OLD.key), OLD.body, NEW.body);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER image_change AFTER INSERT OR UPDATE OR DELETE ON health
FOR EACH ROW EXECUTE FUNCTION record_image_change()"""
CHANGES: Final = """
SELECT seq, image_change.key, before, after
FROM image_change LEFT JOIN journal ON journal.xmin = image_change.transaction::xid ORDER BY number"""
TYPES: Final = "io.slipway.worker."
BOOT_ENDS: Final = frozenset({"registered.v1", "stopping.v1", "stopped.v1", "lost.v1"})

Change = tuple[str, Row | None, Row | None]
"""Image, and its row before and after a commit; None: it has no row."""


class Commit:
    """The outcomes and boots in the texts of one commit's events.

    `outcomes` counts by image, stage and result. `booting` are the images of the boots that were in progress at some
    time of the commit: time alone may move their rows.
    """

    def __init__(self, booting: Mapping[str, str]) -> None:
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        self.booting = set(booting.values())
        self.declares = False


class Log:
    """State of the configs and boots as the texts tell it, in the order in which the calculator has taken them."""

    def __init__(self) -> None:
        self.images: dict[str, str] = {}  # by config id, as declared
        self.deleted: set[str] = set()
        self.current: dict[str, str] = {}  # config id by name
        self.booting: dict[str, str] = {}  # image by worker id
        self.registered: set[str] = set()
        self.counts: Counter[str] = Counter(
            dict.fromkeys(
                (
                    "roll-outs",
                    "of them with boots of the image before in progress",
                    "revisions back after their tombstone",
                    "outcomes of a replaced revision",
                    "of an image that their config does not declare",
                    "slow boots that registered",
                    "late boots that registered",
                    "moves of images",
                ),
                0,
            )
        )

    def take(self, records: Sequence[Record]) -> Commit:
        commit = Commit(self.booting)
        for record in records:
            if record.topic == LAUNCH_CONFIG_LIFECYCLE.name:
                commit.declares = True
                self._declare(record)
            elif record.topic == WORKER_LIFECYCLE.name:
                type_ = next(value for name, value in record.headers if name == "ce_type") or b""
                if type_.decode().startswith(TYPES):
                    self.take_event(commit, type_.decode().removeprefix(TYPES), json.loads(record.value or b"{}"))
        return commit

    def _declare(self, record: Record) -> None:
        if record.value is None:
            subject = next(value for name, value in record.headers if name == "ce_subject") or b""
            self.deleted.add(decoded(subject.decode())[0])
            return
        state = json.loads(record.value)
        config_id, name, image = state["launch_config_id"], state["name"], state["image_revision"]
        if state["current"] and state["state"] == "active":
            before = self.images.get(self.current.get(name, ""), image)
            self.counts["roll-outs"] += before != image
            self.counts["of them with boots of the image before in progress"] += before != image and (
                before in self.booting.values()
            )
            self.current[name] = config_id
        if config_id in self.deleted:
            self.deleted.remove(config_id)
            self.counts["revisions back after their tombstone"] += 1
        self.images[config_id] = image

    def take_event(self, commit: Commit, kind: str, event: Mapping[str, Any]) -> None:
        worker_id, config_id, image = event["worker_id"], event["launch_config_id"], event["image_revision"]
        outcome = event.get("outcome")
        if outcome is not None:
            named = {image} | ({outcome["scope_key"]} if outcome.get("scope") == "image" else set()) - {"", None}
            for each in named:
                commit.outcomes[each, outcome["stage"], outcome["result"]] += 1
            self.counts["of an image that their config does not declare"] += self.images.get(config_id, image) != image
            self.counts["outcomes of a replaced revision"] += (
                self.current.get(config_id.partition("@")[0], config_id) != config_id
            )
        if kind == "launched.v1" and not event.get("leaving") and worker_id not in self.registered:
            self.booting[worker_id] = image
            commit.booting.add(image)
        elif kind in BOOT_ENDS:
            self.booting.pop(worker_id, None)
            if kind == "registered.v1":
                self.registered.add(worker_id)


async def moved(
    db: Connection, entries: Sequence[Entry], log: Mapping[Place, Sequence[Record]]
) -> tuple[Counter[str], list[str]]:
    """Counts of what happened to images, and all moves that no event of their commit explains."""
    changes: dict[int | None, list[Change]] = {}
    for seq, key, *bodies in await db.fetch(CHANGES):
        before, after = (body and msgspec.json.decode(body, type=Row) for body in bodies)
        changes.setdefault(seq, []).append((decoded(key)[1], before, after))
    known, found = Log(), [f"image {image} changed outside of all turns" for image, _, _ in changes.pop(None, ())]
    for entry in entries:
        skipped = [*entry.left_out, *entry.dead_lettered]
        places = (record for place in (*entry.taken, *entry.settled) for record in in_range(log, place))
        commit = known.take([record for record in places if not covers(skipped, record)])
        for change in changes.get(entry.seq, ()):
            known.counts["moves of images"] += 1
            found += (f"turn {entry.seq}, image {change[0]}: {what}" for what in unexplained(change, commit))
            image, before, after = change
            if before is not None and after is not None and commit.outcomes[image, "boot", "ok"]:
                known.counts["slow boots that registered"] += after.boot.boots.slow < before.boot.boots.slow
                known.counts["late boots that registered"] += after.boot.late < before.boot.late
    return known.counts, found


def unexplained(change: Change, commit: Commit) -> Iterator[str]:
    """Changes of an image's row that neither an outcome that names it nor a boot of it explains."""
    image, before, after = change
    if after is None:
        if not commit.declares:
            yield "its row was deleted without a change of launch configs"
        return
    if before is not None and any(getattr(after, name).succeeded < getattr(before, name).succeeded for name in STAGES):
        if not commit.declares:
            yield "it lost successes without a change of launch configs"
        before = None  # deleted with its last config, and back in the same commit
    if before is None and image not in commit.booting | {named for named, _, _ in commit.outcomes}:
        yield "its row appeared, though no event names it"
    for name in STAGES:
        new: Stage = getattr(after, name)
        old = getattr(before, name) if before is not None else Stage(window=new.window)
        ok, failed = (commit.outcomes[image, name, result] for result in ("ok", "failed"))
        # A boot that takes too long counts as failed and late until it ends.
        credited, charged = new.succeeded - old.succeeded, (new.failed - new.late) - (old.failed - old.late)
        if credited > ok:
            yield f"{credited} successes of {name} were credited to it, and {ok} events name it"
        if charged > failed:
            yield f"{charged} failures of {name} were charged to it, and {failed} events name it"
        by_time = name == "boot" and image in commit.booting
        if not ok and not failed and not by_time and without_probe(new) != without_probe(old):
            yield f"{name} moved from {old} to {new}, though no outcome names it"
    if before is not None and after.boots != before.boots and not commit.outcomes[image, "boot", "ok"]:
        yield f"its known boots changed from {before.boots} to {after.boots}, though none registered"


def without_probe(stage: Stage) -> Stage:
    """A stage without the state of its probe, which permits and signals of any config that shares the row change."""
    return replace(stage, trip=replace(stage.trip, probe=None, probe_at=0.0, next_probe_at=0.0, signal_probe_at=0.0))
