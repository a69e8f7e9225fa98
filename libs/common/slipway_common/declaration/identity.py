"""Identity of declared entries: ids of launch configs, duplicate ids, and references between entries."""

from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from slipway_common.base.ids import stable_id
from slipway_common.declaration.models import Declaration, LaunchConfig, WorkerPool
from slipway_common.declaration.strict_yaml import Path, path_text

BODY: Final = {"account", "zone", "instance_type", "image", "settings"}


def config_id(pool: WorkerPool, config: LaunchConfig) -> str:
    """Declared id, or a hash of the pool and the body."""
    return config.id if config.id is not None else stable_id(pool.id, canonical_body(config))


def canonical_body(config: LaunchConfig) -> bytes:
    """Immutable part of a launch config as sorted JSON. Weights are excluded, so tuning them keeps the history."""
    return msgspec.json.encode(config.model_dump(mode="json", include=BODY), order="sorted")


def inconsistencies(declared: Declaration) -> Iterator[tuple[Path, str]]:
    """Errors across entries: duplicate ids and unknown references."""
    for name in ("lease_pools", "accounts", "worker_pools"):
        yield from _repeated(((name, place, "id"), entry.id) for place, entry in enumerate(getattr(declared, name)))
    yield from _repeated(
        (("worker_pools", place, "launch_configs", number, "id"), config_id(pool, config))
        for place, pool in enumerate(declared.worker_pools)
        for number, config in enumerate(pool.launch_configs)
    )
    lease_pools = {pool.id for pool in declared.lease_pools}
    for place, account in enumerate(declared.accounts):
        if account.lease_pool not in lease_pools:
            yield ("accounts", place, "lease_pool"), _unknown("lease pool", account.lease_pool, lease_pools)
    accounts = {account.id for account in declared.accounts}
    for place, pool in enumerate(declared.worker_pools):
        for number, config in enumerate(pool.launch_configs):
            if config.account not in accounts:
                path = ("worker_pools", place, "launch_configs", number, "account")
                yield path, _unknown("account", config.account, accounts)


def _repeated(ids: Iterable[tuple[Path, str]]) -> Iterator[tuple[Path, str]]:
    first: dict[str, Path] = {}
    for path, id_ in ids:
        if (before := first.setdefault(id_, path)) != path:
            yield path, f"{id_!r} is already used by {path_text(before[:-1])}"


def _unknown(kind: str, id_: str, known: set[str]) -> str:
    return f"no {kind} {id_!r} is declared; declared: {', '.join(sorted(known)[:10]) or 'none'}"
