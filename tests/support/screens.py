"""Rows of a screen, as recorded; fields that a test does not give are as of something that nothing has happened to."""

from typing import Any, Final

import msgspec

from slipway_api.http import lease_pools
from slipway_api.http.provisioner import pools
from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_api.http.provisioner.pools import LaunchStop
from slipway_api.http.service import ListedAlert
from slipway_client.view.snapshot import Config, LeasePool, Pool
from slipway_common.base.revisions import hash_of, name_of
from tests.support.recorded import LISTED_ALERT, OF_TYPE, changed

_POOL: Final[dict[str, Any]] = {
    "max_capacity": 0,
    "pending": 0,
    "claimed": 0,
    "serving": 0,
    "running": 0,
    "wanted": None,
    "needed": None,
    "backlog_seconds": None,
}
_CONFIG: Final[dict[str, Any]] = {
    "account_id": "",
    "zone": "",
    "state": "active",
    "state_reason": "",
    "health_state": "healthy",
    "weight": None,
    "stages": {},
    "launched": 0,
    "booted": 0,
    "failed": 0,
    "starting": 0,
    "running": 0,
    "live": 0,
    "next_probe_at": None,
    "reason": None,
    "tripped_by": None,
    "current": True,
    "replaced_by": "",
    "proven": True,
    "succeeded_starts": 0,
    "needed_starts": 0,
    "share": 1.0,
    "drain_until": None,
    "drain_terminate": False,
}
_LEASE_POOL: Final[dict[str, Any]] = {
    "limit_in_force": None,
    "held": 0,
    "waiting": 0,
    "requests": 0,
    "granted_per_minute": 0,
    "oldest_wait_seconds": None,
    "eta_seconds": None,
}
_LAUNCH_STOP: Final[dict[str, Any]] = {"scope_id": "", "by": "me", "until": None}


def pool(**fields: Any) -> Pool:
    return msgspec.convert(changed(OF_TYPE[pools.Pool], **_POOL | fields), Pool)


def config(**fields: Any) -> Config:
    named = {"name": name_of(fields["id"]), "revision": hash_of(fields["id"])}
    return msgspec.convert(changed(OF_TYPE[LaunchConfig], **_CONFIG | named | fields), Config)


def lease_pool(**fields: Any) -> LeasePool:
    return msgspec.convert(changed(OF_TYPE[lease_pools.LeasePool], **_LEASE_POOL | fields), LeasePool)


def launch_stop(**fields: Any) -> LaunchStop:
    return msgspec.convert(changed(OF_TYPE[LaunchStop], **_LAUNCH_STOP | fields), LaunchStop)


def alert(**fields: Any) -> ListedAlert:
    return msgspec.convert(changed(LISTED_ALERT, **fields), ListedAlert)
