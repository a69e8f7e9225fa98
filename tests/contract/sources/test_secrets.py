"""Secrets in files of sources, which neither `check` nor the log of `run` may show, whatever fails."""

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
PAGE: Final = "http://page"
"""A server that answers: what is sent is checked only then."""
CUT: Final = f"{SECRET}/more"
"""A password with a slash, at which a URL ends its host: what is before it is taken for a port."""
QUERY: Final = {"tasks": "SELECT 1"}
SQS: Final = {"kind": "sqs", "queue_url": "q", "region": "us-east-1"}
KEDA: Final = {"kind": "keda", "namespace": "ci", "scaled_object": "builds", "metric": "m"}
SOURCES: Final[dict[str, Mapping[str, Any]]] = {
    "redis": {"kind": "redis", "url": f"redis://:{SECRET}@{NOBODY}", "list": "builds"},
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


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page()
    yield made
    made.shut()


@pytest.mark.parametrize("name", SOURCES)
def test_what_check_prints(name: str, page: Page, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sources.yaml"
    file.write_text(text_of(name, tmp_path, page))
    assert main(["check", str(file)]) == 1
    printed = capfd.readouterr()
    assert "no report" in printed.out
    assert SECRET not in printed.out + printed.err
    assert "Traceback" not in printed.out + printed.err


@pytest.mark.parametrize("name", SOURCES)
async def test_what_run_logs(name: str, page: Page, tmp_path: Path) -> None:
    async def publish(_: DemandReported) -> None:
        raise AssertionError("nothing is reported")

    (entry,) = read(text_of(name, tmp_path, page))
    with capture_logs() as logs:
        reporter = Reporter(entry, Alone(), publish, Random(1))
        await reporter.report()
        await reporter.close()
    lines = [telemetry.written(event) for event in logs]
    assert any("no report" in line for line in lines)
    assert not any(SECRET in line for line in lines)


def text_of(name: str, folder: Path, page: Page) -> str:
    """The file of a source, whose secrets are in other files of the folder."""
    usual = {"name": "q", "counts": "waiting", "claims": "hooks", "pool": "linux", "timeout_seconds": 2.0}
    source = usual | _filed(SOURCES[name], folder)
    if source["kind"] == "kafka_lag":
        source |= {"counts": "waiting_and_running"}
    return write({"sources": [source]}).replace(PAGE, page.url)


def _filed(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    found = dict(settings)
    for field, value in settings.items():
        if field.endswith("_file"):
            (folder / field).write_text(value)
            found[field] = str(folder / field)
        elif isinstance(value, dict):
            found[field] = _filed(value, folder)
    return found
