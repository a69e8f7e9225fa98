"""Pacing of launches by the API of their provider: written by `slipway apply` into lease pools that declare none."""

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import Any, Final

import msgspec

from slipway_api.http.lease_pools import LeasePace, LeasePool

Spec = dict[str, Any]
"""Declaration of a lease pool."""
OPERATION: Final = "launch"
"""Operation of the leases of the provisioner's launches."""


class Launches(msgspec.Struct, frozen=True):
    """Launches of an account: admitted by a lease pool, made by a provider."""

    account: str
    lease_pool: str
    provider: str


class Rate(msgspec.Struct, frozen=True):
    """Rate of launches that a lease pool admits, and the account that has it."""

    per_second: float
    launches: Launches

    @property
    def pacing(self) -> LeasePace:
        return LeasePace(interval_seconds=1 / self.per_second)

    def __str__(self) -> str:
        return (
            f"provider {self.launches.provider} of account {self.launches.account}, {60 * self.per_second:g} a minute"
        )


def unpaced(pools: Iterable[Spec]) -> dict[str, Spec]:
    """Lease pools, by id, that declare no pacing that applies to launches."""
    return {
        pool["id"]: pool
        for pool in pools
        if pool["pacing"] is None and (pool["operations"].get(OPERATION) or {}).get("pacing") is None
    }


def own_pacing(pool: LeasePool) -> LeasePace | str | None:
    """Pacing of launches in a lease pool; None if it has that of the pool."""
    operation = pool.operations.get(OPERATION)
    return None if operation is None else operation.pacing


def slowest(launches: Iterable[Launches], per_second: Mapping[str, float | None]) -> dict[str, Rate]:
    """Launch rate of each lease pool, from those of the providers. Where several accounts share a lease pool, the
    slowest provider counts: any of them may launch all of its units."""
    rates: dict[str, Rate] = {}
    for each in launches:
        if rate := per_second.get(each.provider):
            rates[each.lease_pool] = min(
                rates.get(each.lease_pool, Rate(inf, each)), Rate(rate, each), key=lambda of: of.per_second
            )
    return rates


def pace_launches(pools: Mapping[str, Spec], rates: Mapping[str, Rate]) -> dict[str, str]:
    """Write launch rates into `pools`; returns a sentence for each of these."""
    paced = {id_: rate for id_, rate in sorted(rates.items()) if id_ in pools}
    for id_, rate in paced.items():
        write_pacing(pools[id_], rate.pacing)
    return {id_: f"lease pool {id_}: launches are paced by {rate}" for id_, rate in paced.items()}


def write_pacing(pool: Spec, pacing: LeasePace | str) -> None:
    """Write the pacing of launches into a declared lease pool."""
    pool["operations"] = pool["operations"] | {
        OPERATION: {**pool["operations"].get(OPERATION, {}), "pacing": msgspec.to_builtins(pacing)}
    }


def hints(rows: Iterable[LeasePool], rates: Mapping[str, Rate]) -> Iterator[str]:
    """Yield a hint for each lease pool, declared elsewhere, whose launches are not paced by their provider."""
    paces = {row.id for row in rows if not row.archived and row.pacing is None and own_pacing(row) is None}
    for id_ in sorted(paces & rates.keys()):
        interval = f"{rates[id_].pacing.interval_seconds:g}s"
        yield (
            f"lease pool {id_} paces launches by its default, not by {rates[id_]}: apply its declaration again, or "
            f"`slipway lease set {id_} --pacing {interval} --operation {OPERATION} --reason …`"
        )
