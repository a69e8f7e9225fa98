"""Opinions from outside: those that count, and the newest that were refused."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from slipway_common.events.signal import SignalRaised
from slipway_common.postgres import Connection, Pool
from slipway_weight_calculator.domain.rows import Boot, Config
from slipway_weight_calculator.domain.signals import Signal
from slipway_weight_calculator.domain.world import World

KEPT: Final = 100

CLOCK: Final = "SELECT slipway_clock()"
CONFIGS: Final = "SELECT body FROM config ORDER BY key"
BOOT: Final = "SELECT key, body FROM boot WHERE key = $1"
LIVE: Final = "SELECT body FROM signal ORDER BY key"
REFUSED: Final = "SELECT at, why, body FROM refused_signal ORDER BY id DESC"
REFUSE: Final = "INSERT INTO refused_signal (at, why, body) SELECT $1, * FROM unnest($2::text[], $3::text[])"
FORGET: Final = """
DELETE FROM refused_signal WHERE id <= (SELECT id FROM refused_signal ORDER BY id DESC OFFSET $1 LIMIT 1)"""


_config: Final = msgspec.json.Decoder(Config).decode
_boot: Final = msgspec.json.Decoder(Boot).decode
_signal: Final = msgspec.json.Decoder(Signal).decode


class Refused(msgspec.Struct, frozen=True):
    """A signal without effect, and why: the kind of reason, a colon, and words."""

    event: SignalRaised
    why: str


async def clock(db: Connection) -> datetime:
    now: datetime = await db.fetchval(CLOCK)
    return now


async def world(db: Connection, worker_id: str) -> World:
    """What a signal is judged by, on a worker if it names one: who is declared, what else was said, and whether that
    worker boots. Nothing of anybody's health."""
    configs = [_config(row["body"]) for row in await db.fetch(CONFIGS)]
    boots = {row["key"]: _boot(row["body"]) for row in await db.fetch(BOOT, worker_id)}
    said = [_signal(row["body"]) for row in await db.fetch(LIVE)]
    found = World()
    found.load(configs, {}, boots, {signal.key: signal for signal in said})
    return found


async def refuse(tx: Connection, refused: Sequence[Refused], at: float) -> None:
    """Keep the newest, for people."""
    if refused:
        newest = refused[-KEPT:]
        bodies = [msgspec.json.encode(one.event).decode() for one in newest]
        await tx.execute(REFUSE, at, [one.why.replace("\0", "") for one in newest], bodies)
        await tx.execute(FORGET, KEPT)


async def live(db: Pool) -> list[dict[str, Any]]:
    """Those that count now, as people are told."""
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


async def refused(db: Pool) -> list[dict[str, Any]]:
    """Newest first."""
    rows = await db.fetch(REFUSED)
    found = [(row, msgspec.json.decode(row["body"], type=SignalRaised)) for row in rows]
    return [
        {
            "at": _time(row["at"]),
            "source": e.source,
            "kind": e.kind,
            "target_kind": e.target_kind,
            "target_id": e.target_id,
            "why": row["why"],
        }
        for row, e in found
    ]


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
