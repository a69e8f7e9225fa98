"""`slipway-alerts` with a webhook and a real Alertmanager: each page once, over restarts of both."""

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import httpx2
import jsonschema
import pytest

from slipway_api.events.alert import AlertRaised
from slipway_api.events.topics import ALERT, WORKER_LIFECYCLE
from slipway_client.alerts import alertmanager
from slipway_common.base.clock import utc_now
from slipway_common.database import alerts
from slipway_local.servers.ports import free_ports
from tests.contract.examples.outside import Page, publish, raised, resolved, serving
from tests.support.harness import PATIENCE_SECONDS, Place, until
from tests.support.tools import needed

NOW: Final = datetime(2026, 8, 1, 14, 30, tzinfo=UTC)
# Alertmanager ends an alert that is not sent again for five of them: no restart of `slipway-alerts` lasts as long.
REFRESH_SECONDS: Final = 5.0
B: Final = raised("b", severity="notice")
ALERTMANAGER: Final = "prometheus-alertmanager"
OPENAPI_BYTES_MAX: Final = 200_000
ROUTES: Final = """
route: {{receiver: page, group_by: ["..."], group_wait: 0s, group_interval: 1s, repeat_interval: 24h}}
receivers: [{{name: page, webhook_configs: [{{url: "{url}", send_resolved: true}}]}}]
"""


