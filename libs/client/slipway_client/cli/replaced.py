"""Revisions that a command has replaced, and what becomes of them: the same lines and fields for every command."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from slipway_client.transport.http import Api
from slipway_client.view.phrases import count, drain, is_fallback
from slipway_common.base.revisions import hash_of, name_of

LAUNCH_CONFIG: Final = "launch config"
NAMED_MAX: Final = 20
"""Replacements that are described one by one."""
OF_REPLACED: Final = ("id", "image_revision", "state", "replaced_by", "live", "drain_until", "drain_terminate")
Row = Mapping[str, Any]


def current_revisions(api: Api, **wanted: Any) -> list[Row]:
    """Revisions of launch configs that are not archived."""
    rows: list[Row] = api.get("provisioner", "/launch-configs", **wanted)["items"]
    return rows


def names_of(changes: Sequence[Row]) -> list[str]:
    """The first launch configs that exist and that changes may give another revision."""
    changed = [row for row in changes if row["kind"] == LAUNCH_CONFIG and row["result"] in ("updated", "reactivated")]
    return [row["id"] for row in changed[:NAMED_MAX]]


def replacements(before: Sequence[Row], after: Sequence[Row], changes: Sequence[Row]) -> list[dict[str, Any]]:
    """Launch configs that have another current revision than before, with the state of what it replaces."""
    old, new = _by_name(before), _by_name(after)
    results = {change["id"]: change["result"] for change in changes if change["kind"] == LAUNCH_CONFIG}
    found = {row["id"]: row for row in after}
    made = []
    for name in sorted(name for name in results.keys() & old.keys() & new.keys() if old[name]["id"] != new[name]["id"]):
        launched = [row for row in before if name_of(row["id"]) == name and row["state"] == "active"]
        others = [row for row in launched if row["id"] not in (old[name]["id"], new[name]["id"])]
        made.append(
            {
                "id": name,
                "revision": new[name]["id"],
                "image_revision": new[name]["image_revision"],
                "made": "reactivated" if results[name] == "reactivated" else "created",
                "needed_starts": new[name].get("needed_starts", 0),
                "replaces": [
                    {field: found.get(row["id"], {**row, "state": "archived"}).get(field) for field in OF_REPLACED}
                    for row in (old[name], *others)
                ],
            }
        )
    return made


def with_replacements(changes: Sequence[Row], made: Sequence[Row]) -> list[Row]:
    """Changes, those of launch configs with their replacement."""
    by_name = {one["id"]: {field: value for field, value in one.items() if field != "id"} for one in made}
    return [
        {**change, "replacement": by_name[change["id"]]}
        if change["kind"] == LAUNCH_CONFIG and change["id"] in by_name
        else change
        for change in changes
    ]


def lines(made: Sequence[Row], now: datetime) -> Iterator[str]:
    """A line for each replacement: images, revisions, and the fates of the other revisions."""
    for one in made:
        old, *others = one["replaces"]
        images = dict.fromkeys((old["image_revision"], one["image_revision"]))
        named = [("the old one", old), *((f"{row['id']} ({row['image_revision']})", row) for row in others)]
        fates = "; ".join(f"{name} {_fate(row, one['needed_starts'], now)}" for name, row in named)
        revisions = f"{hash_of(old['id'])} → {hash_of(one['revision'])} ({one['made']})"
        yield f"{one['id']}: {' → '.join(images)}, revision {revisions}, {fates}"


def _fate(row: Row, needed_starts: int, now: datetime) -> str:
    """Fate of a replaced revision."""
    if row["state"] == "archived":
        return "is archived"
    if is_fallback({**row, "current": False}):
        verb = "shares launches" if row.get("replaced_by") == "rolling" else "launches what it does not"
        return f"{verb} until {count(needed_starts, 'start')} have succeeded"
    return f"drains, {drain(row, now)}"


def _by_name(rows: Sequence[Row]) -> dict[str, Row]:
    return {name_of(row["id"]): row for row in rows if row["current"]}
