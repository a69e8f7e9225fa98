"""Options and values shared by `slipway lease` commands."""

from typing import TYPE_CHECKING, Annotated

import typer

from slipway_client.cli.options import as_usage, duration_seconds, lease_pools

if TYPE_CHECKING:
    from slipway_api.http.lease_broker import AcquireReplaces

Pool = Annotated[str, typer.Option("--pool", metavar="POOL", help="Lease pool", autocompletion=lease_pools)]


def duration_or_zero(option: str, text: str | None) -> float | None:
    """Seconds of a duration such as 20m; also 0."""
    return 0.0 if text is not None and not text.strip("0s") else duration_seconds(option, text)


def handle_of(text: str) -> "AcquireReplaces":
    """ID and fencing token of ID:TOKEN."""
    from slipway_client.leases.terms import parse_handle

    with as_usage():
        return parse_handle(text)
