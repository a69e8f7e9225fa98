"""Client of a task queue."""

import pytest
from fastapi import FastAPI

from slipway_client.transport.exchange import NoAnswer
from slipway_client.worker.queue import Queue
from tests.support.recorded import serving


async def test_without_a_url_a_claim_says_what_to_declare() -> None:
    queue = Queue("", pool_id="linux", worker_id="w", instance_id="i")
    with pytest.raises(NoAnswer, match="no queue_url; declare it in the account's settings"):
        await queue.claim(1.0)


async def test_a_task_whose_claim_would_be_refused_is_none() -> None:
    """The refusal of a report would end the worker, and then each other one that the queue gives the task to."""
    app = FastAPI()
    task = {"task_id": "\N{CRAB}" * 151, "command": ["true"], "source": "q", "claim_seconds": 60}
    app.post("/queue/linux/claim")(lambda: task)
    with serving(app) as url, pytest.raises(NoAnswer, match="task_id has 604 bytes in UTF-8"):
        await Queue(f"{url}/queue", pool_id="linux", worker_id="w", instance_id="i").claim(1.0)
