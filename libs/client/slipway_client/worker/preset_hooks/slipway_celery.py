"""Hooks of a Celery worker, which imports this module by `--include`."""

from typing import Any

from celery.signals import task_postrun, task_prerun, worker_init
from slipway_hooks import report


@worker_init.connect
def _fetch_no_task_ahead(sender: Any, **_: object) -> None:
    """A task is acknowledged as it begins, and the next one fetched: nobody would see it wait. Celery 5.6 and later can
    leave it in Redis."""
    if sender.app.connection_for_read().transport.driver_type == "redis":
        sender.app.conf.worker_disable_prefetch = True


@task_prerun.connect
def _begins(task_id: str, **_: object) -> None:
    report("claimed", task_id)


@task_postrun.connect
def _ended(task_id: str, **_: object) -> None:
    report("idle", task_id)
