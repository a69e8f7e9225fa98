"""Kafka producers of the relay. Partitions that cannot be sent to have a producer apart from the others.

The client repeats a batch for as long as the broker refuses it, and sends nothing else to that broker meanwhile. So a
producer with a failed batch, or with one that has not been answered in time, takes no other batches: a new producer
takes its place. It also never sends to such a partition again, whose idempotent sequence would have a gap.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiokafka import AIOKafkaProducer

from slipway_common.messaging.clients import Kafka, client_options
from slipway_common.messaging.partitions import closed

OVERDUE_SECONDS: Final = 0.6  # without an answer for this long, other partitions are sent by another producer
ABANDONED_SECONDS: Final = 10.0  # without an answer for this long, a batch has failed
CLOSE_SECONDS: Final = 1.0
BATCH_BYTES: Final = 900_000  # below the broker's default limit of 1 MiB a batch
REPLICATED_SECONDS: Final = 0.3

Sending = Callable[[Any], Awaitable[int]]
"""Sends one batch with a producer; returns the number of rows after the acknowledgement."""


class RelayProducer(AIOKafkaProducer):  # type: ignore[misc] # the client has no types
    """Idempotent producer that can be closed while the broker does not acknowledge a batch."""

    def __init__(self, kafka: Kafka) -> None:
        super().__init__(
            **client_options(kafka),
            enable_idempotence=True,
            acks="all",
            max_batch_size=BATCH_BYTES,
            request_timeout_ms=10_000,
        )
        # The client has one time-out for all waits. This one is the broker's, for the replicas of a batch; after it,
        # the broker answers for the other partitions of the request.
        self._sender._request_timeout_ms = int(REPLICATED_SECONDS * 1000)

    async def abandon(self) -> None:
        """Close without waiting for batches that the broker does not acknowledge."""
        self._closed = True
        if self._sender.sender_task is not None:
            await closed(self._sender.close, CLOSE_SECONDS)  # waits for requests in flight
        await self.client.close()


async def open_producer(kafka: Kafka) -> RelayProducer:
    """Producer that is connected. Raises KafkaError if no broker answers."""
    producer = RelayProducer(kafka)
    try:
        await producer.start()
    except BaseException:
        await producer.abandon()
        raise
    return producer


class Channel:
    """One producer, and the batches that it sends."""

    def __init__(self, open_producer: Callable[[], Awaitable[Any]]) -> None:
        self.opening = asyncio.ensure_future(open_producer())
        self.sends: dict[asyncio.Task[int], float] = {}  # to when each began

    def send(self, send: Sending, now: float) -> asyncio.Task[int]:
        task = asyncio.create_task(self._send(send))
        self.sends[task] = now
        return task

    async def _send(self, send: Sending) -> int:
        return await send(await asyncio.shield(self.opening))

    def waited_seconds(self, now: float) -> float:
        """Time for which the oldest batch has not been answered."""
        return now - min((began for task, began in self.sends.items() if not task.done()), default=now)

    async def close(self) -> None:
        """End the batches in flight, and close the producer."""
        for task in self.sends:
            task.cancel()
        self.opening.cancel()
        await asyncio.gather(self.opening, *self.sends, return_exceptions=True)
        if not self.opening.cancelled() and self.opening.exception() is None:
            await closed(self.opening.result().abandon, 2 * CLOSE_SECONDS)


class Producers:
    """Producers of one relay: one for most partitions, one for retries of those whose last batch failed, and those that
    are not used any more but still wait for answers."""

    def __init__(self, open_producer: Callable[[], Awaitable[Any]]) -> None:
        self._open = open_producer
        self._channels: dict[bool, Channel] = {}  # retry or not
        self._replaced: list[Channel] = []
        self._closing: set[asyncio.Task[None]] = set()

    def channel(self, now: float, *, retry: bool) -> Channel:
        """The producer to send with; opened when it is first used. One that waits for an overdue answer is replaced."""
        if retry in self._channels and self._channels[retry].waited_seconds(now) > OVERDUE_SECONDS:
            self._replaced.append(self._channels.pop(retry))
        if retry not in self._channels:
            self._channels[retry] = Channel(self._open)
        return self._channels[retry]

    def take(self, now: float) -> list[asyncio.Task[int]]:
        """Batches that ended; those without any answer are cancelled. Replaces producers with a failed batch,
        and closes the replaced ones that have nothing left to wait for."""
        ended = []
        for channel in self._all():
            for task in [task for task, began in channel.sends.items() if now - began > ABANDONED_SECONDS]:
                task.cancel()
            done = [task for task in channel.sends if task.done() or task.cancelling()]
            for task in done:
                del channel.sends[task]
            if any(task.cancelling() or task.exception() is not None for task in done):
                self._replace(channel)
            ended += done
        for channel in [channel for channel in self._replaced if not channel.sends]:
            self._replaced.remove(channel)
            self._start_closing(channel)
        return ended

    def unanswered(self, since: float) -> list[asyncio.Task[int]]:
        """Batches that were sent by `since`, and are still awaited."""
        return [
            task
            for channel in self._all()
            for task, began in channel.sends.items()
            if began <= since and not task.done()
        ]

    def check_opened(self) -> None:
        """Raise the error of the producer for most partitions if it could not be opened: no broker answers."""
        channel = self._channels.get(False)
        if channel is not None and channel.opening.done():
            channel.opening.result()

    async def close(self) -> None:
        """End all batches in flight, and close all producers."""
        for channel in self._all():
            self._start_closing(channel)
        self._channels, self._replaced = {}, []
        if self._closing:
            await asyncio.wait(self._closing)

    def _all(self) -> list[Channel]:
        return [*self._channels.values(), *self._replaced]

    def _replace(self, channel: Channel) -> None:
        for retry, used in list(self._channels.items()):
            if used is channel:
                del self._channels[retry]
                self._replaced.append(channel)

    def _start_closing(self, channel: Channel) -> None:
        task = asyncio.create_task(channel.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
