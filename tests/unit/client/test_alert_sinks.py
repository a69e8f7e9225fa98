"""Bodies of the sinks of `slipway-alerts`."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
import msgspec
import pytest
from msgspec.structs import replace

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved
from slipway_client.alerts import alertmanager, delivery, slack, webhook
from slipway_client.alerts.delivery import TRIES, Change, Delivery, Problem, Sink, idempotency_key
from slipway_client.alerts.forward import is_news
from slipway_client.alerts.main import AlertsSettings, main, send, sinks

NOW = datetime(2026, 8, 1, 14, 30, tzinfo=UTC)
OPEN = AlertRaised(
    dedup_key="weight-calculator/image-tripped/linux-1",
    subject_kind="image",
    subject_id="linux-1",
    kind="image-tripped",
    summary="3 boots failed: <!channel> & more\x1b[31m",
    effect="3 pools launch only probes",
    doing="probes by itself",
    command="slipway why image/linux-1",
    since=NOW,
    raised_at=NOW,
)
END = AlertResolved(
    dedup_key=OPEN.dedup_key, subject_kind="image", subject_id="linux-1", kind="image-tripped", summary="it boots again"
)


def test_a_webhook_gets_the_event_and_an_action() -> None:
    """The end has the key of the beginning, so that a pager resolves what it has triggered."""
    assert webhook.body(OPEN, NOW) == {"action": "trigger", **msgspec.to_builtins(OPEN)}
    assert webhook.body(END, NOW)["action"] == "resolve"
    assert webhook.body(OPEN, NOW)["dedup_key"] == webhook.body(END, NOW)["dedup_key"]


def test_alertmanager_gets_no_start_after_the_end() -> None:
    """Which it would refuse for ever: the clock of the sender may be behind that of the database."""
    late = msgspec.structs.replace(END, raised_at=NOW + timedelta(seconds=30))
    (sent,) = alertmanager.body(late, NOW, refresh_seconds=60)
    assert sent["startsAt"] == sent["endsAt"] == NOW.isoformat()
    (sent,) = alertmanager.body(OPEN, NOW + timedelta(seconds=1), refresh_seconds=60)
    assert sent["startsAt"] == NOW.isoformat()


def test_slack_gets_a_message() -> None:
    """A text from outside mentions nobody and cannot control a terminal."""
    assert slack.body(OPEN, NOW) == {
        "text": ":rotating_light: *page* image-tripped linux-1: 3 boots failed: &lt;!channel&gt; &amp; more�[31m\n"
        "Effect: 3 pools launch only probes\n"
        "Slipway: probes by itself\n"
        "Remedy: `slipway why image/linux-1`"
    }
    notice = replace(OPEN, severity="notice", summary="slow", effect="", doing="", command="")
    assert slack.body(notice, NOW) == {"text": ":information_source: *notice* image-tripped linux-1: slow"}
    assert slack.body(END, NOW) == {"text": ":white_check_mark: *resolved* image-tripped linux-1: it boots again"}


@pytest.mark.parametrize(
    ("status", "again"),
    [
        (202, None),
        (503, Problem("it answered 503")),
        (500, Problem("it answered 500", of_alert=True)),
        (429, Problem("it answered 429")),
        (401, Problem("it answered 401")),
        (404, Problem("it answered 404")),
        (400, None),
    ],
    ids=["taken", "unavailable", "failed", "throttled", "wrong credential", "wrong address", "refused for ever"],
)
async def test_only_what_may_succeed_is_sent_again(status: int, again: Problem | None) -> None:
    """A body that a sink refuses for ever must not keep back those behind it. Its key is that of the event."""
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(status)

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        assert await send(http, "http://sink/", {"a": 1}, "/provisioner/1") == again
    assert seen[0].headers["idempotency-key"] == "/provisioner/1"


@pytest.mark.parametrize(
    ("alert", "before", "expected"),
    [
        (OPEN, None, True),
        (END, OPEN, True),
        (replace(OPEN, repeat=True), OPEN, False),
        (replace(OPEN, repeat=True), None, True),
        (replace(OPEN, repeat=True, revision=2), OPEN, True),
        (replace(OPEN, repeat=True, raised_at=NOW + timedelta(hours=1)), OPEN, True),
    ],
    ids=["raised", "resolved", "daily repetition", "raised meanwhile", "worse meanwhile", "raised again meanwhile"],
)
def test_a_repetition_is_news_to_a_sink_that_was_down(alert: Alert, before: AlertRaised | None, expected: bool) -> None:
    """Compaction leaves only the repetition of the day before; it has the key of what it repeats."""
    assert is_news(alert, before) is expected
    assert (before is None or idempotency_key(alert) != idempotency_key(before)) is (expected or before is None)


@pytest.mark.parametrize("name", ["WEBHOOK", "ALERTMANAGER", "SLACK"])
def test_an_address_without_a_scheme_is_refused_at_the_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a secret, and is not quoted."""
    monkeypatch.setenv("SLIPWAY_KAFKA", "127.0.0.1:1")
    monkeypatch.setenv("SLIPWAY_SECRETS_IN_ENVIRONMENT", "yes")
    monkeypatch.setenv(f"SLIPWAY_ALERTS_{name}_URL", "sink/secret")
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == (
        f"SLIPWAY_ALERTS_{name}_URL has no scheme; begin the address with http:// or https://"
    )


