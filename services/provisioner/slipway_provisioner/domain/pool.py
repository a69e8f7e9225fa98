"""What a planner sees of a pool: its limits, its demand, its fleet, and its ways to launch. Values only."""

from collections.abc import Sequence
from datetime import datetime
from fractions import Fraction

import msgspec


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and switches of one worker pool. `drawn` counts the launches ever chosen: it places the next draw.

    `on_bad_image` is probe or freeze, after `freeze_after` unconfirmed starts.
    """

    id: str
    min_capacity: int
    max_capacity: int
    scaling_ratio: Fraction
    mode: str = "enforce"
    paused: bool = False
    frozen: bool = False
    frozen_reason: str = ""
    deleted: bool = False
    drawn: int = 0
    on_bad_image: str = "probe"
    freeze_after: int = 10


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """The newest report of one source. `gone` are the tasks of it that ended, or will not go on, since it was taken.

    `fresh_seconds`: it counts as stale after so long.
    """

    source: str
    pending: int
    claimed: int
    gone: int
    stale: bool
    fresh_seconds: float = 0.0
    traceparent: str = ""


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Workers by what they count as. `serving` = requested … running and not told to leave."""

    serving: int
    leaving: int


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that waits for admission, perhaps as a probe."""

    worker_id: str
    config_id: str
    permit: int | None = None


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """A running worker without a task since `since`."""

    worker_id: str
    since: datetime


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of one config: what is under way, and how many failures the weight has not taken in yet.

    Without a `window` the stage is not judged.
    """

    in_flight: int = 0
    failures: int = 0
    folded: int = 0
    window: int | None

    @property
    def unfolded(self) -> int:
        return max(0, self.failures - self.folded)


Share = tuple[str, str]
"""Key and stage of what configs share, of one pool or of many: an image revision's boots, a quota's launches."""


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a share, over all configs that have it. While it is closed each of them is.

    `in_flight` is under way, `unfolded` failed without a weight that has taken it in. Without a `window` the share
    bounds nothing: it is only open or closed. `unconfirmed` starts failed or are late since the last success, and
    `forgiven` were so when somebody unfroze the pool.
    """

    key: str
    stage: str
    in_flight: int = 0
    unfolded: int = 0
    window: int | None = None
    closed: bool = False
    reason: str = ""
    unconfirmed: int = 0
    forgiven: int = 0

    @property
    def share(self) -> Share:
        return self.key, self.stage


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """One way to launch, with what is known of it. `permit` is the newest probe permit if nobody has spent it,
    `last_permit` the newest one in any case. `reason` says in words what its record holds of it."""

    id: str
    account_id: str
    lease_pool_id: str
    image_revision: str
    active: bool
    stopped: str = ""  # why no launch may start in its account; empty: it may
    weight: float
    prior_weight: float  # its weight if nothing were known of its health
    closed: bool = False
    reason: str = ""
    permit: int | None = None
    last_permit: int | None = None
    launch: Stage
    boot: Stage
    claim: Stage
    shares: Sequence[Share] = ()


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that one decision may look at, read under the pool's lock."""

    pool: Pool
    demands: Sequence[Demand]
    fleet: Fleet
    configs: Sequence[Config]
    shared: Sequence[Shared] = ()
    waiting: Sequence[Waiting] = ()  # oldest first
    idle: Sequence[Idle] = ()  # longest idle first
    idle_timeout_seconds: float
    calculator_silent_seconds: float = 0.0  # beyond the time after which it counts as silent
    silent_half_life_seconds: float = 600.0  # of the belief in what it has said last
    attempt_in_seconds: float = 0.0  # with a silent calculator: until the pool's next attempt of one per 30 s
    stopped: str = ""  # why nothing may launch in this pool, by an operator's brake
