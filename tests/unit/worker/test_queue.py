"""Client of a task queue."""

import pytest

from slipway_client.transport.exchange import NoAnswer
from slipway_client.worker.queue import Queue


async def test_without_a_url_a_claim_says_what_to_declare() -> None:
    queue = Queue("", pool_id="linux", worker_id="w", instance_id="i")
    with pytest.raises(NoAnswer, match="no queue_url; declare it in the account's settings"):
        await queue.claim(1.0)
