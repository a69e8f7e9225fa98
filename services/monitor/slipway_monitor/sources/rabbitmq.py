"""Source `rabbitmq`: queues of RabbitMQ by its management API. The labels are names of queues.

Unacknowledged messages are with a consumer, of whichever worker and also if it has only prefetched them.
"""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from slipway_monitor.domain.counts import Counts, Unreadable, whole
from slipway_monitor.sources.port import Behind, secret
from slipway_monitor.sources.web import Web, WebSettings

READY, UNACKNOWLEDGED = "messages_ready", "messages_unacknowledged"


class RabbitSettings(WebSettings):
    """Settings of a queue, or of those that `pools` names."""

    behind_seconds: Behind = 10.0
    """As in every source. Queues compute their statistics every 5 s, and the management API collects them every 5 s."""
    vhost: str = "/"
    queue: str | None = None
    user: str = "guest"
    password_file: Path | None = None


class RabbitSource:
    """Queues of one virtual host."""

    Settings = RabbitSettings

    def __init__(self, settings: RabbitSettings) -> None:
        self._settings = settings
        self._web = Web(settings)

    async def read(self) -> Sequence[Counts]:
        labels = self._settings.pools or {"": ""}
        return [await self._queue(label or self._settings.queue or self._settings.name, label) for label in labels]

    async def _queue(self, queue: str, label: str) -> Counts:
        settings = self._settings
        path = f"/api/queues/{quote(settings.vhost, safe='')}/{quote(queue, safe='')}"
        password = secret(settings.password_file) or "guest"
        body = await self._web.get(path, auth=None if settings.token_file else (settings.user, password))
        if not isinstance(body, dict) or READY not in body or UNACKNOWLEDGED not in body:
            raise Unreadable(f"queue {queue} has no statistics yet")
        ready, unacknowledged = whole(body[READY], READY), whole(body[UNACKNOWLEDGED], UNACKNOWLEDGED)
        return Counts.of(settings.counts, ready, unacknowledged, label)

    async def close(self) -> None:
        await self._web.close()
