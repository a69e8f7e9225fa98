"""What lies outside of the services of a simulation: connections, records as they are received, and waits."""

import asyncio
import contextlib
from datetime import UTC, datetime
from typing import Final

from slipway_api.events.topics import (
    DECODERS,
)
from slipway_common.database import postgres
from slipway_common.database.postgres import Database
from slipway_common.messaging.envelope import decode
from slipway_common.messaging.records import Received, Record
from tests.support.harness import PATIENCE_SECONDS, PATIENT

START: Final = datetime(2026, 1, 1, tzinfo=UTC)
SIZE: Final = 1  # of each pool of connections: what is done at once takes turns, in an order that a seed repeats


class Untimed:
    """The part of asyncio that the launcher uses. The cloud decides when a call ends, however long a step takes."""

    create_task = staticmethod(asyncio.create_task)
    gather = staticmethod(asyncio.gather)
    Semaphore = asyncio.Semaphore

    @staticmethod
    def timeout(_: float) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()


def as_received(record: Record) -> Received:
    envelope = decode(record.headers, received_at=START)
    event = None if record.value is None else DECODERS[envelope.type].decode(record.value)
    return Received(
        event=event,
        type=envelope.type,
        id=envelope.id,
        source=envelope.source,
        subject=envelope.subject,
        time=envelope.time,
        sequence_number=envelope.sequence_number,
        revision=envelope.revision,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
    )


async def connect(url: str, service: str) -> Database:
    """Connect to the database of a service. A busy machine may hold up its statements."""
    return await postgres.connect(url, service, size=SIZE, command_timeout_seconds=PATIENCE_SECONDS, settings=PATIENT)