@pytest.mark.parametrize(
    ("name", "url"), [("SLACK", "https://hooks.example/secret"), ("WEBHOOK", "https://u:secret@pager.example/")]
)
def test_a_secret_address_is_no_variable(
    name: str, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLIPWAY_KAFKA", "127.0.0.1:1")
    monkeypatch.setenv(f"SLIPWAY_ALERTS_{name}_URL", url)
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().err
    assert f"SLIPWAY_ALERTS_{name}_URL holds a secret" in printed
    assert url not in printed


async def test_an_address_in_a_file_is_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked, file = list[str](), tmp_path / "slack"
    file.write_text("http://first/x\n")
    monkeypatch.setenv("SLIPWAY_ALERTS_SLACK_URL_FILE", str(file))
    settings = AlertsSettings(kafka="127.0.0.1:1")

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(str(request.url))
        return httpx2.Response(200)

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as http:
        (sink,) = sinks(settings, http)
        assert await sink.send({}, "k") is None
        file.write_text("http://second/x\n")
        assert await sink.send({}, "k") is None
    assert asked == ["http://first/x", "http://second/x"]


async def test_a_sink_that_does_not_answer() -> None:
    """The reason does not quote its address, which may be a secret."""
    async with httpx2.AsyncClient() as http:
        problem = await send(http, "http://127.0.0.1:9/secret", {}, "k")
    assert problem is not None
    assert not problem.of_alert
    assert "secret" not in problem.reason


class Deliveries:
    """Deliveries to a sink that fails as `problems` says by the subjects of alerts; `taken` are what it has."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.problems: dict[str, Problem] = {}
        self.taken: list[tuple[str, str]] = []
        self.tries: list[str] = []
        self.seconds = 0.0
        monkeypatch.setattr(delivery, "monotonic_seconds", lambda: self.seconds)
        monkeypatch.setattr(delivery, "pause", self._pause)
        self.stopping = asyncio.Event()
        self.delivery = Delivery(Sink(name="s", body=lambda alert, _: alert, send=self._send), self.stopping)

    async def _send(self, alert: object, _: str) -> Problem | None:
        assert isinstance(alert, Alert)
        self.tries.append(alert.subject_id)
        if (problem := self.problems.get(alert.subject_id)) is None:
            self.taken.append((type(alert).__name__, alert.subject_id))
        return problem

    async def _pause(self, stopping: asyncio.Event, failures: int) -> None:
        self.seconds += 1
        if failures > 9:
            stopping.set()

    async def send(self, kind: type[Alert], subject: str, offset: int) -> bool:
        alert = kind(dedup_key=subject, subject_kind="image", subject_id=subject, kind="k", summary="s")
        return await self.delivery.send(Change(alert, ("p", offset)))


async def test_an_alert_at_which_a_sink_fails_holds_back_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own end waits behind it, and the position, since only memory has it: after a restart it is read again."""
    to = Deliveries(monkeypatch)
    to.problems["bad"] = Problem("it answered 500", of_alert=True)
    for offset, (kind, subject) in enumerate([(AlertRaised, "bad"), (AlertRaised, "good"), (AlertResolved, "bad")]):
        assert await to.send(kind, subject, offset)
    assert (to.taken, to.delivery.settled("p", 3), to.delivery.settled("q", 7)) == ([("AlertRaised", "good")], 0, 7)
    assert to.tries == ["bad"] * TRIES + ["good"]
    await to.delivery.send_again()  # not due
    assert len(to.tries) == TRIES + 1
    to.problems.clear()
    to.seconds += 10
    await to.delivery.send_again()
    assert to.taken[1:] == [("AlertRaised", "bad"), ("AlertResolved", "bad")]
    assert (to.delivery.settled("p", 3), to.delivery.waits("bad")) == (3, False)


async def test_a_sink_that_is_unavailable_gets_all_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is set aside, nor once many are, whose sink has failed altogether."""
    to = Deliveries(monkeypatch)
    to.problems["a"] = Problem("it answered 503")
    assert not await to.send(AlertRaised, "a", 0)
    assert (to.taken, to.delivery.waits("a")) == ([], False)
    to.stopping.clear()
    monkeypatch.setattr(delivery, "ASIDE_MAX", 1)
    to.problems = dict.fromkeys("ab", Problem("it answered 500", of_alert=True))
    assert [await to.send(AlertRaised, "a", 1), await to.send(AlertRaised, "b", 2)] == [True, False]
    assert (to.delivery.waits("a"), to.delivery.waits("b")) == (True, False)


async def test_what_was_open_at_the_first_start_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """No position is committed while the sink fails at one of these, so that the next start sends them again."""
    to = Deliveries(monkeypatch)
    to.problems["bad"] = Problem("it answered 500", of_alert=True)
    assert await to.delivery.send(Change(replace(OPEN, subject_id="bad")))
    assert to.delivery.settled("p", 3) is None
    to.delivery.forget()
    assert to.delivery.settled("p", 3) == 3
