"""Revisions that a command has replaced, and what becomes of them, in lines and fields for every command. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import asdict, replace

from slipway_api.http.declaration import Change
from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_client.view.phrases import count, drain
from slipway_common.base.revisions import hash_of, name_of

LAUNCH_CONFIG: Final = "launch config"
SHOWN: Final = ("id", "image_revision", "state", "replaced_by", "live", "drain_until", "drain_terminate")
"""Fields of a revision that another one has replaced."""
NAMED_MAX: Final = 20
"""Replacements that are described one by one."""


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """The new current revision of a launch config, which was created or reactivated, and those that it replaces."""

    revision: str
    image_revision: str
    made: str
    needed_starts: int
    replaces: list[LaunchConfig]


def names_of(changes: Sequence[Change]) -> list[str]:
    """The first launch configs that exist and that changes may give another revision."""
    changed = [row for row in changes if row.kind == LAUNCH_CONFIG and row.result in ("updated", "reactivated")]
    return [row.id for row in changed[:NAMED_MAX]]


def replacements(
    before: Sequence[LaunchConfig], after: Sequence[LaunchConfig], changes: Sequence[Change]
) -> dict[str, Replacement]:
    """Launch configs that have another current revision than before, with the state of what it replaces."""
    old, new = _by_name(before), _by_name(after)
    results = {change.id: change.result for change in changes if change.kind == LAUNCH_CONFIG}
    found = {row.id: row for row in after}
    made = {}
    for name in sorted(name for name in results.keys() & old.keys() & new.keys() if old[name].id != new[name].id):
        launched = [row for row in before if name_of(row.id) == name and row.state == "active"]
        others = [row for row in launched if row.id not in (old[name].id, new[name].id)]
        left = [found.get(row.id, replace(row, state="archived")) for row in (old[name], *others)]
        made[name] = Replacement(
            revision=new[name].id,
            image_revision=new[name].image_revision,
            made="reactivated" if results[name] == "reactivated" else "created",
            needed_starts=new[name].needed_starts,
            replaces=left,
        )
    return made


def with_replacements(changes: Sequence[Change], made: Mapping[str, Replacement]) -> list[dict[str, object]]:
    """Changes, those of launch configs with their replacement."""
    return [
        msgspec.to_builtins(change)
        | ({"replacement": _fields(made[change.id])} if change.kind == LAUNCH_CONFIG and change.id in made else {})
        for change in changes
    ]


def _fields(one: Replacement) -> dict[str, object]:
    shown = [{name: getattr(row, name) for name in SHOWN} for row in one.replaces]
    return asdict(one) | {"replaces": shown}


def lines(made: Mapping[str, Replacement], now: datetime) -> Iterator[str]:
    """A line for each replacement: images, revisions, and the fates of the other revisions."""
    for name, one in made.items():
        old, *others = one.replaces
        images = dict.fromkeys((old.image_revision, one.image_revision))
        named = [("the old one", old), *((f"{row.id} ({row.image_revision})", row) for row in others)]
        fates = "; ".join(f"{which} {_fate(row, one.needed_starts, now)}" for which, row in named)
        revisions = f"{hash_of(old.id)} → {hash_of(one.revision)} ({one.made})"
        yield f"{name}: {' → '.join(images)}, revision {revisions}, {fates}"


def _fate(row: LaunchConfig, needed_starts: int, now: datetime) -> str:
    """Fate of a replaced revision."""
    if row.state == "archived":
        return "is archived"
    if row.state == "active":
        verb = "shares launches" if row.replaced_by == "rolling" else "launches what it does not"
        return f"{verb} until {count(needed_starts, 'start')} have succeeded"
    return f"drains, {drain(row, now)}"


def _by_name(rows: Sequence[LaunchConfig]) -> dict[str, LaunchConfig]:
    return {name_of(row.id): row for row in rows if row.current}
