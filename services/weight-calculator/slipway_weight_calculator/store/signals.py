"""Signals in the database: the live ones, and the newest that were refused."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from sqlalchemy import Integer, bindparam, delete, func, insert, select

from slipway_api.events.signal import SignalRaised
from slipway_api.http.weight_calculator import LiveSignal, RefusedSignal
from slipway_common.database.postgres import Connection, Database
from slipway_common.database.sql import Statement, given
from slipway_weight_calculator.domain.rows import Boot, Config
from slipway_weight_calculator.domain.signals import Signal
from slipway_weight_calculator.domain.world import World
from slipway_weight_calculator.store.tables import boot, config, refused_signal, signal

REFUSED_MAX: Final = 100

CLOCK: Final = Statement(select(func.slipway_clock()))
CONFIGS: Final = Statement(select(config.c.body).order_by(config.c.key))
BOOT: Final = Statement(select(boot.c.key, boot.c.body).where(boot.c.key == bindparam("worker_id")))
LIVE: Final = Statement(select(signal.c.body).order_by(signal.c.key))
NEWEST_FIRST: Final = refused_signal.c.id.desc()
FIELDS: Final = refused_signal.c["at", "reason", "body"]
REFUSED: Final = Statement(select(*FIELDS).order_by(NEWEST_FIRST))
REFUSE: Final = Statement(
    insert(refused_signal).from_select(
        FIELDS.keys(), select(bindparam("at", type_=FIELDS.at.type), given(FIELDS.reason, FIELDS.body))
    )
)
OLD: Final = select(refused_signal.c.id).order_by(NEWEST_FIRST).offset(bindparam("most", type_=Integer)).limit(1)
FORGET: Final = Statement(delete(refused_signal).where(refused_signal.c.id <= OLD.scalar_subquery()))

_config: Final = msgspec.json.Decoder(Config).decode
_boot: Final = msgspec.json.Decoder(Boot).decode
_signal: Final = msgspec.json.Decoder(Signal).decode


class Refused(msgspec.Struct, frozen=True):
    """A signal without effect and the reason: its kind, a colon, and a text."""

    event: SignalRaised
    reason: str


async def clock(db: Connection) -> datetime:
    now: datetime = await db.fetchval(CLOCK.text)
    return now


async def world(db: Connection, worker_id: str) -> World:
    """The part of the world that decides about a signal: configs, live signals, and the boot of the given worker."""
    configs = [_config(row["body"]) for row in await db.fetch(CONFIGS.text)]
    boots = {row["key"]: _boot(row["body"]) for row in await db.fetch(BOOT.text, worker_id)}
    live = [_signal(row["body"]) for row in await db.fetch(LIVE.text)]
    found = World()
    found.load(configs, {}, boots, {signal.key: signal for signal in live})
    return found


async def refuse(tx: Connection, refused: Sequence[Refused], at: float) -> None:
    """Store refused signals; only the newest are kept."""
    if refused:
        newest = refused[-REFUSED_MAX:]
        values = REFUSE.arguments(
            at=at,
            reason=[one.reason.replace("\0", "") for one in newest],
            body=[msgspec.json.encode(one.event).decode() for one in newest],
        )
        await tx.execute(REFUSE.text, *values)
        await tx.execute(FORGET.text, *FORGET.arguments(most=REFUSED_MAX))


async def live(db: Database) -> list[LiveSignal]:
    """List the live signals."""
    found = [_signal(row["body"]) for row in await db.fetch(LIVE.text)]
    return [
        LiveSignal(
            source=s.source,
            kind=s.kind,
            target_kind=s.target_kind,
            target_id=s.target_id,
            value=s.value,
            reason=s.reason,
            configs=s.configs,
            since=_time(s.since),
            until=_time(s.until),
        )
        for s in found
    ]


async def refused(db: Database) -> list[RefusedSignal]:
    """List the refused signals, newest first."""
    rows = await db.fetch(REFUSED.text)
    found = [(row, msgspec.json.decode(row["body"], type=SignalRaised)) for row in rows]
    return [
        RefusedSignal(
            at=_time(row["at"]),
            source=e.source,
            kind=e.kind,
            target_kind=e.target_kind,
            target_id=e.target_id,
            reason=row["reason"],
        )
        for row, e in found
    ]


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
