"""The ledger of tasks in Redis, as tasks of Celery and RQ write it."""

import os
import time

import redis

from tests.attach.worker import RECORD, line


def run(task: str) -> None:
    """Run a task: record its begin and its end in the Redis of QUEUE_URL, TASK_SECONDS apart."""
    client = redis.Redis.from_url(os.environ["QUEUE_URL"])
    client.rpush(RECORD, line("begin", task))
    time.sleep(float(os.environ["TASK_SECONDS"]))
    client.rpush(RECORD, line("end", task))
