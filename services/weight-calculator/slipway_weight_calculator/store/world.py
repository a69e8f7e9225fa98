"""The world in the database: changes are written, and all of it is read after a start. Bodies are JSON of the core's
values, so the same value has the same bytes."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from slipway_common.database.postgres import Connection
from slipway_common.events.alert import Alert, AlertRaised
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.rows import Boot, Config, Row
from slipway_weight_calculator.domain.signals import Signal
from slipway_weight_calculator.domain.world import World

TABLES: Final[Mapping[str, type[Any]]] = {
    "config": Config,
    "health": Row,
    "boot": Boot,
    "signal": Signal,
    "alert": AlertRaised,
}
READ: Final = {name: f"SELECT key, body FROM {name} ORDER BY key" for name in TABLES}
WRITE: Final = {
    name: f"INSERT INTO {name} SELECT * FROM unnest($1::text[], $2::text[]) "
    "ON CONFLICT (key) DO UPDATE SET body = excluded.body"
    for name in TABLES
}
DELETE: Final = {name: f"DELETE FROM {name} WHERE key = ANY($1::text[])" for name in TABLES}

_decoders: Final = {name: msgspec.json.Decoder(kind) for name, kind in TABLES.items()}
_encode: Final = msgspec.json.Encoder().encode

Changes = dict[str, Mapping[str, Any]]
"""Changed values by table and key; None: deleted."""


def changes(draft: Draft, changed: list[Alert]) -> Changes:
    """Changes to write in a turn: its draft, and the alerts that it raises and resolves."""
    alerts = {alert.dedup_key: alert if isinstance(alert, AlertRaised) else None for alert in changed}
    found: Changes = {
        "config": draft.configs,
        "health": draft.rows,
        "boot": draft.boots,
        "signal": draft.signals,
        "alert": alerts,
    }
    return {name: values for name, values in found.items() if values}


async def write(tx: Connection, changed: Changes) -> None:
    for name, values in changed.items():
        written = {key: _encode(value).decode() for key, value in values.items() if value is not None}
        if written:
            await tx.execute(WRITE[name], list(written), list(written.values()))
        if len(written) < len(values):
            await tx.execute(DELETE[name], [key for key, value in values.items() if value is None])


async def read(db: Connection, policies: Mapping[str, Policy]) -> tuple[World, dict[str, AlertRaised]]:
    """The stored world and the open alerts."""
    found: dict[str, dict[str, Any]] = {}
    for name, decoder in _decoders.items():
        found[name] = {row["key"]: decoder.decode(row["body"]) for row in await db.fetch(READ[name])}
    world = World(policies)
    world.load(found["config"].values(), found["health"], found["boot"], found["signal"])
    return world, found["alert"]
