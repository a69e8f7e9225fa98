"""The same app, for workers with the pool `solo` that leave after a task."""

from typing import Any

from celery.signals import task_postrun
from celery.worker import state

from tests.attach.celery_tasks import app

__all__ = ["app"]


def _leave(**_: Any) -> None:
    state.should_stop = 0


task_postrun.connect(_leave, weak=False)
