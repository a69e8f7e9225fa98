"""`slipway-alerts`: forwards the alerts of a deployment to a webhook, to Alertmanager or to Slack."""

import asyncio
import signal
import sys
from functools import partial
from typing import Annotated, Final

import httpx2

from slipway_client.alerts import alertmanager, slack, webhook
from slipway_client.alerts.delivery import Body, Problem, Sink
from slipway_client.alerts.forward import Forwarding
from slipway_common.base.settings import Secret, current_value, from_environment, has_password, variable_of
from slipway_common.messaging.clients import KafkaSettings
from slipway_common.observability import telemetry

LOG = telemetry.logger(__name__)
SEND_SECONDS: Final = 10.0
REFUSALS: Final = frozenset({400, 409, 413, 422})
"""Statuses of a sink that refuses one alert. Others are about its address or its credential: once those are mended,
all alerts that wait arrive."""
FAILED: Final = 500
"""Status of a sink that has failed, perhaps at this alert alone. Those of one that is unavailable are others."""
SCHEMES: Final = ("http://", "https://")
SINKS: Final = ("alerts_webhook_url", "alerts_alertmanager_url", "alerts_slack_url")


class AlertsSettings(KafkaSettings):
    """Settings of `slipway-alerts`. An address that is a secret, as Slack's, or has a password comes from a file, which
    is read again when it changes."""

    topic_prefix: str = ""
    alerts_webhook_url: Annotated[str, Secret(has_password)] = ""
    alerts_alertmanager_url: Annotated[str, Secret(has_password)] = ""
    """Address of Alertmanager, without the path of its API."""
    alerts_slack_url: Annotated[str, Secret()] = ""
    alerts_refresh_seconds: float = 60.0
    """Interval at which open alerts are sent to Alertmanager again."""


def sinks(settings: AlertsSettings, http: httpx2.AsyncClient) -> list[Sink]:
    """The sinks whose addresses are set."""
    every = settings.alerts_refresh_seconds
    to_alertmanager = partial(alertmanager.body, refresh_seconds=every)
    found: list[tuple[str, str, str, Body, float | None]] = [
        ("webhook", "alerts_webhook_url", "", webhook.body, None),
        ("alertmanager", "alerts_alertmanager_url", alertmanager.PATH, to_alertmanager, every),
        ("slack", "alerts_slack_url", "", slack.body, None),
    ]
    return [
        Sink(name=name, body=body, send=partial(_send, http, setting, at_start, path), refresh_seconds=refresh)
        for name, setting, path, body, refresh in found
        if (at_start := getattr(settings, setting))
    ]


async def _send(
    http: httpx2.AsyncClient, setting: str, at_start: str, path: str, body: object, key: str
) -> Problem | None:
    """Send a body to the address that the file of a setting has now."""
    url = current_value(setting, at_start)
    return await send(http, url.rstrip("/") + path if path else url, body, key)


async def send(http: httpx2.AsyncClient, url: str, body: object, key: str) -> Problem | None:
    """Send a body; returns why it has to be sent again, None if it is settled. One that a sink refuses for ever is
    logged and given up, since those behind it must arrive."""
    try:
        answer = await http.post(url, json=body, headers={"Idempotency-Key": key})
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return Problem(str(error) or type(error).__name__)
    if answer.is_success:
        return None
    if answer.status_code not in REFUSALS:
        return Problem(f"it answered {answer.status_code}", of_alert=answer.status_code == FAILED)
    LOG.error("the sink refuses an alert", status=answer.status_code, reason=answer.text, event_id=key)
    return None


def main() -> None:
    """Forward until SIGTERM or SIGINT; what a sink has taken is recorded first."""
    settings = from_environment(AlertsSettings)
    telemetry.configure_logs("slipway-alerts")
    if not any(getattr(settings, name) for name in SINKS):
        sys.exit(f"slipway-alerts has nowhere to send alerts: set {' or '.join(map(variable_of, SINKS))}")
    for name in SINKS:
        if (url := getattr(settings, name)) and not url.startswith(SCHEMES):
            sys.exit(f"{variable_of(name)} has no scheme; begin the address with {' or '.join(SCHEMES)}")
    asyncio.run(_run(settings))


async def _run(settings: AlertsSettings) -> None:
    stopping = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopping.set)
    async with httpx2.AsyncClient(timeout=SEND_SECONDS) as http, asyncio.TaskGroup() as group:
        for sink in sinks(settings, http):
            forwarding = Forwarding(sink, kafka=settings.kafka_access, prefix=settings.topic_prefix, stopping=stopping)
            group.create_task(forwarding.run())
            LOG.info("forwarding", sink=sink.name)
