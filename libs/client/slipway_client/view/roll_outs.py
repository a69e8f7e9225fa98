"""Lines on roll-outs and drains: the differences between two snapshots. Pure.

Many revisions of a pool change together, since most declarations change all of its images: then one line names several.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from slipway_client.view.phrases import count, drain, is_fallback, unproven
from slipway_client.view.snapshot import Config, EventLine, Snapshot
from slipway_common.base.text import listed

NAMED: Final = 3


class Step(NamedTuple):
    """Step of one revision. `one` is its line where it is alone in its pool, `many` the noun and verb for several."""

    config: Config
    one: str
    many: str
    mood: str = ""


def differences(before: Snapshot, now: Snapshot) -> list[EventLine]:
    """Revisions that began to replace others, were proven, drain, returned, were archived, or have workers after a
    deadline."""
    if not before.configs:
        return []
    together: dict[tuple[str, str, str], list[Step]] = defaultdict(list)
    for taken in (_begun, _proven, _draining, _returned, _archived, _overdue):
        for step in taken(before, now):
            together[step.config.pool_id, step.many, step.mood].append(step)
    lines = []
    for (pool_id, many, mood), steps in together.items():
        ids = listed([step.config.id for step in steps], NAMED)
        text = steps[0].one if len(steps) == 1 else f"pool {pool_id}: {len(steps)} {many} ({ids})"
        lines.append(EventLine(now.now, text, mood))
    return lines


def _begun(before: Snapshot, now: Snapshot) -> Iterator[Step]:
    """Names that stand for another revision than before."""
    was, known = _current(before), {config.id for config in before.configs}
    fallbacks = {config.name: config.revision for config in now.configs if is_fallback(config)}
    for name, config in _current(now).items():
        if name not in was or was[name].id == config.id:
            continue
        if config.id in known:
            yield Step(config, f"{config.id} is current again", "earlier revisions are current again")
        elif name in fallbacks:
            until = f"until {count(config.needed_starts, 'start')} of it succeeded"
            one = f"{config.id} rolls out; {fallbacks[name]} is its fallback {until}"
            yield Step(config, one, "new revisions roll out, the old ones are their fallbacks")
        else:
            yield Step(config, f"{config.id} replaces {was[name].revision}", "revisions replace the old ones at once")


def _proven(before: Snapshot, now: Snapshot) -> Iterator[Step]:
    """New revisions that had enough successful starts, which ends their roll-out."""
    known = {config.id for config in before.configs if unproven(config)}
    replacing = {config.name for config in before.configs if is_fallback(config)}
    for config in now.configs:
        if config.id in known and config.proven and config.current and config.name in replacing:
            yield Step(config, f"{config.id} is proven", "new revisions are proven", "good")


def _draining(before: Snapshot, now: Snapshot) -> Iterator[Step]:
    was = {config.id for config in before.configs if config.state == "draining"}
    for config in now.configs:
        if config.state == "draining" and config.id not in was:
            reason = f": {config.state_reason}" if config.state_reason else ""
            yield Step(config, f"{config.id} drains{reason} ({drain(config, now.now)})", "revisions drain")


def _returned(before: Snapshot, now: Snapshot) -> Iterator[Step]:
    """Draining revisions that are fallbacks again, since the image of the current one has gone bad."""
    was, current = {config.id for config in before.configs if config.state == "draining"}, _current(now)
    for config in now.configs:
        if config.id in was and is_fallback(config) and config.name in current:
            one = f"{config.id} is the fallback again: {current[config.name].revision} has gone bad"
            yield Step(config, one, "revisions are fallbacks again, since new images have gone bad", "bad")


def _archived(before: Snapshot, now: Snapshot) -> Iterator[Step]:
    """Revisions whose last worker has left. They are no longer listed."""
    listed = {config.id for config in now.configs if config.state != "archived"}
    for config in before.configs:
        if config.state == "draining" and config.id not in listed:
            yield Step(config, f"{config.id} drained and archived", "revisions drained and archived", "good")


def _overdue(before: Snapshot, now: Snapshot) -> Iterator[Step]:
    """Draining revisions whose deadline has passed since `before`."""
    for config in now.configs:
        until = config.drain_until
        if config.state == "draining" and config.live and until is not None and before.now < until <= now.now:
            end = "they are terminated" if config.drain_terminate else "they may finish their tasks"
            one = f"{config.id}: drain deadline passed with {count(config.live, 'worker')} left; {end}"
            yield Step(config, one, "drains passed their deadlines", "bad")


def _current(snapshot: Snapshot) -> Mapping[str, Config]:
    """Revision that each name stands for."""
    return {config.name: config for config in snapshot.configs if config.current and config.state != "archived"}
