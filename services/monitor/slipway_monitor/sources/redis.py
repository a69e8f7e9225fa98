"""Source `redis`: a list, the group of a stream, or a queue of Celery.

Redis has no empty lists: one that does not exist is empty. Celery keeps what its workers have fetched, also of other
queues and before they run it, in the hash `unacked`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Self

import redis.asyncio as redis
from pydantic import model_validator

from slipway_common.base.redaction import GONE, redacted
from slipway_monitor.domain.counts import Counting, Counts, Unreadable, whole
from slipway_monitor.sources.port import SourceSettings, secret

PRIORITIES: Final = ("", "\x06\x163", "\x06\x166", "\x06\x169")
"""Ends of the keys of a queue of Celery, one for each step of its priorities."""
UNACKED: Final = "unacked"
COUNTED_MAX: Final = 10_000
COUNTED_AT_ONCE: Final = 100
"""Entries that are fetched at once, whose contents may be long."""


class RedisSettings(SourceSettings):
    """Settings of a list (as of RQ, `rq:queue:NAME`), a stream and its group, or a queue of Celery. With `pools` the
    labels are lists or queues."""

    url: str
    """redis://host:6379/0, or rediss:// for TLS"""
    password_file: Path | None = None
    list: str | None = None
    stream: str | None = None
    group: str | None = None
    celery: str | None = None

    @model_validator(mode="after")
    def _names_a_queue(self) -> Self:
        if (self.list is not None) + (self.stream is not None) + (self.celery is not None) != 1:
            raise ValueError("give one of list, stream and celery")
        if (self.stream is None) is not (self.group is None):
            raise ValueError("stream needs group, and no other has it")
        if self.list is not None and self.counts is not Counting.WAITING:
            raise ValueError("counts: a list has only the tasks that wait: use counts: waiting")
        if self.stream is not None and self.pools is not None:
            raise ValueError("a stream has one pool")
        return self


class RedisSource:
    """A queue in Redis."""

    Settings = RedisSettings

    def __init__(self, settings: RedisSettings) -> None:
        self._settings = settings
        self._client: Any = None

    async def read(self) -> Sequence[Counts]:
        settings = self._settings
        labels = list(settings.pools or ("",))
        try:
            if self._client is None:
                self._client = redis.from_url(
                    settings.url,
                    password=secret(settings.password_file) or None,
                    decode_responses=True,
                    encoding_errors="replace",  # contents of entries may be binary
                    socket_timeout=settings.timeout_seconds,
                    socket_connect_timeout=settings.timeout_seconds,
                )
            if settings.stream is not None:
                return [await self._stream(settings.stream)]
            return [await self._lists(label) for label in labels]
        except ValueError as error:  # which may quote the password
            raise Unreadable(f"{type(error).__name__} in its url") from None
        except (redis.RedisError, OSError) as error:
            reason = f"{type(error).__name__}: {redacted(self._without_password(str(error)))}"
            await self.close()
            raise Unreadable(reason) from None

    def _without_password(self, text: str) -> str:
        """Text of a server, which may repeat an AUTH that it does not know."""
        password = self._client.connection_pool.connection_kwargs.get("password") if self._client else None
        return text.replace(password, GONE) if password else text

    async def _lists(self, label: str) -> Counts:
        """Counts of a list or of a queue of Celery, in one transaction, so that a task is in one of its places."""
        settings = self._settings
        async with self._client.pipeline(transaction=True) as pipe:
            if settings.celery is None:
                pipe.llen(label or settings.list)
            else:
                for end in PRIORITIES:
                    pipe.llen((label or settings.celery) + end)
                pipe.hlen(UNACKED)
            lengths = [whole(each, "the length") for each in await pipe.execute()]
        if settings.celery is None:
            return Counts(lengths[0], None, label)
        return Counts.of(settings.counts, sum(lengths[:-1]), lengths[-1], label)

    async def _stream(self, stream: str) -> Counts:
        groups = {each["name"]: each for each in await self._client.xinfo_groups(stream)}
        group = groups.get(self._settings.group)
        if group is None:
            raise Unreadable(f"the stream has no group {self._settings.group}")
        lag = await self._behind(stream, group["last-delivered-id"]) if group.get("lag") is None else group["lag"]
        lag, running = whole(lag, "the lag"), whole(group["pending"], "the pending entries")
        return Counts.of(self._settings.counts, lag, running)

    async def _behind(self, stream: str, last_id: str) -> int:
        """Entries that the group has not read, counted one by one: Redis does not know the lag of a group once entries
        were deleted, or it was started again. Raises Unreadable if there are very many."""
        number = 0
        while number < COUNTED_MAX:
            entries = await self._client.xrange(stream, min=f"({last_id}", count=COUNTED_AT_ONCE)
            number += len(entries)
            if len(entries) < COUNTED_AT_ONCE:
                return number
            last_id = entries[-1][0]
        raise Unreadable(f"Redis does not know the lag of the group, which is above {COUNTED_MAX:,}")

    async def close(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.aclose()
