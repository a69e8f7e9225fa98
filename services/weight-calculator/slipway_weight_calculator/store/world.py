"""The world in the database: changes are written, and all of it is read after a start. Bodies are JSON of the core's
values, so the same value has the same bytes."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from sqlalchemy import Table, any_, delete, select
from sqlalchemy.dialects.postgresql import Insert, insert

from slipway_api.events.alert import Alert, AlertRaised
from slipway_api.events.scopes import Key
from slipway_common.database.postgres import Connection
from slipway_common.database.sql import Statement, array, given
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.policy import Policy
from slipway_weight_calculator.domain.rows import Boot, Config, Row
from slipway_weight_calculator.domain.signals import Signal
from slipway_weight_calculator.domain.world import World
from slipway_weight_calculator.store import tables

TABLES: Final[Mapping[str, type[Any]]] = {
    tables.config.name: Config,
    tables.health.name: Row,
    tables.boot.name: Boot,
    tables.signal.name: Signal,
    tables.open_alert.name: AlertRaised,
}


def _upsert(table: Table) -> Insert:
    key, body = table.c.key, table.c.body
    inserted = insert(table).from_select([key, body], select(given(key, body)))
    return inserted.on_conflict_do_update(index_elements=[key], set_={"body": inserted.excluded.body})


_tables = [tables.metadata.tables[name] for name in TABLES]
READ: Final = {table.name: Statement(select(table.c.key, table.c.body).order_by(table.c.key)) for table in _tables}
WRITE: Final = {table.name: Statement(_upsert(table)) for table in _tables}
DELETE: Final = {
    table.name: Statement(delete(table).where(table.c.key == any_(array("keys", table.c.key)))) for table in _tables
}

_decoders: Final = {name: msgspec.json.Decoder(kind) for name, kind in TABLES.items()}
_encode: Final = msgspec.json.Encoder().encode

Changes = dict[str, Mapping[str, Any]]
"""Changed values by table and key; None: deleted."""


def changes(draft: Draft, changed: list[Alert]) -> Changes:
    """Changes to write in a turn: its draft, and the alerts that it raises and resolves."""
    alerts = {alert.dedup_key: alert if isinstance(alert, AlertRaised) else None for alert in changed}
    found: Changes = {
        "config": draft.configs,
        "health": {key.text: row for key, row in draft.rows.items()},
        "boot": draft.boots,
        "signal": draft.signals,
        "open_alert": alerts,
    }
    return {name: values for name, values in found.items() if values}


async def write(tx: Connection, changed: Changes) -> None:
    for name, values in changed.items():
        written = {key: _encode(value).decode() for key, value in values.items() if value is not None}
        if written:
            await tx.execute(WRITE[name].text, *WRITE[name].arguments(key=list(written), body=list(written.values())))
        if len(written) < len(values):
            await tx.execute(DELETE[name].text, [key for key, value in values.items() if value is None])


async def read(db: Connection, policies: Mapping[str, Policy]) -> tuple[World, dict[str, AlertRaised]]:
    """The stored world and the open alerts."""
    found: dict[str, dict[str, Any]] = {}
    for name, decoder in _decoders.items():
        found[name] = {row["key"]: decoder.decode(row["body"]) for row in await db.fetch(READ[name].text)}
    world = World(policies)
    rows = {Key.of(text): row for text, row in found["health"].items()}
    world.load(found["config"].values(), rows, found["boot"], found["signal"])
    return world, found["open_alert"]
