"""Identity of declared entries: names and bodies of launch configs, duplicate ids, and references between entries."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from slipway_common.declaration.fields import ID_CHARACTERS_MAX, ID_PATTERN
from slipway_common.declaration.models import Declaration, LaunchConfig, WorkerPool
from slipway_common.declaration.strict_yaml import Path, path_text

BODY: Final = {"account", "zone", "instance_type", "image", "settings"}


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Ids that other declarations of the deployment have declared."""

    lease_pools: frozenset[str] = frozenset()
    accounts: frozenset[str] = frozenset()


def config_name(pool: WorkerPool, config: LaunchConfig) -> str:
    """Declared name of a launch config, or the one made of its place, which a change of the image keeps."""
    return config.name or "/".join((pool.id, config.account, config.zone, config.instance_type))


def canonical_body(config: LaunchConfig, region: str) -> bytes:
    """Immutable part of a launch config in the region of its account, as sorted JSON. Its hash names the revision.

    Weights are excluded, so tuning them keeps the revision.
    """
    body = config.model_dump(mode="json", include=BODY) | {"region": region}
    return msgspec.json.encode(body, order="sorted")


def inconsistencies(declared: Declaration, known: Known | None = None) -> Iterator[tuple[Path, str]]:
    """Errors across entries: duplicate ids and unknown references.

    References to entries that are not declared here are checked against the `known` ones. Without them, only
    references to a section that is declared here are checked.
    """
    for name in ("lease_pools", "accounts", "worker_pools"):
        entries = getattr(declared, name) or ()
        yield from _repeated(((name, place, "id"), entry.id) for place, entry in enumerate(entries))
    pools = declared.worker_pools or ()
    yield from _repeated(
        (("worker_pools", place, "launch_configs", number, "name"), config_name(pool, config))
        for place, pool in enumerate(pools)
        for number, config in enumerate(pool.launch_configs)
    )
    for place, pool in enumerate(pools):
        for number, config in enumerate(pool.launch_configs):
            if problem := name_problem(pool, config):
                yield ("worker_pools", place, "launch_configs", number, "name"), problem
    lease_pools, accounts = declared.lease_pools, declared.accounts
    if lease_pools is not None or known is not None:
        ids = {entry.id for entry in lease_pools or ()} | (known.lease_pools if known is not None else set())
        for place, account in enumerate(accounts or ()):
            if account.lease_pool not in ids:
                yield ("accounts", place, "lease_pool"), _unknown("lease pool", account.lease_pool, ids)
    if accounts is not None or known is not None:
        ids = {account.id for account in accounts or ()} | (known.accounts if known is not None else set())
        for place, pool in enumerate(pools):
            for number, config in enumerate(pool.launch_configs):
                if config.account not in ids:
                    path = ("worker_pools", place, "launch_configs", number, "account")
                    yield path, _unknown("account", config.account, ids)


def name_problem(pool: WorkerPool, config: LaunchConfig) -> str:
    """Problem of a name that is made of the config's place; empty if it is a valid id."""
    name = config_name(pool, config)
    if config.name is not None or (re.fullmatch(ID_PATTERN, name) and len(name) <= ID_CHARACTERS_MAX):
        return ""
    return f"{name!r}, made of the config's place, is not a valid name; write one"


def _repeated(ids: Iterable[tuple[Path, str]]) -> Iterator[tuple[Path, str]]:
    first: dict[str, Path] = {}
    for path, id_ in ids:
        if (before := first.setdefault(id_, path)) != path:
            yield path, f"{id_!r} is already used by {path_text(before[:-1])}"


def _unknown(kind: str, id_: str, known: Iterable[str]) -> str:
    return f"no {kind} {id_!r} is declared; declared: {', '.join(sorted(known)[:10]) or 'none'}"
