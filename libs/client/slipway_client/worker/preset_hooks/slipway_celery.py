"""Hooks of a Celery worker, which imports this module by `--include`."""

from typing import Any

from celery.signals import task_postrun, task_prerun
from slipway_hooks import report


@task_prerun.connect
def _begins(task_id: str, **_: Any) -> None:
    report("claimed", task_id)


@task_postrun.connect
def _ended(task_id: str, **_: Any) -> None:
    report("idle", task_id)
