"""Reports of an agent's tasks to its `slipway-worker wrap`, by the standard library alone."""

import json
import os
import socket
import sys
from collections.abc import Mapping

ANSWER_SECONDS = 15.0  # longer than wrap waits for its provisioner before it answers "draining"


def asked(path: str, request: Mapping[str, object]) -> dict[str, object]:
    """Answer of the wrap at a socket. Raises OSError and ValueError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ANSWER_SECONDS)
        connection.connect(path)
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as lines:
            return dict(json.loads(lines.readline()))


def report(hook: str, task_id: str) -> None:
    """Report the begin (`claimed`) or the end (`idle`) of a task. A failure is printed: it must not fail the task."""
    try:
        answer = asked(os.environ["SLIPWAY_WORKER_SOCKET"], {"hook": hook, "task_id": task_id})
    except (OSError, ValueError, KeyError) as error:
        answer = {"error": f"{hook} of {task_id} is not reported: {error!r}"}
    if problem := answer.get("error") or answer.get("warning"):
        print(f"slipway-worker hook: {problem}", file=sys.stderr)
