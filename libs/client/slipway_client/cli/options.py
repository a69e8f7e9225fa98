"""Arguments and options that several commands share, and shell completion of IDs, which is skipped if a service does
not answer within a second."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from slipway_client.cli.tables import Output
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import PAGE_ITEMS, Api, Parameter
from slipway_client.view import moments
from slipway_common.base.clock import utc_now

if TYPE_CHECKING:
    from slipway_api.http.lease_broker import AcquireReplaces

COMPLETION_SECONDS: Final = 1.0
Complete = Callable[[typer.Context, str], list[tuple[str, str]]]


def noun(help: str) -> typer.Typer:
    """Command group of one noun."""
    return typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=help)


def api_of(context: typer.Context) -> Api:
    """The services that the options of the command name."""
    api: Api = context.obj
    return api


def now() -> datetime:
    """Current time in the reader's time zone."""
    return utc_now().astimezone()


def clock(at: datetime | None) -> str:
    """A time in the reader's zone; empty if there is none."""
    return "" if at is None else moments.clock(at, now())


@contextlib.contextmanager
def as_usage(option: str = "") -> Iterator[None]:
    """Raise the error of a value as that of the usage of its option."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise typer.BadParameter(f"{option}: {error}" if option else str(error)) from error


def until(for_: str | None, at: str | None) -> datetime | None:
    """End time of --for or --until; None: no end."""
    if for_ and at:
        raise typer.BadParameter("--for and --until exclude each other")
    with as_usage("--for" if for_ else "--until"):
        if for_:
            return datetime.fromtimestamp(now().timestamp() + moments.seconds(for_), now().tzinfo)
        return moments.moment(at, now()) if at else None


def until_text(ends: datetime | None) -> str:
    """Text for messages: `until 17:30`, or `indefinitely`."""
    return f"until {moments.clock(ends, now())}" if ends else "indefinitely"


class Strategy(StrEnum):
    """Ways to replace a revision of a launch config by another."""

    NATURAL, ROLLING, NOW = "natural", "rolling", "now"


def seconds_of(option: str, given: str) -> float:
    """Duration of an option in seconds."""
    with as_usage(option):
        return moments.seconds(given)


def duration_seconds(option: str, given: str | None) -> float | None:
    """Duration of an option in seconds; None if it is not given."""
    return None if given is None else seconds_of(option, given)


def duration_or_zero(option: str, text: str | None) -> float | None:
    """Seconds of a duration such as 20m; also 0."""
    return 0.0 if text is not None and not text.strip("0s") else duration_seconds(option, text)


def handle_of(text: str) -> "AcquireReplaces":
    """ID and fencing token of ID:TOKEN."""
    from slipway_client.leases.terms import parse_handle

    with as_usage():
        return parse_handle(text)


def ago(option: str, text: str | None) -> str | None:
    """Time before now by the duration of an option, as a query parameter; None if it is not given."""
    with as_usage(option):
        return None if text is None else (now() - timedelta(seconds=moments.seconds(text))).isoformat()


def roll_out(replace: Strategy | None, drain_for: str | None, terminate: bool) -> dict[str, Parameter]:
    """Query parameters of a request that may replace revisions; None for what is not given."""
    return {
        "replace": replace and replace.value,
        "drain_seconds": duration_seconds("--drain-for", drain_for),
        "terminate": terminate or None,
    }


def configs(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Complete the name of a launch config."""
    return [(id_, about) for id_, about in revisions(context, incomplete) if "@" not in id_]


def sources(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Complete a source of demand of the pool given before."""
    pool = context.params.get("pool") or ""
    complete = _completion(
        "provisioner", "/demand", lambda row: row.state, lambda row: [row.source], limit=PAGE_ITEMS, pool=pool
    )
    return complete(context, incomplete)


class _Listed(msgspec.Struct):
    """Fields by which the items of lists are known and described."""

    id: str = ""
    name: str = ""
    source: str = ""
    pool_id: str = ""
    state: str = ""
    provider: str = ""
    serving: int = 0
    held: int = 0
    limit: int = 0

    @property
    def ids(self) -> list[str]:
        """IDs by which it is known: several revisions have the name of their launch config."""
        return [self.id, self.name] if self.name else [self.id]


def _completion(
    service: str,
    path: str,
    about: Callable[[_Listed], str],
    ids: Callable[[_Listed], list[str]] = lambda row: row.ids,
    limit: int | None = None,
    **parameters: Parameter,
) -> Complete:
    def complete(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
        given = context.find_root().params
        urls, file = {service: given[service.replace("-", "_")]}, given["token_file"]
        api = Api(urls, given["token"], token_file=file and Path(file), timeout_seconds=COMPLETION_SECONDS)
        try:
            rows = api.items(_Listed, service, path, limit=limit, **parameters)
            return list({id_: about(row) for row in reversed(rows) for id_ in ids(row)}.items())[::-1]
        except (Failed, ValueError):
            return []

    return complete


pools: Final = _completion("provisioner", "/pools", lambda row: f"{row.serving} serving")
revisions: Final = _completion("provisioner", "/launch-configs", lambda row: f"{row.pool_id}, {row.state}")
"""Names and revisions of launch configs."""
workers: Final = _completion("provisioner", "/workers", lambda row: f"{row.pool_id}, {row.state}", limit=PAGE_ITEMS)
accounts: Final = _completion("provisioner", "/accounts", lambda row: f"{row.provider}, {row.serving} serving")
lease_pools: Final = _completion("lease-broker", "/lease-pools", lambda row: f"{row.held} of {row.limit} held")


def _reason(text: str) -> str:
    if not text.strip():
        raise typer.BadParameter("it is empty; say why, for those who read the record later")
    return text


AsOutput = Annotated[Output, typer.Option("-o", "--output", help="Output format")]
Limit = Annotated[int, typer.Option("-n", "--limit", metavar="N", min=1, help="Maximum number of rows")]
PoolId = Annotated[str, typer.Argument(metavar="POOL", help="ID of the worker pool", autocompletion=pools)]
ConfigName = Annotated[str, typer.Argument(metavar="CONFIG", help="Name of the launch config", autocompletion=configs)]
ConfigId = Annotated[
    str,
    typer.Argument(metavar="CONFIG", help="Name of the launch config, or NAME@HASH", autocompletion=revisions),
]
WorkerId = Annotated[
    str, typer.Argument(metavar="WORKER", help="ID of the worker, or its last 8 digits", autocompletion=workers)
]
OfPool = Annotated[
    str | None, typer.Option("--pool", metavar="POOL", help="Worker pool [default: all]", autocompletion=pools)
]
Pool = Annotated[str, typer.Option("--pool", metavar="POOL", help="Lease pool", autocompletion=lease_pools)]
OfLeasePool = Annotated[
    str | None, typer.Option("--pool", metavar="POOL", help="Lease pool [default: all]", autocompletion=lease_pools)
]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Reason, recorded with the change", callback=_reason)]
OptionalReason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Reason, recorded with the change [default: none]")
]
For = Annotated[
    str | None, typer.Option("--for", metavar="DURATION", help="Duration, such as 30m or 1d12h [default: no end]")
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="End, such as 17:30 or 2026-08-01T17:30 [default: none]")
]
Replace = Annotated[
    Strategy | None,
    typer.Option("--replace", help="Replacement of changed revisions [default: natural]"),
]
DrainFor = Annotated[
    str | None,
    typer.Option("--drain-for", metavar="DURATION", help="Time limit of drains, such as 2h [default: the pool's]"),
]
Terminate = Annotated[bool, typer.Option("--terminate", help="Termination of workers left at the end of a drain")]
