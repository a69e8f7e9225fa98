"""External parts for tests of examples/: their processes, kcat, and a webhook."""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
from aiokafka.admin import AIOKafkaAdminClient

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_api.events.topics import ALERT, WORKER_LIFECYCLE
from tests.support.harness import PATIENCE_SECONDS, Place, enqueue, until

EXAMPLES: Final = Path(__file__).parents[3] / "examples"


class Example:
    """Process of one file of examples/, with only the variables that a demo's `.slipway/env` exports."""

    def __init__(self, place: Place, name: str, folder: Path, **env: str) -> None:
        inherited = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG", "TMPDIR")}
        self.argv = [sys.executable, str(EXAMPLES / f"{name}.py")]
        self.env = inherited | {"KAFKA": place.kafka.bootstrap, "TOPIC_PREFIX": place.prefix} | env
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *arguments: str) -> None:
        """Start the process; its output is appended over restarts."""
        with (self.folder / "out").open("ab") as out, (self.folder / "err").open("ab") as err:
            self.process = subprocess.Popen(
                [*self.argv, *arguments], env=self.env, cwd=self.folder, stdout=out, stderr=err
            )

    def lines(self, *words: str) -> list[str]:
        """Lines of its output; with `words` those that begin with one of them, as FastStream logs there too."""
        lines = (self.folder / "out").read_text().splitlines()
        return [line for line in lines if not words or line.startswith(words)]

    def errors(self) -> str:
        return (self.folder / "err").read_text()

    async def until_printed(self, word: str) -> None:
        try:
            await until(lambda: any(word in line for line in self.lines()), f"it prints {word}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.lines()}\n{self.errors()}") from None

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    async def ended(self) -> int:
        """Wait until it exits by itself; return its exit code."""
        assert self.process is not None
        await until(lambda: not self.runs, f"{self.argv[1]} ends")
        return self.process.returncode

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def example(place: Place, name: str, folder: Path, **env: str) -> Iterator[Example]:
    running = Example(place, name, folder, **env)
    try:
        yield running
    finally:
        running.kill()


def raised(subject: str, **changes: Any) -> AlertRaised:
    usual: dict[str, Any] = {
        "dedup_key": f"test/{subject}",
        "subject_kind": "account",
        "subject_id": subject,
        "kind": "test",
        "summary": f"{subject} is on fire",
    }
    return AlertRaised(**(usual | changes))


def resolved(subject: str) -> AlertResolved:
    return AlertResolved(
        dedup_key=f"test/{subject}",
        subject_kind="account",
        subject_id=subject,
        kind="test",
        summary=f"{subject} is out",
    )


async def publish(place: Place, *events: Any) -> None:
    """Publish by the real outbox and its relay."""
    await enqueue(place.database, *events)
    relay = asyncio.create_task(place.relay(ALERT, WORKER_LIFECYCLE).run())

    async def empty() -> bool:
        return not await place.database.fetchval("SELECT count(*) FROM outbox")

    try:
        await until(empty, "the outbox is empty")
    finally:
        relay.cancel()
        await asyncio.gather(relay, return_exceptions=True)


def kcat(place: Place, *arguments: str, write: str | None = None) -> str:
    """Run kcat and return its output; `write` is its input."""
    if not shutil.which("kcat"):
        pytest.fail("kcat is not installed; `make tools` installs it (Debian: apt-get install kcat)")
    done = subprocess.run(
        ["kcat", "-b", place.kafka.bootstrap, *arguments],
        input=write,
        text=True,
        capture_output=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def headers(type_: str, id_: str) -> Sequence[str]:
    """Headers of an event as arguments of kcat."""
    attributes = {"ce_specversion": "1.0", "ce_id": id_, "ce_source": "/somebody", "ce_type": type_}
    return [argument for name, value in attributes.items() for argument in ("-H", f"{name}={value}")]


class Page(ThreadingHTTPServer):
    """Webhook that records posted bodies and answers with the next of `answers`, or with 200 when none is left."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.posted: list[dict[str, Any]] = []
        self.refused: list[dict[str, Any]] = []
        self.keys: list[str] = []  # idempotency keys of the posted ones
        self.answers: deque[int] = deque()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Answering(BaseHTTPRequestHandler):
    server: Page

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status = self.server.answers.popleft() if self.server.answers else 202
        (self.server.posted if status < 300 else self.server.refused).append(body)
        if status < 300:
            self.server.keys.append(self.headers.get("idempotency-key", ""))
        self.send_response(status)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(self.server.answers[0] if self.server.answers else 200)
        self.end_headers()
        self.wfile.write(b"all is well\n")

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextlib.contextmanager
def serving() -> Iterator[Page]:
    with Page() as page:
        threading.Thread(target=page.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield page
        finally:
            page.shutdown()


async def committed(place: Place, group: str) -> dict[tuple[str, int], int]:
    """Next offsets of a group by topic (without the place's prefix) and partition."""
    admin = AIOKafkaAdminClient(bootstrap_servers=place.kafka.bootstrap)
    await admin.start()
    try:
        offsets = await admin.list_consumer_group_offsets(group)
        return {
            (tp.topic.removeprefix(place.prefix), tp.partition): found.offset
            for tp, found in offsets.items()
            if tp.topic.startswith(place.prefix)
        }
    finally:
        await admin.close()
