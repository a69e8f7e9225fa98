"""Safety limits among the configs of a pool: the room that they leave to a decision, and what they stop. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from slipway_api.events.scopes import Key
from slipway_provisioner.domain.limits import (
    Level,
    Limit,
    Reached,
    Tariff,
    amount,
    headroom,
    waiting_spend,
)
from slipway_provisioner.domain.pool import Config, Share

LIMITS: Final = "safety limits"
"""Stage of the share of all configs under a limit."""


def capped(configs: Sequence[Config], levels: Sequence[Level], tariff: Tariff) -> tuple[list[Config], dict[Share, int]]:
    """The configs with the limits that hold for them as `caps`, and the room of each limit in starts.

    A limit has as much room as for the dearest of the machines that it has room for, so that whatever is chosen among
    them stays within it. A machine that is too dear, or without a price, has a share of its own, without room.
    """
    rooms: dict[Share, int] = {}
    found = []
    for config in configs:
        caps = []
        for level, units, _ in _headrooms(config, levels, tariff):
            key = Key(level.limit.scope, level.limit.scope_id)
            share = (key, LIMITS) if units else (key, f"{LIMITS} for {config.id}")
            rooms[share] = min(units, rooms.get(share, units))
            caps.append(share)
        found.append(msgspec.structs.replace(config, caps=tuple(caps)))
    return found, rooms


def reached(
    configs: Sequence[Config], levels: Sequence[Level], launches: Mapping[str, int], tariff: Tariff
) -> dict[str, Reached]:
    """The limit that stops a further launch of each config, by its id, once these `launches` wait to start."""
    after = with_launches(configs, levels, launches)
    found = {}
    for config in configs:
        stops = (stopped for _, _, stopped in _headrooms(config, after, tariff) if stopped is not None)
        if (first := next(stops, None)) is not None:
            found[config.id] = first
    return found


def exceeded(
    configs: Sequence[Config], levels: Sequence[Level], launches: Mapping[str, int], tariff: Tariff
) -> list[str]:
    """Limits that these launches would exceed, as text for people; empty for those that a plan makes."""
    problems = []
    by_id = {config.id: config for config in configs}
    for before, after in zip(levels, with_launches(configs, levels, launches), strict=True):
        own = [by_id[id_] for id_, units in launches.items() if units and _holds(before.limit, by_id[id_])]
        if not own:
            continue
        limit, counted = after.limit, after.usage.launches + sum(after.waiting.values())
        if limit.launches_per_hour is not None and counted > limit.launches_per_hour:
            problems.append(f"{counted} launches exceed {limit.launches_per_hour} per hour of {limit.subject}")
        if limit.spend_per_day is not None:
            spend = after.usage.spend + max(waiting_spend(after, _limits(each, levels), tariff) for each in own)
            if spend > limit.spend_per_day:
                problems.append(f"{amount(spend)} exceeds {amount(limit.spend_per_day)} per day of {limit.subject}")
    return problems


def with_launches(configs: Sequence[Config], levels: Sequence[Level], launches: Mapping[str, int]) -> list[Level]:
    """The levels with further launches that wait to start, by the id of their config."""
    found = []
    for level in levels:
        waiting = Counter(level.waiting)
        for config in configs:
            if _holds(level.limit, config) and (units := launches.get(config.id, 0)):
                waiting[config.kind] += units
        found.append(msgspec.structs.replace(level, waiting=dict(waiting)))
    return found


def _headrooms(config: Config, levels: Sequence[Level], tariff: Tariff) -> Iterator[tuple[Level, int, Reached | None]]:
    """Headroom of a config under each limit that holds for it."""
    limits = _limits(config, levels)
    for level in levels:
        if _holds(level.limit, config):
            yield level, *headroom(level, config.kind, limits, tariff)


def _limits(config: Config, levels: Sequence[Level]) -> list[Limit]:
    return [level.limit for level in levels if _holds(level.limit, config)]


def _holds(limit: Limit, config: Config) -> bool:
    return limit.scope == "pool" or limit.scope_id == config.account_id
