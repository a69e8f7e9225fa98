"""Hooks of an RQ worker, which takes this class by `--worker-class`."""

import rq
import rq.job
from slipway_hooks import report


class ReportingWorker(rq.Worker):
    """Worker that reports each job from its own process, also one whose child is killed."""

    def execute_job(self, job: rq.job.Job, queue: rq.Queue) -> None:
        report("claimed", job.id)
        try:
            super().execute_job(job, queue)
        finally:
            report("idle", job.id)
