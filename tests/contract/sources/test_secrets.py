"""Secrets in files of sources, which neither `check` nor the log of `run` may show, whatever fails."""

import socketserver
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

from slipway_api.events.pool import DemandReported
from slipway_common.declaration.strict_yaml import write
from slipway_common.observability import telemetry
from slipway_monitor.leadership import Alone
from slipway_monitor.loops.report import Reporter
from slipway_monitor.main import main
from slipway_monitor.source_file import read
from tests.contract.sources.worlds import SECRET, Page

NOBODY: Final = "127.0.0.1:1"
PAGE, ECHO = "http://page", "redis://echo"
"""Servers that answer: what is sent is checked only then."""
CUT: Final = f"{SECRET}/more"
"""A password with a slash, at which a URL ends its host: what is before it is taken for a port."""
QUERY: Final = {"tasks": "SELECT 1"}
SQS: Final = {"kind": "sqs", "queue_url": "q", "region": "us-east-1"}
KEDA: Final = {"kind": "keda", "namespace": "ci", "scaled_object": "builds", "metric": "m"}
SOURCES: Final[dict[str, Mapping[str, Any]]] = {
    "redis": {"kind": "redis", "url": f"redis://:{SECRET}@{NOBODY}", "list": "builds"},
    "redis-echo": {"kind": "redis", "url": ECHO, "password_file": SECRET, "list": "builds"},
    "redis-cut": {"kind": "redis", "url": f"redis://:{CUT}@{NOBODY}", "list": "builds"},
    "redis-scheme": {"kind": "redis", "url": f"{SECRET}://{NOBODY}", "list": "builds"},
    "sql": QUERY | {"kind": "sql", "url": f"postgresql://u:{SECRET}@{NOBODY}/db"},
    "sql-cut": QUERY | {"kind": "sql", "url": f"postgresql://u:{CUT}@{NOBODY}/db"},
    "sql-scheme": QUERY | {"kind": "sql", "url": f"{SECRET}://{NOBODY}/db"},
    "http": {"kind": "http", "url": f"http://u:{SECRET}@{NOBODY}/?token={SECRET}"},
    "http-cut": {"kind": "http", "url": f"http://u:{CUT}@{NOBODY}/"},
    "http-scheme": {"kind": "http", "url": f"{SECRET}://{NOBODY}/"},
    "http-token": {"kind": "http", "url": PAGE, "token_file": f"{SECRET}\n{SECRET}"},
    "http-letters": {"kind": "http", "url": PAGE, "token_file": f"{SECRET}é"},
    "http-answer": {"kind": "http", "url": f"{PAGE}/queue", "tasks": "sum(jobs)"},
    "http-type": {"kind": "http", "url": f"{PAGE}/queue", "tasks": "max(jobs[0])"},
    "http-text": {"kind": "http", "url": f"{PAGE}/queue", "tasks": "jobs[0]"},
    "keda": KEDA | {"url": PAGE, "token_file": f"{SECRET}\0"},
    "rabbitmq": {"kind": "rabbitmq", "url": f"http://u:{CUT}@{NOBODY}", "password_file": SECRET},
    "prometheus": {"kind": "prometheus", "url": f"http://u:{CUT}@{NOBODY}", "tasks": "jobs"},
    "sqs": SQS | {"endpoint_url": f"http://u:{CUT}@{NOBODY}"},
    "kafka_lag": {
        "kind": "kafka_lag",
        "group": "g",
        "bootstrap_servers": NOBODY,
        "security": {"security_protocol": "SASL_SSL", "username": "u", "password_file": SECRET},
    },
}


class Echo(socketserver.StreamRequestHandler):
    """A server that speaks Redis's protocol and knows no command: it repeats what it was sent."""

    def handle(self) -> None:
        while line := self.rfile.readline():
            words = [self.rfile.read(int(self.rfile.readline()[1:]) + 2).strip() for _ in range(int(line[1:]))]
            self.wfile.write(b"-ERR unknown command, with args beginning with: '%s'\r\n" % b"' '".join(words))


@pytest.fixture
def servers() -> Iterator[dict[str, str]]:
    """Addresses of servers by the texts that stand for them."""
    page = Page()
    page.bodies = {"/queue": {"jobs": [SECRET]}}
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as echo:
        echo.daemon_threads = True
        threading.Thread(target=echo.serve_forever, args=(0.02,), daemon=True).start()
        yield {PAGE: page.url, ECHO: f"redis://127.0.0.1:{echo.server_address[1]}"}
        echo.shutdown()
    page.shut()


@pytest.mark.parametrize("name", SOURCES)
def test_what_check_prints(
    name: str, servers: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sources.yaml"
    file.write_text(text_of(name, tmp_path, servers))
    assert main(["check", str(file)]) == 1
    printed = capfd.readouterr()
    assert "no report" in printed.out
    assert SECRET not in printed.out + printed.err
    assert "Traceback" not in printed.out + printed.err


@pytest.mark.parametrize("name", SOURCES)
async def test_what_run_logs(name: str, servers: dict[str, str], tmp_path: Path) -> None:
    async def publish(_: DemandReported) -> None:
        raise AssertionError("nothing is reported")

    (entry,) = read(text_of(name, tmp_path, servers))
    with capture_logs() as logs:
        reporter = Reporter(entry, Alone(), publish, Random(1))
        await reporter.report()
        await reporter.close()
    lines = [telemetry.written(event) for event in logs]
    assert any("no report" in line for line in lines)
    assert not any(SECRET in line for line in lines)


def text_of(name: str, folder: Path, servers: Mapping[str, str]) -> str:
    """The file of a source, whose secrets are in other files of the folder."""
    usual = {"name": "q", "counts": "waiting", "claims": "hooks", "pool": "linux", "timeout_seconds": 2.0}
    source = usual | _filed(SOURCES[name], folder)
    if source["kind"] == "kafka_lag":
        source |= {"counts": "waiting_and_running"}
    text = write({"sources": [source]})
    for known_as, address in servers.items():
        text = text.replace(known_as, address)
    return text


def _filed(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    found = dict(settings)
    for field, value in settings.items():
        if field.endswith("_file"):
            (folder / field).write_text(value)
            found[field] = str(folder / field)
        elif isinstance(value, dict):
            found[field] = _filed(value, folder)
    return found
