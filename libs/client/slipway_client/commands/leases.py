"""`slipway lease`."""

import re
from typing import Final

import typer

from slipway_client import moments
from slipway_client.commands.pools import waits
from slipway_client.options import AsOutput, OfLeasePool, noun, now
from slipway_client.tables import Field, Output, short, show

app = noun("Leases: admission to accounts.")

UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def _clock(field: str) -> Field:
    """A column of times."""
    heading = field.removesuffix("_at").replace("_", " ")
    return heading, lambda row: moments.clock(moments.at(row[field]), now()) if row.get(field) else None


LEASES: Final[tuple[Field, ...]] = (
    ("id", lambda row: short(row["id"])),
    ("pool", lambda row: row["lease_pool_id"]),
    "state",
    "units",
    ("token", lambda row: row["fencing_token"]),
    _clock("granted_at"),
    _clock("expires_at"),
    _clock("hold_until"),
)
POOLS: Final[tuple[Field, ...]] = (
    "id",
    "limit",
    "held",
    "waiting",
    ("wait", waits),
    ("starts/min", lambda row: row.get("granted_per_minute")),
    ("ETA", lambda row: None if row.get("eta_seconds") is None else moments.about(row["eta_seconds"])),
    ("why", lambda row: UUID.sub(lambda id_: short(id_[0]), (row.get("why") or "").rpartition("\n")[2])),
)


@app.command("ls")
def list_leases(context: typer.Context, pool: OfLeasePool = None, output: AsOutput = Output.TABLE) -> None:
    """List leases that count against the limit of a lease pool.

    \b
    Example:
      slipway lease ls --pool sim-a
    """
    show(context.obj.get("lease-broker", "/leases", pool=pool)["items"], LEASES, output, nothing="no leases")


@app.command("pools")
def list_lease_pools(context: typer.Context, output: AsOutput = Output.TABLE) -> None:
    """List lease pools: units held and waiting against the limit, and how long one asked for now would wait (ETA).

    \b
    Example:
      slipway lease pools
    """
    show(context.obj.get("lease-broker", "/lease-pools")["items"], POOLS, output, nothing="no lease pools")
