"""Input of a planning decision: a pool's limits, demand, fleet and launch configs. Values only."""

from collections.abc import Sequence
from datetime import datetime
from fractions import Fraction
from typing import Final

import msgspec

from slipway_api.events.scopes import Key, image_key
from slipway_provisioner.domain.ageing import Life
from slipway_provisioner.domain.limits import Level, Tariff
from slipway_provisioner.domain.prices import MachineKind
from slipway_provisioner.domain.surplus import Surplus


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and switches of one worker pool. `drawn` counts all launches ever drawn and positions the next draw.

    `on_bad_image` is `probe`, or `freeze` after `freeze_after` consecutive unconfirmed starts.
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
    age_alerted: bool = False
    on_bad_image: str = "probe"
    freeze_after: int = 10


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """Newest report of one source. `gone`: its tasks that have ended, or run on leaving workers, since the sample.

    `fresh_seconds`: time until the report is stale.
    """

    source: str
    pending: int
    claimed: int
    gone: int
    stale: bool
    fresh_seconds: float = 0.0
    traceparent: str = ""


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Number of serving and of leaving workers, by the sets of `lifecycle`. `stuck`: leaving ones that cannot be
    terminated, but for those of an account that refuses to terminate its instances. `stranded`: leaving ones of probes
    that have never registered, whose termination was refused."""

    serving: int
    leaving: int
    stuck: int = 0
    stranded: int = 0


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A worker that waits for admission, or is admitted and its revision drains; `permit` is set if it is a probe."""

    worker_id: str
    config_id: str
    permit: int | None = None


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """A running worker without a task, for as long as it has been since `since`. Downtime is left out: no report
    could be received then. One that is not wanted is stopped after `timeout_seconds`, by default that of the decision.
    """

    worker_id: str
    config_id: str
    since: datetime
    timeout_seconds: float | None = None

    def left_seconds(self, now: datetime, timeout_seconds: float) -> float:
        """Time until it may be stopped if it is not wanted, by its own timeout or the given one; negative then."""
        allowed = timeout_seconds if self.timeout_seconds is None else self.timeout_seconds
        return allowed - (now - self.since).total_seconds()


class Busy(msgspec.Struct, frozen=True, kw_only=True):
    """A running worker with a task. `draining`: it leaves after its task, since its revision drains or for its age.
    `marked`: it does so as surplus, unless the mark is cleared."""

    worker_id: str
    draining: bool = False
    marked: bool = False


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """One stage of one config: starts in flight, and failures not yet folded into the weight.

    A stage without a `window` is not limited.
    """

    in_flight: int = 0
    unfolded: int = 0
    window: int | None


MAXIMUM: Final = "maximum"
TRIAL: Final = "half for new revisions"
Share = tuple[Key, str]
"""Key and stage shared by configs of one or many pools, such as an image revision's boots or a quota's launches."""


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """State of a share over all configs that use it. While it is tripped, each of them is.

    `in_flight`: starts in flight. `unfolded`: failures not yet folded into a weight. A share without a `window` limits
    nothing but can trip. `unconfirmed`: starts that failed or are overdue since the last success; `forgiven`: how many
    of them there were when the pool was last unfrozen. The pool has waited for it since `waiting_since`, for
    `waiting_units`; `others` wait too, `ahead` of them for longer, both counted up to what the window can hold.
    `rivals` are about to be planned, and may need it as well; they are known once its key is locked.
    """

    key: Key
    stage: str
    in_flight: int = 0
    unfolded: int = 0
    window: int | None = None
    tripped: bool = False
    reason: str = ""
    unconfirmed: int = 0
    forgiven: int = 0
    waiting_since: datetime | None = None
    waiting_units: int = 0
    others: int = 0
    ahead: int = 0
    rivals: int = 0

    @property
    def share(self) -> Share:
        return self.key, self.stage


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A revision of the launch config `name` with its weight and health. `state` is active, paused or draining, for
    `state_reason`. `current_id` is the revision that the name stands for; another active one is its fallback, replaced
    by the strategy `replaced_by`. `share` is its share of the name's launches. `live` of its workers exist; those of
    all revisions of the name are limited by `max_capacity`. `trials` limit one that has not proven itself.

    `permit` is the newest probe permit if it is unspent, `last_permit` the newest one in any case. `reason` is the text
    of its weight record. `task_slots`: tasks that a worker runs at once. `kind` is what its machines are billed by."""

    id: str
    name: str
    current_id: str
    account_id: str
    lease_pool_id: str
    image_revision: str
    state: str = "active"
    state_reason: str = ""
    replaced_by: str = ""
    share: float = 1.0
    drain_terminate: bool = False
    max_capacity: int | None = None
    task_slots: int = 1
    live: int = 0
    stopped: str = ""  # reason why nothing starts in its account; empty if there is none
    launch_stop: bool = False  # a person has stopped launches in its account, or retired it
    weight: float
    prior_weight: float  # the weight without evidence
    tripped: bool = False
    reason: str = ""
    permit: int | None = None
    last_permit: int | None = None
    launch: Stage
    boot: Stage
    claim: Stage
    shares: Sequence[Share] = ()
    trials: Sequence[Share] = ()
    kind: MachineKind = MachineKind("", "", "", "")
    caps: Sequence[Share] = ()  # safety limits that hold for it

    @property
    def limits(self) -> Sequence[Share]:
        """Its shares, those of its trial, its safety limits, and with a maximum the one of its launch config, for all
        its revisions."""
        limits = (*self.shares, *self.trials, *self.caps)
        return limits if self.max_capacity is None else (*limits, (Key("launch config", self.name), MAXIMUM))

    @property
    def image_key(self) -> Key:
        """Key of its image, by its shares."""
        return next((key for key, _ in self.shares if key.kind == "image"), image_key(self.image_revision))

    @property
    def starting(self) -> int:
        """Its workers that have not registered yet."""
        return self.launch.in_flight + self.boot.in_flight

    @property
    def is_fallback(self) -> bool:
        """True if it only launches what the current revisions do not."""
        return self.active and not self.current and self.replaced_by != "rolling"

    @property
    def active(self) -> bool:
        return self.state == "active"

    @property
    def current(self) -> bool:
        return self.id == self.current_id


class Observed(msgspec.Struct, frozen=True, kw_only=True):
    """Complete input of one decision, read under the pool's lock."""

    pool: Pool
    demands: Sequence[Demand]
    fleet: Fleet
    configs: Sequence[Config]
    shared: Sequence[Shared] = ()
    waiting: Sequence[Waiting] = ()  # oldest first
    idle: Sequence[Idle] = ()  # those of draining revisions first, then longest idle first
    lives: Sequence[Life] = ()  # workers that reach a maximum age
    busy: Sequence[Busy] = ()  # oldest first: the marked ones, and as many more as are surplus
    surplus: Surplus = Surplus()  # as of the last plan
    missing_since: datetime | None = None  # since when workers have been missing and none has registered
    short: bool = False  # the last plan launched too few, for a safety limit or a window of its own configs
    dirty_since: datetime | None = None
    registered: bool = False  # since the last plan, of workers that have ended also
    idle_timeout_seconds: float
    calculator_unavailable_seconds: float = 0.0  # 0 while it is available
    weight_half_life_seconds: float = 600.0  # of the influence of its last weights
    attempt_in_seconds: float = 0.0  # time until the pool's next attempt while the calculator is unavailable
    stopped: str = ""  # reason of a launch stop on the pool or on everything; empty if there is none
    levels: Sequence[Level] = ()  # of the safety limits of the pool and of its accounts
    tariff: Tariff = Tariff()
