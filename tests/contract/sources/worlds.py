"""Queues as the conformance checks need them, in files and over HTTP. servers.py has those in real servers."""

import http.server
import json
import ssl
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

SECRET: Final = "hunter2-of-the-queue"


def installed(folder: Path, name: str, kind: str, text: str) -> Path:
    """A folder of packages with a distribution of the name, whose module has the text and in it `Source` of a kind."""
    information = folder / f"{name}-1.dist-info"
    information.mkdir(parents=True)
    (folder / f"{name}.py").write_text(text)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (information / "entry_points.txt").write_text(f"[slipway.sources]\n{kind} = {name}:Source\n")
    return folder


class NotAvailable(Exception):
    """The server of a kind is not on this machine."""


class World:
    """A queue with its server. Checks that a kind cannot have are named in `without`."""

    kind: str
    counts: str = "waiting"
    without: frozenset[str] = frozenset()

    def settings(self) -> dict[str, Any]:
        """Settings of its kind."""
        raise NotImplementedError

    async def start(self) -> None:
        """Start the server, with an empty queue. Raises NotAvailable."""

    async def put(self, number: int) -> None:
        """Add tasks that wait."""
        raise NotImplementedError

    async def take(self, number: int) -> None:
        """Let workers take some of them."""
        raise NotImplementedError

    async def away(self) -> None:
        """Take the server away."""
        raise NotImplementedError

    async def back(self) -> None:
        """Bring it back, with its tasks."""
        raise NotImplementedError

    async def spoil(self) -> None:
        """Let it answer something that is no count."""
        raise NotImplementedError

    async def remove(self) -> None:
        """Remove the queue, where that is something else than an empty one."""
        raise NotImplementedError

    async def hang(self) -> None:
        """Let it accept calls and answer none."""
        raise NotImplementedError

    async def close(self) -> None:
        pass


class Page:
    """A web server that answers each path, with its query or without, with what is set for it, as JSON with an ETag."""

    def __init__(self) -> None:
        self.bodies: dict[str, Any] = {}
        self.status = 200
        self.etag = ""
        self.headers: dict[str, str] = {}
        self.requests: list[tuple[str, Mapping[str, str], int]] = []
        self.hanging = threading.Event()
        self.down = threading.Event()
        page = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if page.hanging.is_set():
                    time.sleep(5)
                if page.down.is_set():  # a connection that was kept
                    self.close_connection = True
                    return
                path = self.path if self.path in page.bodies else self.path.split("?")[0]
                body = page.bodies.get(path)
                status = 404 if path not in page.bodies else page.status
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                etag = page.etag or f'"{hash(raw)}"'
                if status == 200 and self.headers.get("If-None-Match") == etag:
                    status, raw = 304, b""
                page.requests.append((self.path, dict(self.headers), status))
                self.send_response(status)
                self.send_header("ETag", etag)
                for name, value in page.headers.items():
                    self.send_header(name, value)
                if status != 304:
                    self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *_: Any) -> None:
                pass

        self._handler = Handler
        self.port = 0
        self.open()

    def open(self) -> None:
        self.down.clear()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        self._server.daemon_threads = True
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def serve_tls(self, context: ssl.SSLContext) -> None:
        """Answer over TLS from now on."""
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def shut(self) -> None:
        self.down.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class WebWorld(World):
    """A queue that a page shows."""

    kind = "http"
    counts = "both"

    def __init__(self) -> None:
        self.page = Page()
        self.waiting = self.running = 0
        self.path = "/queue"
        self._show()

    def settings(self) -> dict[str, Any]:
        return {"url": self.page.url + self.path, "tasks": "jobs.scheduled", "running": "jobs.running"}

    def body(self) -> Any:
        return {"jobs": {"scheduled": self.waiting, "running": self.running}}

    def _show(self) -> None:
        self.page.bodies = {self.path: self.body()}

    async def put(self, number: int) -> None:
        self.waiting += number
        self._show()

    async def take(self, number: int) -> None:
        self.waiting -= number
        self.running += number
        self._show()

    async def away(self) -> None:
        self.page.shut()

    async def back(self) -> None:
        self.page.open()

    async def spoil(self) -> None:
        self.page.bodies[self.path] = {"jobs": {"scheduled": None, "running": SECRET}}

    async def remove(self) -> None:
        self.page.bodies = {}

    async def hang(self) -> None:
        self.page.hanging.set()

    async def close(self) -> None:
        self.page.shut()


class KedaWorld(WebWorld):
    """The external metrics API of Kubernetes, which has no server here: a fake with its quantities."""

    kind = "keda"
    counts = "waiting_and_running"

    def __init__(self) -> None:
        super().__init__()
        self.path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/ci/s0-rabbitmq-builds"
        self._show()

    def settings(self) -> dict[str, Any]:
        metric = "s0-rabbitmq-builds"
        return {"url": self.page.url, "namespace": "ci", "scaled_object": "builds", "metric": metric}

    def body(self) -> Any:
        value = f"{(self.waiting + self.running) * 1000}m"
        return {"kind": "ExternalMetricValueList", "items": [{"metricName": "s0-rabbitmq-builds", "value": value}]}

    async def spoil(self) -> None:
        self.page.bodies[self.path] = {"items": [{"value": "NaN"}]}


class ExecWorld(World):
    """A queue that a script counts."""

    kind = "exec"
    counts = "both"
    without = frozenset({"hang"})

    def __init__(self, folder: Path) -> None:
        self.file = folder / "queue.json"
        self.script = folder / "count.sh"
        self.waiting = self.running = 0
        self.script.write_text(f'#!/bin/sh\ncat "{self.file}"\n')
        self.script.chmod(0o755)
        self._show()

    def settings(self) -> dict[str, Any]:
        return {"command": [str(self.script)], "tasks": "waiting", "running": "running"}

    def _show(self) -> None:
        self.file.write_text(json.dumps({"waiting": self.waiting, "running": self.running}))

    async def put(self, number: int) -> None:
        self.waiting += number
        self._show()

    async def take(self, number: int) -> None:
        self.waiting -= number
        self.running += number
        self._show()

    async def away(self) -> None:
        self.file.rename(self.file.with_suffix(".away"))

    async def back(self) -> None:
        self.file.with_suffix(".away").rename(self.file)

    async def spoil(self) -> None:
        self.file.write_text(f'{{"waiting": true, "running": "{SECRET}"}}')

    async def remove(self) -> None:
        self.script.unlink()


class OutsideWorld(ExecWorld):
    """A source from outside the tree: files of a folder, counted by a class of an installed distribution."""

    kind = "folder"
    counts = "waiting"
    without = frozenset({"hang", "spoil", "running"})

    def __init__(self, folder: Path) -> None:
        self.queue = folder / "pending"
        self.queue.mkdir()
        self.number = 0

    def settings(self) -> dict[str, Any]:
        return {"folder": str(self.queue)}

    async def put(self, number: int) -> None:
        for _ in range(number):
            self.number += 1
            (self.queue / str(self.number)).touch()

    async def take(self, number: int) -> None:
        for file in list(self.queue.iterdir())[:number]:
            file.unlink()

    async def away(self) -> None:
        self.queue.rename(self.queue.with_suffix(".away"))

    async def back(self) -> None:
        self.queue.with_suffix(".away").rename(self.queue)

    async def remove(self) -> None:
        await self.away()
