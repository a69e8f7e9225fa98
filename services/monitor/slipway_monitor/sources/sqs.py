"""Source `sqs`: a queue of Amazon SQS. Its counts are approximate; messages that are delayed do not wait yet.

Credentials are those of the SDK: environment, profile, or the role of the machine.
"""

import contextlib
from collections.abc import Sequence
from functools import cache
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.session import AioSession, get_session
from botocore.exceptions import BotoCoreError, ClientError

from slipway_monitor.domain.counts import Counts, Unreadable, whole
from slipway_monitor.sources.port import SourceSettings

VISIBLE, IN_FLIGHT = "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"


@cache
def _session() -> AioSession:
    """The session of all sources: one has 9 MB of data of the SDK, and credentials that it asks for."""
    return get_session()


class SqsSettings(SourceSettings):
    """Settings of a queue."""

    queue_url: str
    region: str
    endpoint_url: str | None = None


class SqsSource:
    """A queue of Amazon SQS."""

    Settings = SqsSettings

    def __init__(self, settings: SqsSettings) -> None:
        self._settings = settings
        self._stack = contextlib.AsyncExitStack()
        self._client: Any = None

    async def read(self) -> Sequence[Counts]:
        settings = self._settings
        try:
            if self._client is None:
                config = AioConfig(
                    connect_timeout=settings.timeout_seconds,
                    read_timeout=settings.timeout_seconds,
                    retries={"total_max_attempts": 1},
                )
                self._client = await self._stack.enter_async_context(
                    _session().create_client(
                        "sqs", region_name=settings.region, endpoint_url=settings.endpoint_url, config=config
                    )
                )
            answer = await self._client.get_queue_attributes(
                QueueUrl=settings.queue_url, AttributeNames=[VISIBLE, IN_FLIGHT]
            )
            visible, in_flight = (int(answer["Attributes"][name]) for name in (VISIBLE, IN_FLIGHT))
        except ClientError as error:
            raise Unreadable(f"refused: {error.response.get('Error', {}).get('Code', 'unknown')}") from None
        except (BotoCoreError, OSError, KeyError, ValueError) as error:
            raise Unreadable(f"{type(error).__name__}: no counts") from None
        visible, in_flight = whole(visible, VISIBLE), whole(in_flight, IN_FLIGHT)
        return [Counts.of(settings.counts, visible, in_flight)]

    async def close(self) -> None:
        self._client = None
        await self._stack.aclose()
