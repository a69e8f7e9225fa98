"""Signals in the database: the live ones, and the newest that were refused."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from slipway_common.database.postgres import Connection, Database
from slipway_common.events.signal import SignalRaised
from slipway_weight_calculator.domain.rows import Boot, Config
from slipway_weight_calculator.domain.signals import Signal
from slipway_weight_calculator.domain.world import World

REFUSED_MAX: Final = 100

CLOCK: Final = "SELECT slipway_clock()"
CONFIGS: Final = "SELECT body FROM config ORDER BY key"
BOOT: Final = "SELECT key, body FROM boot WHERE key = $1"
LIVE: Final = "SELECT body FROM signal ORDER BY key"
REFUSED: Final = "SELECT at, reason, body FROM refused_signal ORDER BY id DESC"
REFUSE: Final = "INSERT INTO refused_signal (at, reason, body) SELECT $1, * FROM unnest($2::text[], $3::text[])"
FORGET: Final = """
DELETE FROM refused_signal WHERE id <= (SELECT id FROM refused_signal ORDER BY id DESC OFFSET $1 LIMIT 1)"""


_config: Final = msgspec.json.Decoder(Config).decode
_boot: Final = msgspec.json.Decoder(Boot).decode
_signal: Final = msgspec.json.Decoder(Signal).decode


class Refused(msgspec.Struct, frozen=True):
    """A signal without effect and the reason: its kind, a colon, and a text."""

    event: SignalRaised
    reason: str


async def clock(db: Connection) -> datetime:
    now: datetime = await db.fetchval(CLOCK)
    return now


async def world(db: Connection, worker_id: str) -> World:
    """The part of the world that decides about a signal: configs, live signals, and the boot of the given worker."""
    configs = [_config(row["body"]) for row in await db.fetch(CONFIGS)]
    boots = {row["key"]: _boot(row["body"]) for row in await db.fetch(BOOT, worker_id)}
    live = [_signal(row["body"]) for row in await db.fetch(LIVE)]
    found = World()
    found.load(configs, {}, boots, {signal.key: signal for signal in live})
    return found


async def refuse(tx: Connection, refused: Sequence[Refused], at: float) -> None:
    """Store refused signals; only the newest are kept."""
    if refused:
        newest = refused[-REFUSED_MAX:]
        bodies = [msgspec.json.encode(one.event).decode() for one in newest]
        await tx.execute(REFUSE, at, [one.reason.replace("\0", "") for one in newest], bodies)
        await tx.execute(FORGET, REFUSED_MAX)


async def live(db: Database) -> list[dict[str, Any]]:
    """List the live signals, as in the API."""
    found = [_signal(row["body"]) for row in await db.fetch(LIVE)]
    return [
        {
            "source": s.source,
            "kind": s.kind,
            "target_kind": s.target_kind,
            "target_id": s.target_id,
            "value": s.value,
            "reason": s.reason,
            "configs": s.configs,
            "since": _time(s.since),
            "until": _time(s.until),
        }
        for s in found
    ]


async def refused(db: Database) -> list[dict[str, Any]]:
    """List the refused signals, as in the API, newest first."""
    rows = await db.fetch(REFUSED)
    found = [(row, msgspec.json.decode(row["body"], type=SignalRaised)) for row in rows]
    return [
        {
            "at": _time(row["at"]),
            "source": e.source,
            "kind": e.kind,
            "target_kind": e.target_kind,
            "target_id": e.target_id,
            "reason": row["reason"],
        }
        for row, e in found
    ]


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
