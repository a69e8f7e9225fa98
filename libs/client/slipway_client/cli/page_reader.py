"""Pages of single pools, configs, workers, lease pools and leases, read from the services."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from slipway_client.cli.commands import configs, lease_held, workers
from slipway_client.cli.commands.why import Kind, explanation
from slipway_client.cli.options import now
from slipway_client.cli.tables import Field, cells
from slipway_client.transport.http import Api, Failed, path
from slipway_client.view.navigation import Place
from slipway_client.view.pages import Item, Listing, Page
from slipway_client.view.phrases import is_tripped, own_cause

ANSWER_SECONDS: Final = 5.0
KINDS: Final = frozenset(Kind)
LISTED: Final = 200  # newest workers, oldest leases
CONFIG: Final[tuple[Field, ...]] = (
    "id",
    ("state", configs.state),
    ("health", lambda row: row["health_state"]),
    ("reason", lambda row: own_cause(row["reason"]) if is_tripped(row) else row["state_reason"] or ""),
)
LEASE: Final[tuple[Field, ...]] = ("id", "state", "units", "expires_at")


async def read(api: Api, place: Place) -> Page:
    """The page of a place that services explain; what they refuse is its text."""
    return await asyncio.to_thread(_read, api.within(ANSWER_SECONDS), place)


def _read(api: Api, place: Place) -> Page:
    try:
        explained = explanation(api, place.id, Kind(place.kind))
        listings = LISTINGS[place.kind](api, place.id) if place.kind in LISTINGS else ()
    except Failed as error:
        return Page(str(error).splitlines())
    except (KeyError, TypeError) as error:
        return Page([f"The answers are not from services of this version: {error!r}"])
    return Page(explained.sentences(now()), listings)


def _of_pool(api: Api, id_: str) -> Sequence[Listing]:
    rows = api.get("provisioner", "/launch-configs")["items"]
    shown = [row for row in rows if row["pool_id"] == id_ and row["state"] != "archived"]
    return _listing("config", shown, CONFIG, "no launch configs"), _workers(api, id_)


def _of_config(api: Api, id_: str) -> Sequence[Listing]:
    pool_id = api.get("provisioner", path("launch-configs", id_))["pool_id"]
    return (_workers(api, pool_id, id_),)


def _workers(api: Api, pool_id: str, config_id: str = "") -> Listing:
    rows = api.get("provisioner", "/workers", pool=pool_id, limit=LISTED)["items"]
    shown = [row for row in rows if config_id in ("", row["launch_config_id"])]
    return _listing("worker", shown, workers.FIELDS, "no workers", drop=("pool", "instance", "launch config", "age"))


def _of_worker(api: Api, id_: str) -> Sequence[Listing]:
    lease = api.get("provisioner", path("workers", id_)).get("lease")
    return (_listing("lease", [lease] if lease else [], LEASE, "no lease"),)


def _of_lease_pool(api: Api, id_: str) -> Sequence[Listing]:
    rows = api.get("lease-broker", "/leases", pool=id_, limit=LISTED)["items"]
    drop = ("pool", "token", "granted", "operation", "tenant")
    return (_listing("lease", rows, lease_held.LEASES, "no leases", id_field="lease_id", drop=drop),)


def _listing(
    kind: str,
    rows: Sequence[Mapping[str, Any]],
    fields: Sequence[Field],
    nothing: str,
    *,
    id_field: str = "id",
    drop: Sequence[str] = (),
) -> Listing:
    headings, texts = cells(rows, fields)
    items = [Item(Place(kind, row[id_field]), text) for row, text in zip(rows, texts, strict=True)]
    return Listing([heading.upper() for heading in headings], items, nothing, [heading.upper() for heading in drop])


LISTINGS: Final[Mapping[str, Callable[[Api, str], Sequence[Listing]]]] = {
    "pool": _of_pool,
    "config": _of_config,
    "worker": _of_worker,
    "lease-pool": _of_lease_pool,
}
