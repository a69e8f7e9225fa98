"""Reports of an agent's tasks to its `slipway-worker wrap`, by the standard library alone."""

import json
import os
import socket
import sys


def report(hook: str, task_id: str) -> None:
    """Report the begin (`claimed`) or the end (`idle`) of a task. A failure is printed: it must not fail the task."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(15.0)
            connection.connect(os.environ["SLIPWAY_WORKER_SOCKET"])
            connection.sendall(json.dumps({"hook": hook, "task_id": task_id}).encode() + b"\n")
            with connection.makefile("rb") as lines:
                answer = json.loads(lines.readline())
    except (OSError, ValueError, KeyError) as error:
        answer = {"error": f"{hook} of {task_id} is not reported: {error!r}"}
    if problem := answer.get("error") or answer.get("warning"):
        print(f"slipway-worker hook: {problem}", file=sys.stderr)
