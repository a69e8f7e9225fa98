"""`slipway doctor`: reads the state of every part of a deployment in parallel; the module diagnosis grades it."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec
import typer

from slipway_api.http.provisioner.accounts import Account
from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_api.http.provisioner.pools import LaunchStop, Pool
from slipway_api.http.provisioner.recovery import Deployment
from slipway_api.http.service import ListedAlert, ServiceStatus
from slipway_client.cli.commands.recovery import differences
from slipway_client.cli.options import AsOutput, api_of, now
from slipway_client.cli.tables import Output, as_json, filled
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import Api
from slipway_common.base.clock import utc_now

if TYPE_CHECKING:
    from slipway_client.transport.log import Entry
    from slipway_client.view.diagnosis import Finding, Gathered, ServiceAnswer

T = TypeVar("T")
PROBLEM: Final = 3
HTTP_SECONDS: Final = 2.0  # per request, of which lists may need several, one after the other
READS: Final = 10  # in parallel
KAFKA_SECONDS: Final = 8.0  # for all of Kafka, in parallel with the requests to services
NEWEST: Final = 500  # records of each partition: services beat every 5 s
COLORS: Final = {"ok": "green", "note": "cyan", "warn": "yellow", "fail": "red"}


def doctor(
    context: typer.Context,
    partitions: Annotated[
        int | None,
        typer.Option(
            envvar=["PARTITIONS", "SLIPWAY_PARTITIONS"], help="Partitions of each topic [default: as in the registry]"
        ),
    ] = None,
    after_restore: Annotated[
        bool, typer.Option("--after-restore", help="Differences after a restore of the database")
    ] = False,
    output: AsOutput = Output.TABLE,
) -> None:
    """Check a deployment and print remedies for its problems

    Shows the deployment's id; checks services, versions, schemas, clocks, Kafka, topics, lag, dead letters, outbox,
    heartbeats, alerts, launch stops, health and accounts; takes at most 10 s. Grades: ok; note, Slipway handles it
    alone; warn, a person should look; fail, something does not work. Exit code 0 if every grade is ok or note, 3 if
    one is warn or fail. With --after-restore only the differences between a restored database and what runs are shown,
    and the exit code is 3 until they are confirmed.

    \b
    Examples:
      slipway doctor
      slipway doctor -o json
      slipway doctor --after-restore
    """
    if after_restore:
        if differences(api_of(context), output):
            raise typer.Exit(PROBLEM)
        return
    from slipway_client.view.diagnosis import diagnose, healthy

    found = list(diagnose(_gathered(api_of(context), partitions)))
    if output is Output.JSON:
        fields = ("grade", "check", "detail", "remedy")
        as_json([{name: getattr(finding, name) for name in fields} for finding in found])
    else:
        _print(found)
    if not healthy(found):
        raise typer.Exit(PROBLEM)


def _print(found: Sequence["Finding"]) -> None:
    width = max(len(finding.check) for finding in found)
    indent = " " * (6 + width + 2)
    for finding in found:
        grade = typer.style(f"{finding.grade:<4}", fg=COLORS[finding.grade], bold=finding.grade != "ok")
        typer.echo(grade + filled(f"{finding.check:<{width}}  {finding.detail}", indent, first=" " * 6)[4:])
        if finding.remedy:
            typer.echo(filled(f"remedy: {finding.remedy}", f"{indent}    ", first=indent))


def _gathered(api: Api, partitions: int | None) -> "Gathered":
    from concurrent.futures import ThreadPoolExecutor
    from importlib.metadata import version

    from slipway_client.view.diagnosis import Gathered

    quick = api.within(HTTP_SECONDS)
    with ThreadPoolExecutor(READS) as threads:
        asked = threads.submit(_asked_kafka, api, partitions)
        statuses = {name: threads.submit(_status, quick, name) for name in api.urls}
        alerts = threads.submit(_read_or_none, lambda: quick.list_all(ListedAlert, "/alerts", open=True)[0])
        deployment = threads.submit(_read_or_none, lambda: quick.get(Deployment, "provisioner", "/deployment"))
        stops = threads.submit(_read_or_none, lambda: quick.items(LaunchStop, "provisioner", "/launch-stops"))
        accounts = threads.submit(_read_or_none, lambda: quick.items(Account, "provisioner", "/accounts"))
        pools = threads.submit(_read_or_none, lambda: quick.items(Pool, "provisioner", "/pools"))
        configs = threads.submit(_read_or_none, lambda: quick.items(LaunchConfig, "provisioner", "/launch-configs"))
        kafka, open_alerts = asked.result(), alerts.result()
        return Gathered(
            own_version=version("slipway-client"),
            services={name: status.result() for name, status in statuses.items()},
            kafka=api.kafka,
            kafka_error=kafka.error,
            differences=kafka.differences,
            heartbeats=kafka.heartbeats,
            now=now(),
            alerts=None if open_alerts is None else [row.value for row in open_alerts],
            deployment=deployment.result(),
            launch_stops=stops.result(),
            accounts=accounts.result(),
            pools=pools.result(),
            configs=configs.result(),
        )


def _read_or_none(read: Callable[[], T]) -> T | None:
    """Answers of services; None for each that does not answer: one whose database is down says so in its status."""
    try:
        return read()
    except Failed:
        return None


def _status(api: Api, service: str) -> "ServiceAnswer":
    from slipway_client.view.diagnosis import ServiceAnswer

    asked_at = utc_now()
    status, error = None, ""
    try:
        status = api.get(ServiceStatus, service, "/status")
    except Failed as refused:
        error = str(refused).partition("\n")[0]
    return ServiceAnswer(url=api.urls[service], status=status, error=error, asked_at=asked_at, answered_at=utc_now())


class _Kafka(msgspec.Struct):
    """Facts from Kafka, or the error for which there are none."""

    error: str = ""
    differences: list[str] | None = None
    heartbeats: dict[str, datetime] | None = None


def _asked_kafka(api: Api, partitions: int | None) -> _Kafka:
    import asyncio

    try:
        return asyncio.run(asyncio.wait_for(_from_kafka(api, partitions), KAFKA_SECONDS))
    except TimeoutError:
        return _Kafka(f"Kafka at {api.kafka} did not answer within {KAFKA_SECONDS:g} s")
    except Failed as error:
        return _Kafka(str(error).partition("\n")[0])


async def _from_kafka(api: Api, partitions: int | None) -> _Kafka:
    import asyncio

    from aiokafka.errors import KafkaError

    from slipway_client.transport.log import kafka_access, unavailable
    from slipway_common.messaging import topic_admin

    topics = asyncio.ensure_future(_from_topics(api))
    try:
        differences = await topic_admin.diff(kafka_access(api.kafka), prefix=api.topic_prefix, partitions=partitions)
        found = _Kafka(differences=[line.removeprefix(api.topic_prefix) for line in differences])
        # Missing topics hold no events, and their absence is a finding of its own.
        if not any(line.endswith(": missing") for line in differences):
            found.heartbeats = await topics
        return found
    except (KafkaError, OSError) as error:
        raise Failed(unavailable(api.kafka, error)) from error
    finally:
        topics.cancel()
        await asyncio.gather(topics, return_exceptions=True)


async def _from_topics(api: Api) -> dict[str, datetime]:
    """The newest heartbeat of each service."""
    from slipway_api.events.topics import SERVICE_HEARTBEAT
    from slipway_client.transport.log import Log

    heartbeats: dict[str, datetime] = {}
    async with Log(api.kafka, api.topic_prefix, timeout_seconds=KAFKA_SECONDS) as log:
        await log.open([SERVICE_HEARTBEAT.name], last=NEWEST, since=None)
        async for entry in log.past():
            _record(entry, heartbeats)
    return heartbeats


def _record(entry: "Entry", heartbeats: dict[str, datetime]) -> None:
    """Apply one record; unreadable ones and those of other types are skipped."""
    from slipway_api.events.service import ServiceHeartbeat

    if entry.envelope is None or entry.unreadable or entry.data is None:
        return
    if entry.envelope.type == ServiceHeartbeat.type:
        heartbeats[entry.data["service"]] = entry.time
