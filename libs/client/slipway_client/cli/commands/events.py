"""`slipway events` commands: events published on Kafka."""

import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from slipway_client.cli.options import OfPool, api_of, as_usage, noun, now, revisions, workers
from slipway_client.cli.tables import short
from slipway_client.transport.http import Api
from slipway_client.view import moments
from slipway_common.base.revisions import name_of

if TYPE_CHECKING:
    from slipway_client.transport.log import Entry

app = noun("Show events")

LAST: Final = 10
WINDOW: Final = timedelta(hours=1)  # searched for the last events: a filtered object may have none for a while


def _names() -> dict[str, str]:
    """Short name of each topic → its name in the registry."""
    from slipway_api.events.topics import TOPICS

    return {topic.name.removeprefix("slipway.").removesuffix(".v1"): topic.name for topic in TOPICS}


def watched() -> list[str]:
    """Topics shown by default: those of subscribers, and signals.

    Topics that services read as views are left out, because they repeat whole states at short intervals."""
    from slipway_api.events.topics import LAUNCH_CONFIG_SIGNAL, TOPICS

    return [topic.name for topic in TOPICS if topic is LAUNCH_CONFIG_SIGNAL or (topic.followed and not topic.viewed)]


def _topics(context: typer.Context, incomplete: str) -> list[str]:
    return list(_names())


@app.command("tail")
def tail(
    context: typer.Context,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="Topic, such as worker.lifecycle; repeatable",
            autocompletion=_topics,
            show_default=False,
        ),
    ] = None,
    pool: OfPool = None,
    worker: Annotated[
        str | None,
        typer.Option(
            "--worker", metavar="WORKER", help="Worker ID or its last digits [default: all]", autocompletion=workers
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config", metavar="CONFIG", help="Launch config, or NAME@HASH [default: all]", autocompletion=revisions
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Age of the oldest event, such as 10m [default: 1h]")
    ] = None,
    beginning: Annotated[bool, typer.Option("--beginning", help="All retained events, from the oldest on")] = False,
    last: Annotated[
        int | None, typer.Option("-n", metavar="N", min=0, help="Number of past events [default: 10]")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="New events, until Ctrl-C")] = True,
    output: Annotated[
        Literal["text", "json"], typer.Option("-o", "--output", help="Output format; json is one CloudEvent per line")
    ] = "text",
) -> None:
    """Print recent events and follow new ones

    Starts with the last 10 of the past hour. Events of all lifecycles, signals and alerts, unless --topic names
    others. With -o json each line is a CloudEvent with its topic, partition, offset and the time at which Kafka stored
    it.

    \b
    Examples:
      slipway events tail
      slipway events tail --pool linux --since 10m
      slipway events tail --topic launch-config.weight --config linux-zone-b
      slipway events tail --worker 3f9a12cd --beginning --no-follow -o json
    """
    names = _names()
    known = names | {name: name for name in names.values()}
    wanted = topic or watched()
    if unknown := [name for name in wanted if name not in known]:
        raise typer.BadParameter(f"--topic: no topic {unknown[0]}; there is {', '.join(names)}")
    if since and beginning:
        raise typer.BadParameter("--since and --beginning are mutually exclusive")
    with as_usage("--since"):
        from_ = None if beginning else now() - (timedelta(seconds=moments.seconds(since)) if since else WINDOW)
    if last is None and not since and not beginning:
        last = LAST
    given = {"pool_id": pool, "worker_id": worker, "launch_config_id": config}
    only = {name: value for name, value in given.items() if value is not None}
    format_ = _json_line if output == "json" else _line

    import asyncio

    try:
        asyncio.run(_tail(api_of(context), [known[name] for name in wanted], only, from_, last, follow, format_))
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        # The reader closed the pipe. The interpreter flushes stdout at exit, which must not fail on it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def _tail(
    api: Api,
    topics: Sequence[str],
    only: Mapping[str, str],
    since: datetime | None,
    last: int | None,
    follow: bool,
    format_: Callable[["Entry"], str],
) -> None:
    from slipway_client.transport.log import Log

    def on_availability(available: bool) -> None:
        print(f"Kafka at {api.kafka} is {'available again' if available else 'unavailable; waiting'}", file=sys.stderr)

    async with Log(api.kafka, api.topic_prefix) as log:
        # Without a filter, the last records of each partition are enough.
        await log.open(topics, last=None if only else last, since=since)
        kept: deque[Entry] = deque(maxlen=last)
        found = False
        async for entry in log.past():
            if not _matches(entry, only):
                continue
            found = True
            if last is None:
                print(format_(entry))
            else:
                kept.append(entry)
        for entry in kept:
            print(format_(entry))
        sys.stdout.flush()
        if only and not found:
            # No error: the topics do not show if the object exists, and its events may still come.
            print(f"no events of {', '.join(only.values())} so far", file=sys.stderr)
        if follow:
            async for entry in log.follow(on_availability):
                if _matches(entry, only):
                    print(format_(entry), flush=True)


SUBJECTS: Final = {"pool_id": "pool", "launch_config_id": "config"}  # field of an ID → kind of an alert's subject


def _matches(entry: "Entry", only: Mapping[str, str]) -> bool:
    """True if the IDs in the data match; alerts of a pool or config name it as their subject. The name of a launch
    config matches all of its revisions."""
    if not only:
        return True
    data = entry.data if isinstance(entry.data, dict) else {}
    return all(_matches_id(field, wanted, entry.key, data) for field, wanted in only.items())


def _matches_id(field: str, wanted: str, key: str, data: Mapping[str, object]) -> bool:
    from slipway_api.percent import decoded

    value = str(data.get(field, ""))
    if field == "worker_id" and value.endswith(wanted):
        return True
    if data.get("subject_kind") == SUBJECTS.get(field, ""):
        value = str(data.get("subject_id", ""))
    if not data:
        value = "/".join(decoded(key))  # a tombstone
    return wanted in ((value, name_of(value)) if field == "launch_config_id" else (value,))


def _line(entry: "Entry") -> str:
    from slipway_client.view import lines

    type_, subject = (entry.envelope.type, entry.envelope.subject) if entry.envelope else ("", "")
    subject = subject or entry.key
    if entry.unreadable:
        where = f"{entry.topic}/{entry.partition}, offset {entry.offset}"
        return lines.unreadable(type_, entry.time, subject, where, entry.unreadable, now=now())
    return lines.line(type_, entry.time, subject, entry.data, now=now(), short=short)


EXTENSIONS: Final = {  # attributes of CloudEvents by our fields
    "sequence_source": "slipwaysource",
    "sequence_number": "slipwaynumber",
    "previous": "slipwayprevious",
    "revision": "slipwayrevision",
}


def _json_line(entry: "Entry") -> str:
    import json

    from msgspec.structs import asdict

    where: dict[str, object] = {
        "topic": entry.topic,
        "partition": entry.partition,
        "offset": entry.offset,
        "stored": entry.stored_at.isoformat(),
    }
    if entry.unreadable:
        where["unreadable"] = entry.unreadable
    if entry.envelope is None:
        return json.dumps(where, ensure_ascii=False)
    fields = asdict(entry.envelope) | {"time": entry.envelope.time.isoformat()}
    given = {EXTENSIONS.get(name, name): value for name, value in fields.items() if value not in (None, "")}
    attributes = {"specversion": "1.0", **given}
    return json.dumps(attributes | where | {"data": entry.data}, ensure_ascii=False)
