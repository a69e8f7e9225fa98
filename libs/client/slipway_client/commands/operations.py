"""`slipway dlq` and `slipway topics`: what only an operator can set going again. Each acts inside the service that
consumes, which is named first."""

from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from slipway_client import moments
from slipway_client.foreign import printable
from slipway_client.http import Api
from slipway_client.options import AsOutput, noun, now
from slipway_client.tables import Field, Output, show

dlq = noun("Dead letters.")
topics = noun("Positions in topics.")

LETTER_FIELDS: Final[tuple[Field, ...]] = (
    "service",
    "topic",
    "partition",
    "offset",
    "state",
    "subject",
    "reason",
    ("at", lambda row: moments.clock(moments.at(row["at"]), now())),
)
STOPPED_FIELDS: Final = ("service", "topic", "partition", "why")


class Consumer(StrEnum):
    """Services that consume."""

    PROVISIONER = "provisioner"
    WEIGHT_CALCULATOR = "weight-calculator"
    LEASE_BROKER = "lease-broker"


class Where(StrEnum):
    BEGIN, END = "begin", "end"


Service = Annotated[Consumer, typer.Argument(help="The service that consumes the topic.")]
AnyService = Annotated[Consumer | None, typer.Argument(help="One service.  [default: all]", show_default=False)]
Topic = Annotated[str, typer.Argument(help="Its name without a prefix, as `ls` and `stopped` show it.")]
Partition = Annotated[int, typer.Argument(min=0)]
Offset = Annotated[int, typer.Argument(min=0)]


@dlq.command("ls")
def list_dead(context: typer.Context, service: AnyService = None, output: AsOutput = Output.TABLE) -> None:
    """List records that were not applied, and those parked behind them; of one service or of all.

    \b
    Example:
      slipway dlq ls provisioner
    """
    show(_rows(context.obj, service, "/dead-letters"), LETTER_FIELDS, output, nothing="no dead letters")


def _rows(api: Api, service: Consumer | None, path: str) -> list[dict[str, Any]]:
    asked = [service] if service else list(Consumer)
    return [{"service": each.value, **row} for each in asked for row in api.get(each.value, path)["items"]]


@dlq.command("replay")
def replay(context: typer.Context, service: Service, topic: Topic, partition: Partition, offset: Offset) -> None:
    """Try a dead record again, and what is parked behind it.

    \b
    Example:
      slipway dlq replay provisioner slipway.lease.lifecycle.v1 3 1207
    """
    _settle(context, service, "replay", topic, partition, offset)


@dlq.command("drop")
def drop(context: typer.Context, service: Service, topic: Topic, partition: Partition, offset: Offset) -> None:
    """Forget a dead record for good; what is parked behind it is applied.

    \b
    Example:
      slipway dlq drop provisioner slipway.lease.lifecycle.v1 3 1207
    """
    _settle(context, service, "drop", topic, partition, offset)


def _settle(context: typer.Context, service: Consumer, how: str, topic: str, partition: int, offset: int) -> None:
    body = {"topic": topic, "partition": partition, "offset": offset}
    told = context.obj.post(service.value, f"/dead-letters/{how}", body)
    reason = f": {printable(told['reason'])}" if told["reason"] else ""
    print(f"{told['applied']} applied, {told['remaining']} remain{reason}")


@topics.command("stopped")
def list_stopped(context: typer.Context, service: AnyService = None, output: AsOutput = Output.TABLE) -> None:
    """List partitions whose stored position does not belong to the log that is there; of one service or of all.

    \b
    Example:
      slipway topics stopped lease-broker
    """
    show(_rows(context.obj, service, "/positions/stopped"), STOPPED_FIELDS, output, nothing="no partition is stopped")


@topics.command("adopt")
def adopt(
    context: typer.Context,
    service: Service,
    topic: Topic,
    partition: Partition,
    at: Annotated[Where, typer.Option(help="Where consuming goes on in the log that is there.")],
) -> None:
    """Rebase a stopped partition, after a cluster or a topic was replaced.

    \b
    Example:
      slipway topics adopt lease-broker slipway.lease.request.v1 3 --at begin
    """
    body = {"topic": topic, "partition": partition, "at": at.value}
    told = context.obj.post(service.value, "/positions/adopt", body)
    print(f"{topic}/{partition} goes on at offset {told['next_offset']}")
