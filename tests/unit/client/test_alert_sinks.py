"""Bodies of the sinks of `slipway-alerts`."""

from datetime import UTC, datetime, timedelta

import httpx2
import msgspec
import pytest
from msgspec.structs import replace

from slipway_client.alerts import alertmanager, slack, webhook
from slipway_client.alerts.forward import idempotency_key, is_news
from slipway_client.alerts.main import main, send
from slipway_common.events.alert import Alert, AlertRaised, AlertResolved

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
        (202, ""),
        (503, "it answered 503"),
        (429, "it answered 429"),
        (401, "it answered 401"),
        (404, "it answered 404"),
        (400, ""),
    ],
    ids=["taken", "unavailable", "throttled", "wrong credential", "wrong address", "refused for ever"],
)
async def test_only_what_may_succeed_is_sent_again(status: int, again: str) -> None:
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
    monkeypatch.setenv(f"SLIPWAY_ALERTS_{name}_URL", "sink/secret")
    with pytest.raises(SystemExit) as refused:
        main()
    assert refused.value.code == (
        f"SLIPWAY_ALERTS_{name}_URL has no scheme; begin the address with http:// or https://"
    )


async def test_a_sink_that_does_not_answer() -> None:
    """The reason does not quote its address, which may be a secret."""
    async with httpx2.AsyncClient() as http:
        problem = await send(http, "http://127.0.0.1:9/secret", {}, "k")
    assert problem
    assert "secret" not in problem
