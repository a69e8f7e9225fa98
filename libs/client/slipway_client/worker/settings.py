"""How long a worker stays and waits, as its launch config says. Pure: user_data.py reads them."""

from typing import Annotated

import msgspec

Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What of the launch config's settings is for the worker; others are for the provider or the agent."""

    tasks_per_worker: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Leave after this many tasks; none: any number."""
    heartbeat_seconds: Seconds = 60.0
    """Between two signs of life during a task."""
    poll_seconds: Seconds = 30.0
    """Between two questions whether to leave, while idle."""
    stop_seconds: Seconds = 60.0
    """What a task, or an agent, gets to end once it was asked to."""
    idle_exit_seconds: Seconds | None = None
    """Leave after this long without a task; none: stay until told to leave."""
    give_up_seconds: Seconds = 900.0
    """Leave once the provisioner has been silent for this long."""
