"""What is known becomes published weights. The one place where it is decided that a weight record is written."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final

from slipway_common.events.weight import WeightChanged
from slipway_common.outbox import Tombstone, Traced
from slipway_weight_calculator.domain.record import record, worth_publishing
from slipway_weight_calculator.domain.rows import STAGES, Row
from slipway_weight_calculator.domain.world import Draft
from slipway_weight_calculator.store.weights import Published

QUIET_SECONDS: Final = 0.1  # a config that was told of less long ago waits for the tick
# What is folded from a backlog is the past, and the next turn overturns it: then the newest word each second is enough.
BEHIND_SECONDS: Final = 1.0
LOOKS_MAX: Final = 500  # at configs in one turn: a turn stays short however many have changed


class Publishing:
    """Which configs are told of in which turn.

    `refresh_seconds`: how long a weight may fade by time alone, or move with its siblings', before it is looked at
    again. `republish_seconds`: also an unchanged record is repeated that often, which heals whatever a stalled
    predecessor wrote last. Whatever it remembers holds only if the turn commits; else `load` it again.
    """

    def __init__(self, refresh_seconds: float, republish_seconds: float) -> None:
        self.refresh_seconds = refresh_seconds
        self.republish_seconds = republish_seconds
        self.load({}, ())

    def load(self, published: dict[str, Published], config_ids: Iterable[str]) -> None:
        """After a start: what others have, and the configs that there are. All of them are looked at once."""
        self.published = published
        self.offsets = {config_id: dict(told.record.offsets) for config_id, told in published.items()}
        self._changed = dict.fromkeys(chain(config_ids, published), "")  # config → trace of what changed it
        self._looked_at = 0.0
        self._refreshed_at = 0.0
        self._round: Iterator[str] = iter(())

    def due(self) -> float | None:
        """When the next look is due, if nothing else happens."""
        return self._looked_at + QUIET_SECONDS if self._changed else None

    def look(
        self, draft: Draft, now: float, traces: Mapping[str, str], *, behind: bool
    ) -> tuple[list[Any], dict[str, WeightChanged | None]]:
        """What to tell in a turn: the events, and the records that others have afterwards, None after a tombstone."""
        for config_id, places in draft.seen.items():
            self.offsets.setdefault(config_id, {}).update(places)
        for config_id in sorted(affected(draft)):
            self._changed[config_id] = traces.get(config_id, "")
        events: list[Any] = []
        told: dict[str, WeightChanged | None] = {}
        if behind and now - self._looked_at < BEHIND_SECONDS:
            return events, told
        self._looked_at = now
        for config_id in self._next(draft, now):
            trace, known = self._changed.pop(config_id, ""), self.published.get(config_id)
            config = draft.config(config_id)
            if config is None or config.declared.state == "archived":
                self.offsets.pop(config_id, None)
                if known is not None:
                    events.append(Tombstone(known.record))
                    told[config_id] = None
                    del self.published[config_id]
                continue
            new = record(draft, config, now, self.offsets.get(config_id))
            last = known.record if known is not None else None
            old = known is not None and now - known.at >= self.republish_seconds
            if old or worth_publishing(last, new, draft.policy(config)):
                events.append(Traced(new, trace))
                told[config_id] = new
                self.published[config_id] = Published(new, now)
        return events, told

    def _next(self, draft: Draft, now: float) -> list[str]:
        """Configs that have changed and were not told of just now, and some of those that only time has moved."""
        quiet = (
            config_id
            for config_id in self._changed
            if (known := self.published.get(config_id)) is None or now - known.at >= QUIET_SECONDS
        )
        found = list(islice(quiet, LOOKS_MAX))
        self._refreshed_at = self._refreshed_at or now
        share = min(1.0, (now - self._refreshed_at) / self.refresh_seconds)
        if (number := min(LOOKS_MAX, int(share * len(self.published)))) > 0:
            self._refreshed_at = now
            found += [config_id for config_id in self._turned(number) if config_id not in self._changed]
        return found

    def _turned(self, number: int) -> list[str]:
        """The next of those that others know, round and round."""
        chosen = list(islice(self._round, number))
        if len(chosen) < number:
            self._round = iter(list(self.published))
            chosen += islice(self._round, number - len(chosen))
        return [config_id for config_id in dict.fromkeys(chosen) if config_id in self.published]


def affected(draft: Draft) -> set[str]:
    """Configs of which something may have changed that others should know.

    What configs share is told with the one whose start has moved it; only when it closes or opens, all are concerned.
    """
    found = set(draft.configs)
    for key, row in draft.rows.items():
        if "/" not in key:
            found.add(key)
        elif _closed(row) != _closed(draft.world.rows.get(key)):
            found |= draft.members(key)
    for key, signal in draft.signals.items():
        for told in (signal, draft.world.signals.get(key)):
            found.update(told.configs if told is not None else ())
    return found


def _closed(row: Row | None) -> list[bool]:
    return [row is not None and getattr(row, name).gate.closed for name in STAGES]
