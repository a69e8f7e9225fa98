"""`slipway dlq` and `slipway topics` commands: recovery by an operator. Each acts inside the consuming service, its
first argument."""

import sys
from typing import Annotated, Final, Literal

import typer

from slipway_api.http.pages import Items
from slipway_api.http.service import DeadLetter, DeadLetterContent, Position, Replayed, StoppedPartition
from slipway_client.cli.options import AsOutput, Limit, api_of, clock, noun, now
from slipway_client.cli.tables import Field, Output, show
from slipway_client.view import dead_letter
from slipway_client.view.phrases import count
from slipway_common.base.sanitize import printable

dlq = noun("Manage dead letters")
topics = noun("Manage consumer positions in topics")

LETTER_FIELDS: Final[tuple[Field[DeadLetter], ...]] = (
    "service",
    "topic",
    "partition",
    "offset",
    "state",
    "subject",
    "reason",
    ("at", lambda row: clock(row.at)),
)
STOPPED_FIELDS: Final[tuple[Field[StoppedPartition], ...]] = ("service", "topic", "partition", "reason")

Consumer = Literal["provisioner", "weight-calculator", "lease-broker"]
"""Services that consume topics."""
Service = Annotated[Consumer, typer.Argument(metavar="SERVICE", help="Consuming service")]
AnyService = Annotated[
    Consumer | None, typer.Argument(metavar="[SERVICE]", help="Consuming service [default: all]", show_default=False)
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="Topic name without the prefix")]
Partition = Annotated[int, typer.Argument(metavar="PARTITION", min=0, help="Partition number")]
Offset = Annotated[int, typer.Argument(metavar="OFFSET", min=0, help="Offset of the dead record")]


@dlq.command("ls")
def list_dead(
    context: typer.Context, service: AnyService = None, limit: Limit = 100, output: AsOutput = Output.TABLE
) -> None:
    """List dead letters and the records parked behind them

    \b
    Example:
      slipway dlq ls provisioner
    """
    rows, errors = api_of(context).list_all(DeadLetter, "/dead-letters", service, limit=limit + 1)
    show(rows, LETTER_FIELDS, output, nothing="no dead letters", limit=limit, errors=errors)


@dlq.command("show")
def show_dead(
    context: typer.Context,
    service: Service,
    topic: Topic,
    partition: Partition,
    offset: Offset,
    raw: Annotated[bool, typer.Option("--raw", help="Value alone, as raw bytes")] = False,
) -> None:
    """Show a dead record with its key, headers and value

    Bytes that are not text are shown in hexadecimal. An undecoded record batch is shown as one value.

    \b
    Examples:
      slipway dlq show provisioner slipway.pool.demand.v1 0 17
      slipway dlq show provisioner slipway.pool.demand.v1 0 17 --raw > value.bin
    """
    letter = api_of(context).get(DeadLetterContent, service, f"/dead-letters/{topic}/{partition}/{offset}")
    if raw:
        sys.stdout.buffer.write(bytes.fromhex(letter.value or ""))
        return
    print("\n".join(dead_letter.lines(letter, now=now())))


@dlq.command("replay")
def replay(context: typer.Context, service: Service, topic: Topic, partition: Partition, offset: Offset) -> None:
    """Retry a dead record and those parked behind it

    \b
    Example:
      slipway dlq replay provisioner slipway.lease.lifecycle.v1 3 1207
    """
    _settle(context, service, "replay", topic, partition, offset)


@dlq.command("drop")
def drop(context: typer.Context, service: Service, topic: Topic, partition: Partition, offset: Offset) -> None:
    """Drop a dead record and apply those parked behind it

    \b
    Example:
      slipway dlq drop provisioner slipway.lease.lifecycle.v1 3 1207
    """
    _settle(context, service, "drop", topic, partition, offset)


def _settle(context: typer.Context, service: Consumer, how: str, topic: str, partition: int, offset: int) -> None:
    body = {"topic": topic, "partition": partition, "offset": offset}
    answer = api_of(context).post(Replayed, service, f"/dead-letters/{how}", body)
    reason = f": {printable(answer.reason)}" if answer.reason else ""
    print(f"{count(answer.applied, 'record')} applied, {answer.remaining} remaining{reason}")


@topics.command("stopped")
def list_stopped(context: typer.Context, service: AnyService = None, output: AsOutput = Output.TABLE) -> None:
    """List partitions that stopped after a topic change

    Their stored position does not belong to the current log of the topic, for example after a restore.

    \b
    Example:
      slipway topics stopped lease-broker
    """
    rows, errors = api_of(context).list_all(StoppedPartition, "/positions/stopped", service)
    show(rows, STOPPED_FIELDS, output, nothing="no partition is stopped", errors=errors)


@topics.command("adopt")
def adopt(
    context: typer.Context,
    service: Service,
    at: Annotated[Literal["begin", "end"], typer.Option(help="New position in the current log")],
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="Topic name without the prefix", show_default=False)
    ] = None,
    partition: Annotated[
        int | None, typer.Argument(metavar="[PARTITION]", min=0, help="Partition number", show_default=False)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All stopped partitions of the service")] = False,
) -> None:
    """Reset the position of stopped partitions

    For use after a Kafka cluster or a topic was replaced. With --all, every partition that the service has stopped.

    \b
    Examples:
      slipway topics adopt lease-broker slipway.lease.request.v1 3 --at begin
      slipway topics adopt lease-broker --all --at begin
    """
    if all_ == (topic is not None) or (topic is None) != (partition is None):
        raise typer.BadParameter("give TOPIC and PARTITION, or --all")
    if all_:
        adopted = api_of(context).post(Items[Position], service, "/positions/adopt-all", {"at": at}).items
    else:
        place = {"topic": topic, "partition": partition}
        adopted = [api_of(context).post(Position, service, "/positions/adopt", place | {"at": at})]
    for row in adopted:
        print(f"{printable(row.topic)}/{row.partition} resumed at offset {row.next_offset}")
    if not adopted:
        print("no partition is stopped")
