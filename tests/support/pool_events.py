"""Events of worker pools for tests."""

from typing import Any

from slipway_api.events.pool import PoolRolledBack


def rolled_back(**changes: Any) -> PoolRolledBack:
    """Rollback of the pool linux to revision 7."""
    usual: dict[str, Any] = {
        "pool_id": "linux",
        "min_capacity": 0,
        "max_capacity": 9,
        "scaling_ratio": "1",
        "mode": "enforce",
        "paused": False,
        "frozen": False,
        "revision": 9,
        "to_revision": 7,
        "reason": "it does not boot",
        "by": "me",
    }
    return PoolRolledBack(**usual | changes)
