"""Check of the rows at the end of a history with crashes: they must equal a replay of the journal."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec

from slipway_api.events.scopes import Key
from slipway_api.events.topics import LAUNCH_CONFIG_WEIGHT
from slipway_api.events.weight import WeightChanged
from slipway_api.percent import encoded
from slipway_common.database.postgres import Connection
from slipway_weight_calculator.domain.rows import CONFIG, STAGES, Row
from slipway_weight_calculator.store import journal
from slipway_weight_calculator.store.journal import Entry, Range
from tests.simulation.weights_images import moved
from tests.simulation.weights_log import History, Offset
from tests.support.weight_calculator import replayed, stored

POSITIONS: Final = "SELECT topic, partition, next_offset FROM consumed WHERE next_offset > 0"
DEAD: Final = 'SELECT topic, partition, "offset" FROM dead_letter'
PUBLISHED: Final = "SELECT DISTINCT ON (key) key, value FROM outbox WHERE topic = $1 ORDER BY key, id DESC"
STORED: Final = "SELECT id, record FROM weight"


async def judge(db: Connection, history: History) -> tuple[Counter[str], list[str]]:
    """Counts of what happened, and all differences from the expected rows; expects that the whole log was read."""
    entries, rows = await journal.read(db), await stored(db)
    health = {Key.of(text): msgspec.json.decode(body, type=Row) for text, body in rows["health"].items()}
    counts = happened(entries, health)
    of_images, images = await moved(db, entries, history.log)
    counts.update(of_images)
    if found := [*out_of_place(entries), *differing("taken up to", taken(entries), history.ends())]:
        return counts, found
    wanted = replayed(entries, history.log)
    for table, bodies in rows.items():
        found += differing(f"{table} row", bodies, wanted[table])
    positions = {(row["topic"], row["partition"]): row["next_offset"] for row in await db.fetch(POSITIONS)}
    found += differing("position", positions, history.ends())
    found += images
    found += differing("left out", marked(left_out(entries)), marked(history.left_out))
    dead_lettered = [place for entry in entries for place in offsets(entry.dead_lettered)]
    found += differing("dead letter", marked(map(tuple, await db.fetch(DEAD))), marked(dead_lettered))
    folded = {
        (key.id, name): count
        for key, row in health.items()
        for name in STAGES
        if key.kind == CONFIG and (count := getattr(row, name).folded)
    }
    kept = {place: count for place, count in folded.items() if place[0] not in history.deleted}
    found += differing("failures folded", kept, history.failures())
    newest = await db.fetch(PUBLISHED, LAUNCH_CONFIG_WEIGHT.name)
    published = {row["key"]: row["value"].decode() for row in newest if row["value"] is not None}
    found += differing("weight", {encoded(row["id"]): row["record"] for row in await db.fetch(STORED)}, published)
    found += differing(
        "failures published", failures_in(published), {at: n for at, n in folded.items() if encoded(at[0]) in published}
    )
    return counts, found


def out_of_place(entries: Sequence[Entry]) -> Iterator[str]:
    """Turns out of sequence, and ranges that do not begin at the end of the last one of their partition."""
    for before, entry in pairwise(entries):
        if entry.seq != before.seq + 1 or entry.at < before.at or entry.epoch < before.epoch:
            yield f"turn {entry.seq}, {entry.epoch}, {entry.at} follows {before.seq}, {before.epoch}, {before.at}"
    ends = Counter[tuple[str, int]]()
    for entry in entries:
        for topic, partition, first, end in entry.taken:
            if first != ends[topic, partition]:
                yield f"turn {entry.seq} takes {topic}/{partition} from {first} on, after {ends[topic, partition]}"
            ends[topic, partition] = end


def taken(entries: Sequence[Entry]) -> dict[tuple[str, int], int]:
    """End of the ranges of each partition."""
    return {(topic, partition): end for entry in entries for topic, partition, _, end in entry.taken}


def left_out(entries: Sequence[Entry]) -> Iterator[Offset]:
    return (place for entry in entries for place in offsets(entry.left_out))


def offsets(ranges: Sequence[Range]) -> list[Offset]:
    return [(topic, partition, n) for topic, partition, first, end in ranges for n in range(first, end)]


def failures_in(published: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """Failures folded according to published records, by config and stage."""
    return {
        (record.launch_config_id, name): stage.failures_folded
        for record in (msgspec.json.decode(value, type=WeightChanged) for value in published.values())
        for name, stage in record.stages.items()
        if stage.failures_folded
    }


def happened(entries: Sequence[Entry], health: Mapping[Key, Row]) -> Counter[str]:
    """Counts of what happened; a history without one of them is insufficient evidence."""
    trips = [getattr(row, name).trip for row in health.values() for name in STAGES]
    return Counter(
        {
            "records": sum(len(offsets(entry.taken)) for entry in entries),
            "turns": len(entries),
            "by time alone": sum(not entry.taken for entry in entries),
            "without effect": sum(1 for _ in left_out(entries)),
            "dead or parked": sum(len(offsets(entry.dead_lettered)) for entry in entries),
            "stages that tripped": sum(trip.tripped or trip.recovered_at > 0 for trip in trips),
            "configs that probed": sum(row.permit_at > 0 for row in health.values()),
        }
    )


def marked(places: Iterable[Any]) -> dict[Any, bool]:
    return dict.fromkeys(places, True)


def differing(subject: str, found: Mapping[Any, Any], wanted: Mapping[Any, Any]) -> list[str]:
    """One sentence per key whose values differ."""
    return [
        f"{subject} {key} is {found.get(key)}, not {wanted.get(key)}"
        for key in sorted({*found, *wanted})
        if found.get(key) != wanted.get(key)
    ]
