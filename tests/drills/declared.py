"""Declarations of drills: accounts of simulated clouds with their lease pools, and worker pools with one launch config
an account."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from slipway_common.declaration.models import Declaration

REGION = "sim-1"


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """An account with an entry of the operator, and the terms of its lease pool in product seconds."""

    entry: str = "default"
    limit: int = 100
    honours_tokens: bool = False
    ttl_seconds: float = 300.0
    reserve_seconds: float = 180.0
    hold_seconds: float = 1200.0


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A worker pool whose machines do `tasks_per_worker` tasks each. Deadlines are in product seconds."""

    accounts: Sequence[str]
    max_capacity: int = 50
    min_capacity: int = 0
    image: str = "good"
    tasks_per_worker: int = 1
    profile: str = "on-demand"
    deadlines: Mapping[str, float] = {}


def declaration(speed: float, accounts: Mapping[str, Account], pools: Mapping[str, Pool]) -> Declaration:
    """The declaration of accounts and pools, with durations divided by the speed."""
    return Declaration.model_validate(
        {
            "version": 1,
            "lease_pools": [_lease_pool(name, account, speed) for name, account in accounts.items()],
            "accounts": [_account(name, account) for name, account in accounts.items()],
            "worker_pools": [_worker_pool(name, pool, speed) for name, pool in pools.items()],
        }
    )


def _lease_pool(name: str, account: Account, speed: float) -> dict[str, Any]:
    return {
        "id": name,
        "limit": account.limit,
        "hold_seconds": account.hold_seconds / speed,
        "ttl_seconds": account.ttl_seconds / speed,
        "reserve_seconds": account.reserve_seconds / speed,
        "pacing": "off",
    }


def _account(name: str, account: Account) -> dict[str, Any]:
    return {
        "id": name,
        "provider": "simulated",
        "region": REGION,
        "credential": "none",
        "identity": name,
        "lease_pool": name,
        "settings": {"entry": account.entry, "honours_tokens": account.honours_tokens},
    }


def _worker_pool(name: str, pool: Pool, speed: float) -> dict[str, Any]:
    return {
        "id": name,
        "min_capacity": pool.min_capacity,
        "max_capacity": pool.max_capacity,
        "profile": pool.profile,
        "deadlines": {name: seconds / speed for name, seconds in pool.deadlines.items()},
        "launch_configs": [
            {
                "name": f"{name}-{account}",
                "account": account,
                "zone": f"zone-{account}",
                "instance_type": "m5",
                "image": pool.image,
                "settings": {"tasks_per_worker": pool.tasks_per_worker},
            }
            for account in pool.accounts
        ],
    }
