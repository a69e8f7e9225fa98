"""Worker settings of a launch config. Pure: user_data.py reads them."""

from typing import Annotated

import msgspec

from slipway_api.limits import Name

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that the worker itself uses; other settings of a launch config are for the provider or the agent."""

    tasks_per_worker: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Tasks after which the worker leaves; None: no limit."""
    heartbeat_seconds: Seconds = 60.0
    """Interval between heartbeats during a task."""
    poll_seconds: Seconds = 30.0
    """Interval between polls on whether to leave, while idle."""
    stop_seconds: Seconds = 60.0
    """Graceful shutdown period of a task or an agent."""
    idle_exit_seconds: Seconds | None = None
    """Idle time after which the worker leaves; None: stay until the provisioner asks it to leave."""
    source: Name = ""
    """Source of the demand reports that count the agent's jobs; empty: the only one of the pool."""
    give_up_seconds: Seconds = 900.0
    """Time without an answer from the provisioner after which the worker leaves."""
