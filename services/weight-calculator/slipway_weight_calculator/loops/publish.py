"""Publishing of weight records: the only place that decides when one is written."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, Final

from slipway_common.messaging.outbox import Tombstone, Traced
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.record import record, worth_publishing
from slipway_weight_calculator.domain.rows import CONFIG, STAGES, Row
from slipway_weight_calculator.store.weights import Published

CONFIG_SECONDS: Final = 0.1  # minimum between two records of a config
# Records from a backlog are soon outdated by the next turn, so one per second is enough then.
BEHIND_SECONDS: Final = 1.0
CONFIGS_MAX: Final = 500  # per turn: turns stay short however many configs have changed


class Publishing:
    """Selection of the configs that are published in each turn.

    `refresh_seconds`: interval at which weights that decay by time alone, or move with their siblings', are computed
    again. `republish_seconds`: interval at which unchanged records are repeated, which repairs what a stalled former
    leader wrote last. Its state is valid only if the turn commits; otherwise call `load` again.
    """

    def __init__(self, refresh_seconds: float, republish_seconds: float) -> None:
        self.refresh_seconds = refresh_seconds
        self.republish_seconds = republish_seconds
        self.load({}, ())

    def load(self, published: dict[str, Published], config_ids: Iterable[str]) -> None:
        """Load the published records and the configs after a start. All of them are computed once."""
        self.published = published
        self.offsets = {config_id: dict(known.record.offsets) for config_id, known in published.items()}
        self._changed = dict.fromkeys(chain(config_ids, published), "")  # config → trace of what changed it
        self._published_at = 0.0
        self._refreshed_at = 0.0
        self._rotation: Iterator[str] = iter(())

    def due(self) -> float | None:
        """Time at which changed configs are due for publishing; None if there are none."""
        return self._published_at + CONFIG_SECONDS if self._changed else None

    def publish(
        self, draft: Draft, now: float, traces: Mapping[str, str], *, behind: bool
    ) -> tuple[list[Any], dict[str, Published | None]]:
        """Events to publish in a turn, and the published records by config; None after a tombstone."""
        for config_id, places in draft.seen.items():
            self.offsets.setdefault(config_id, {}).update(places)
        for config_id in sorted(affected(draft)):
            self._changed[config_id] = traces.get(config_id, "")
        events: list[Any] = []
        published: dict[str, Published | None] = {}
        if behind and now - self._published_at < BEHIND_SECONDS:
            return events, published
        self._published_at = now
        for config_id in self._next(now):
            trace, known = self._changed.pop(config_id, ""), self.published.get(config_id)
            config = draft.config(config_id)
            if config is None:
                self.offsets.pop(config_id, None)
                if known is not None:
                    events.append(Tombstone(known.record))
                    published[config_id] = None
                    del self.published[config_id]
                continue
            new = record(draft, config, now, self.offsets.get(config_id))
            last = known.record if known is not None else None
            archived = config.declared.state == "archived"
            old = known is not None and not archived and now - known.at >= self.republish_seconds
            if old or worth_publishing(last, new, draft.policy(config)):
                events.append(Traced(new, trace))
                published[config_id] = self.published[config_id] = Published(new, now, archived)
        return events, published

    def _next(self, now: float) -> list[str]:
        """Changed configs that were not published just now, and some of those that only time has changed."""
        changed = (
            config_id
            for config_id in self._changed
            if (known := self.published.get(config_id)) is None or now - known.at >= CONFIG_SECONDS
        )
        found = list(islice(changed, CONFIGS_MAX))
        self._refreshed_at = self._refreshed_at or now
        share = min(1.0, (now - self._refreshed_at) / self.refresh_seconds)
        if (number := min(CONFIGS_MAX, int(share * len(self.published)))) > 0:
            self._refreshed_at = now
            found += [config_id for config_id in self._next_in_rotation(number) if config_id not in self._changed]
        return found

    def _next_in_rotation(self, number: int) -> list[str]:
        """The next published configs, in rotation, without archived ones: nothing launches from these."""
        chosen = list(islice(self._rotation, number))
        if len(chosen) < number:
            self._rotation = iter([config_id for config_id, known in self.published.items() if not known.archived])
            chosen += islice(self._rotation, number - len(chosen))
        return [config_id for config_id in dict.fromkeys(chosen) if config_id in self.published]


def affected(draft: Draft) -> set[str]:
    """Configs with changes that may have to be published.

    A shared row is published with the config whose start changed it; only a trip or a recovery affects all its configs.
    """
    found = {*draft.configs, *draft.signalled()}
    for key, row in draft.rows.items():
        if key.kind == CONFIG:
            found.add(key.id)
        elif _tripped(row) != _tripped(draft.world.rows.get(key)):
            found |= draft.members(key)
    return found


def _tripped(row: Row | None) -> list[bool]:
    return [row is not None and getattr(row, name).trip.tripped for name in STAGES]
