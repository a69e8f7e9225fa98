"""Presets of `slipway-worker wrap`: hooks that the real agents run, and the commands that load them."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slipway_client.worker.presets import CELERY, HOOKS, Preset, prepared


class Wrap:
    """The socket of a wrap, which records calls of hooks."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "hooks"
        self.calls: list[dict[str, Any]] = []
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(str(self.path))
        self.server.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as lines:
                self.calls.append(json.loads(lines.readline()))
                lines.write(b"{}\n")
                lines.flush()


@pytest.fixture
def wrap(tmp_path: Path) -> Iterator[Wrap]:
    made = Wrap(tmp_path)
    yield made
    made.server.close()


def run(program: str, wrap: Wrap) -> "subprocess.CompletedProcess[str]":
    environment = os.environ | {"PYTHONPATH": str(HOOKS), "SLIPWAY_WORKER_SOCKET": str(wrap.path)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)


def test_commands() -> None:
    assert prepared(Preset.GENERIC, ["agent"], "") == ["agent"]
    celery = prepared(Preset.CELERY, ["celery", "-A", "a", "worker"], "/mine")
    assert celery == ["env", f"PYTHONPATH={HOOKS}:/mine", "celery", "-A", "a", "worker", *CELERY]
    rq = prepared(Preset.RQ, ["rq", "worker"], "")
    assert rq == ["env", f"PYTHONPATH={HOOKS}", "rq", "worker", "--worker-class=slipway_rq.ReportingWorker"]
    assert [preset for preset in Preset if preset.leader_alone] == [Preset.CELERY]


def test_hooks_need_nothing_of_ours() -> None:
    """The interpreter of an agent may have none of our packages."""
    for file in HOOKS.glob("*.py"):
        assert "slipway_client" not in file.read_text()
        assert "slipway_common" not in file.read_text()


def test_celery_reports_each_task(wrap: Wrap) -> None:
    """By its own signals, around the task, also around one that fails."""
    program = """
import celery, slipway_celery
app = celery.Celery(broker="memory://", backend="cache+memory://")
@app.task(name="t")
def t(fail):
    if fail: raise ValueError
t.apply(args=[False], task_id="a")
t.apply(args=[True], task_id="b")
"""
    done = run(program, wrap)
    assert done.returncode == 0, done.stderr
    assert [(call["hook"], call["task_id"]) for call in wrap.calls] == [
        ("claimed", "a"),
        ("idle", "a"),
        ("claimed", "b"),
        ("idle", "b"),
    ]


@pytest.mark.parametrize(("broker", "is_disabled"), [("redis://127.0.0.1:1", True), ("amqp://127.0.0.1:1", False)])
def test_celery_fetches_no_task_ahead(wrap: Wrap, broker: str, *, is_disabled: bool) -> None:
    """Where its transport can leave it in the queue; elsewhere it would only warn."""
    program = f"""
import celery, slipway_celery
from celery.signals import worker_init
app = celery.Celery(broker="{broker}")
class Worker: pass
Worker.app = app
worker_init.send(sender=Worker)
print(app.conf.worker_disable_prefetch)
"""
    done = run(program, wrap)
    assert done.stdout.strip() == str(is_disabled), done.stderr


def test_rq_reports_each_job(wrap: Wrap) -> None:
    """From the worker's own process, also a job that fails in it."""
    program = """
import types, rq, slipway_rq
def fails(self, job, queue):
    raise ValueError
rq.Worker.execute_job = fails
try:
    worker = object.__new__(slipway_rq.ReportingWorker)
    worker.execute_job(types.SimpleNamespace(id="a"), None)
except ValueError:
    print("failed")
"""
    done = run(program, wrap)
    assert done.stdout.strip() == "failed", done.stderr
    assert [(call["hook"], call["task_id"]) for call in wrap.calls] == [("claimed", "a"), ("idle", "a")]


def test_a_wrap_that_does_not_answer_fails_no_task(wrap: Wrap) -> None:
    wrap.path.unlink()
    done = run("import slipway_hooks; slipway_hooks.report('claimed', 'a'); print('goes on')", wrap)
    assert (done.returncode, done.stdout.strip()) == (0, "goes on")
    assert "is not reported" in done.stderr