class Program:
    """A program that is started, stopped and killed. Its output is appended to one file."""

    def __init__(self, argv: Sequence[str], log: Path, **environment: str) -> None:
        self._argv, self._log, self._environment = argv, log, os.environ | environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as out:
            self._process = subprocess.Popen(self._argv, env=self._environment, stdout=out, stderr=out)

    def stop(self) -> None:
        """Stop it as a supervisor would, and wait for its end."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def running(program: Program) -> Iterator[Program]:
    program.start()
    try:
        yield program
    finally:
        program.kill()


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[tuple[Program, str, Page]]:
    """Alertmanager, its address, and what it sends its notifications to."""
    (port,) = free_ports(1)
    with serving() as page:
        (tmp_path / "alertmanager.yaml").write_text(ROUTES.format(url=page.url))
        argv = [needed(ALERTMANAGER), f"--config.file={tmp_path}/alertmanager.yaml", f"--storage.path={tmp_path}/data"]
        argv += [f"--web.listen-address=127.0.0.1:{port}", "--cluster.listen-address="]
        with running(Program(argv, tmp_path / "alertmanager.log")) as program:
            url = f"http://127.0.0.1:{port}"
            await until(lambda: answers(url), "Alertmanager is ready")
            yield program, url, page


def openapi() -> dict[str, Any]:
    """The OpenAPI document that Alertmanager was built with, and by which it reads requests."""
    program = Path(needed(ALERTMANAGER)).resolve().read_bytes()
    begin = program.rindex(b"{", 0, program.index(b'"swagger": "2.0"'))
    text = program[begin : begin + OPENAPI_BYTES_MAX].decode(errors="replace")
    document: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
    return document


async def answers(url: str) -> bool:
    async with httpx2.AsyncClient() as http:
        try:
            return bool((await http.get(f"{url}/-/ready")).is_success)
        except httpx2.TransportError:
            return False


async def ends_at(url: str, subject: str) -> datetime:
    """When Alertmanager ends an alert, unless it is sent again."""
    async with httpx2.AsyncClient() as http:
        shown = (await http.get(f"{url}/api/v2/alerts")).json()
    return max(datetime.fromisoformat(alert["endsAt"]) for alert in shown if alert["labels"]["subject"] == subject)


async def is_extended(url: str, subject: str, end: datetime) -> bool:
    return await ends_at(url, subject) > end


async def test_alertmanager_gets_what_its_openapi_describes(manager: tuple[Program, str, Page]) -> None:
    """Its program contains the document. An alert ends once nobody sends it; a resolved one ends now."""
    _, url, _ = manager
    fire = raised("x", severity="page", command="slipway why x", raised_at=NOW)
    async with httpx2.AsyncClient(base_url=url) as http:
        schema = {"$ref": "#/definitions/postableAlerts", "definitions": openapi()["definitions"]}
        body = alertmanager.body(fire, NOW, refresh_seconds=60.0)
        checker = jsonschema.Draft4Validator.FORMAT_CHECKER
        jsonschema.Draft4Validator(schema, format_checker=checker).validate(body)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.Draft4Validator(schema).validate([{"labels": {"alertname": 1}}])
        assert datetime.fromisoformat(str(body[0]["endsAt"])) == NOW + timedelta(seconds=300)
        (end,) = alertmanager.body(resolved("x"), NOW, refresh_seconds=60.0)
        assert datetime.fromisoformat(str(end["endsAt"])) == NOW
        answer = await http.post("/api/v2/alerts", json=alertmanager.body(fire, utc_now(), refresh_seconds=60.0))
        assert answer.status_code == 200
        (shown,) = (await http.get("/api/v2/alerts")).json()
        assert (shown["labels"]["alertname"], shown["labels"]["subject"]) == ("test", "x")
        assert shown["annotations"] == {"summary": "x is on fire", "command": "slipway why x"}


async def test_each_page_once(place: Place, manager: tuple[Program, str, Page], tmp_path: Path) -> None:
    """Open alerts are sent at the first start, and none twice: not by a restart of either side, nor by a repetition.
    After a kill the webhook can tell by its key what it already has."""
    program, url, notified = manager
    await place.create(ALERT, WORKER_LIFECYCLE)
    with serving() as webhook:
        settings = {
            "SLIPWAY_KAFKA": place.kafka.bootstrap,
            "SLIPWAY_TOPIC_PREFIX": place.prefix,
            "SLIPWAY_ALERTS_WEBHOOK_URL": webhook.url,
            "SLIPWAY_ALERTS_ALERTMANAGER_URL": url,
            "SLIPWAY_ALERTS_REFRESH_SECONDS": str(REFRESH_SECONDS),
        }
        command = [str(Path(sys.executable).with_name("slipway-alerts"))]
        log = tmp_path / "slipway-alerts.log"

        async def arrived(wanted: set[tuple[str, str]]) -> None:
            async def have() -> bool:
                return set(pages(webhook)) >= wanted and set(notifications(notified)) >= wanted

            with contextlib.suppress(AssertionError):
                await until(have, "both have all")
            assert (set(pages(webhook)), set(notifications(notified))) == (wanted, wanted), log.read_text()

        await publish(place, raised("old"), resolved("old"), raised("a"), B)
        wanted = {("open", "a"), ("open", "b")}
        with running(Program(command, log, **settings)) as sinks:
            await arrived(wanted)  # an alert that ended before the first start is no news
            end = await ends_at(url, "b")
            await until(lambda: is_extended(url, "b", end), "it is sent again")
            sinks.stop()
            program.stop()
            # Compaction has left only a repetition of one that was raised meanwhile.
            only = raised("only-repeated", raised_at=NOW, repeat=True)
            await publish(place, raised("c"), resolved("a"), await repetition(place, "b"), only)
            program.start()
            sinks.start()
            wanted |= {("open", "c"), ("closed", "a"), ("open", "only-repeated")}
            await arrived(wanted)
            program.stop()
            await publish(place, raised("d"), *[await repetition(place, subject) for subject in "bc"], only)
            program.start()
            wanted |= {("open", "d")}
            await arrived(wanted)
            assert set(pages(webhook).values()) == {1}
            webhook.answers.append(503)  # the next request is repeated
            await publish(place, *(raised(name) for name in "efghij"))
            sinks.kill()
            sinks.start()
            wanted |= {("open", name) for name in "efghij"}
            await arrived(wanted)
            await publish(place, *(resolved(name) for name in "bcdefghij"))
            wanted |= {("closed", name) for name in "bcdefghij"}
            await arrived(wanted)
            assert set(notifications(notified).values()) == {1}, notifications(notified)
            assert len(set(webhook.keys)) == len(wanted)
            assert set(webhook.keys) == {key for key in webhook.keys if key}
            twice = len(webhook.keys) - len(set(webhook.keys))
            assert twice <= 1  # the one that was being sent when it was killed
            print(
                f"\nalert sinks ok: {len(wanted)} pages and ends, each once in Alertmanager and by key in the webhook"
            )


async def repetition(place: Place, subject: str) -> AlertRaised:
    """An open alert as it is published again each day."""
    rows = await alerts.fetch(place.database, open_=True, limit=100)
    (row,) = [row for row in rows if row.subject_id == subject]
    return raised(subject, severity=row.severity, raised_at=row.raised_at, repeat=True)


def pages(webhook: Page) -> Counter[tuple[str, str]]:
    """Deliveries by state and subject."""
    return Counter(("open" if body["action"] == "trigger" else "closed", body["subject_id"]) for body in webhook.posted)


def notifications(page: Page) -> Counter[tuple[str, str]]:
    """Notifications of Alertmanager by state and subject; each alert is a group of its own."""
    states = {"firing": "open", "resolved": "closed"}
    return Counter((states[body["status"]], body["alerts"][0]["labels"]["subject"]) for body in page.posted)
