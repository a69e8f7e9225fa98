"""Pages of single pools, configs, workers, lease pools and leases, read from the services."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from slipway_api.http.lease_broker import Lease
from slipway_api.http.provisioner.launch_configs import LaunchConfig, LaunchConfigDetails
from slipway_api.http.provisioner.workers import Worker, WorkerDetails, WorkerLease
from slipway_client.cli.commands import configs, lease_held, workers
from slipway_client.cli.commands.why import Kind, explanation
from slipway_client.cli.options import now
from slipway_client.cli.tables import Field, cells
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import Api, path
from slipway_client.view.navigation import Place
from slipway_client.view.pages import Item, Listing, Page
from slipway_client.view.phrases import is_tripped, own_cause

T = TypeVar("T", LaunchConfig, Worker, WorkerLease, Lease)
ANSWER_SECONDS: Final = 5.0
KINDS: Final = frozenset(Kind)
LISTED: Final = 200  # newest workers, oldest leases
CONFIG: Final[tuple[Field[LaunchConfig], ...]] = (
    "id",
    ("state", configs.state),
    ("health", lambda row: row.health_state),
    ("reason", lambda row: own_cause(row.reason) if is_tripped(row) else row.state_reason or ""),
)
LEASE: Final[tuple[Field[WorkerLease], ...]] = ("id", "state", "units", "expires_at")


async def read(api: Api, place: Place) -> Page:
    """The page of a place that services explain; what they refuse is its text."""
    return await asyncio.to_thread(_read, api.within(ANSWER_SECONDS), place)


def _read(api: Api, place: Place) -> Page:
    try:
        explained = explanation(api, place.id, Kind(place.kind))
        listings = LISTINGS[place.kind](api, place.id) if place.kind in LISTINGS else ()
    except Failed as error:
        return Page(str(error).splitlines())
    return Page(explained.sentences(now()), listings)


def _of_pool(api: Api, id_: str) -> Sequence[Listing]:
    rows = api.items(LaunchConfig, "provisioner", "/launch-configs")
    shown = [row for row in rows if row.pool_id == id_ and row.state != "archived"]
    return _listing("config", shown, CONFIG, "no launch configs"), _workers(api, id_)


def _of_config(api: Api, id_: str) -> Sequence[Listing]:
    pool_id = api.get(LaunchConfigDetails, "provisioner", path("launch-configs", id_)).pool_id
    return (_workers(api, pool_id, id_),)


def _workers(api: Api, pool_id: str, config_id: str | None = None) -> Listing:
    rows = api.items(Worker, "provisioner", "/workers", pool=pool_id, config=config_id, limit=LISTED)
    return _listing("worker", rows, workers.FIELDS, "no workers", ("pool", "instance", "launch config", "age"))


def _of_worker(api: Api, id_: str) -> Sequence[Listing]:
    lease = api.get(WorkerDetails, "provisioner", path("workers", id_)).lease
    return (_listing("lease", [lease] if lease else [], LEASE, "no lease"),)


def _of_lease_pool(api: Api, id_: str) -> Sequence[Listing]:
    rows = api.items(Lease, "lease-broker", "/leases", pool=id_, limit=LISTED)
    drop = ("pool", "token", "granted", "operation", "tenant")
    return (_listing("lease", rows, lease_held.LEASES, "no leases", drop),)


def _listing(kind: str, rows: Sequence[T], fields: Sequence[Field[T]], empty: str, drop: Sequence[str] = ()) -> Listing:
    headings, texts = cells(rows, fields)
    items = [Item(Place(kind, row.id), text) for row, text in zip(rows, texts, strict=True)]
    return Listing([heading.upper() for heading in headings], items, empty, [heading.upper() for heading in drop])


LISTINGS: Final[Mapping[str, Callable[[Api, str], Sequence[Listing]]]] = {
    "pool": _of_pool,
    "config": _of_config,
    "worker": _of_worker,
    "lease-pool": _of_lease_pool,
}
