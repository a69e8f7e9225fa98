"""Facts of a run, as recorded in the ledger. Values only.

All state results from folding these facts in order. `at` is in epoch seconds of this host, or of the test's clock in
simulations. Facts contain secrets and tokens, which machines need after a restart, so keep a ledger private.
"""

from typing import Any, Literal

import msgspec

from slipway_simulator.demand import Demand
from slipway_simulator.notation import Fault
from slipway_simulator.scenario import Scenario

Code = Literal[
    "OK",
    "InsufficientCapacity",
    "QuotaExceeded",
    "RequestLimitExceeded",
    "ImageNotFound",
    "InvalidRequest",
    "AuthFailure",
    "InternalError",
]
EndedBy = Literal["self", "api", "fault"]


class Recorded(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """Base of all facts."""

    at: float


class ScenarioLoaded(Recorded, frozen=True, kw_only=True, tag="scenario"):
    scenario: Scenario


class FaultSet(Recorded, frozen=True, kw_only=True, tag="fault_set"):
    fault: Fault


class FaultCleared(Recorded, frozen=True, kw_only=True, tag="fault_cleared"):
    name: str


class Call(Recorded, frozen=True, kw_only=True, tag="call"):
    """A create call was received. `request` is a fingerprint of its whole body."""

    call_id: str
    account: str
    token: str
    deployment: str
    batch: str
    config: str
    count: int
    zone: str
    instance_type: str
    image: str
    request: str


class Reply(Recorded, frozen=True, kw_only=True, tag="reply"):
    """Result of a create call, at the time it took effect. `lost`: the connection was dropped before the reply.

    `repeated`: the token was known, and nothing was created. `bucket`: tokens left in the account's bucket.
    """

    call_id: str
    account: str
    code: Code
    message: str = ""
    instance_ids: tuple[str, ...] = ()
    lost: bool = False
    repeated: bool = False
    retry_after_seconds: float | None = None
    bucket: float | None = None


class InstanceCreated(Recorded, frozen=True, kw_only=True, tag="instance_created"):
    """An instance was created. `boots_at` is None if it never registers; without `claims` it never takes a task."""

    instance_id: str
    call_id: str
    account: str
    token: str
    request: str
    deployment: str
    batch: str
    config: str
    zone: str
    instance_type: str
    image: str
    visible_at: float
    boots_at: float | None
    claims: bool
    user_data: dict[str, Any]


class Registered(Recorded, frozen=True, kw_only=True, tag="registered"):
    """A machine registered. `token` is empty for an external worker, which has sent its first request to the queue."""

    instance_id: str
    worker_id: str
    pool_id: str
    token: str


class Refused(Recorded, frozen=True, kw_only=True, tag="refused"):
    """The provisioner refused this machine; it does nothing until it is terminated."""

    instance_id: str
    status: int


class Unknown(Recorded, frozen=True, kw_only=True, tag="unknown"):
    """The provisioner does not know this machine: its database may have been restored. It registers again, once."""

    instance_id: str
    status: int


class ClaimUnknown(Recorded, frozen=True, kw_only=True, tag="claim_unknown"):
    """The provisioner does not know of this machine's claim, which is reported again."""

    instance_id: str


class Claimed(Recorded, frozen=True, kw_only=True, tag="claimed"):
    """The provisioner answered the report of a claim with `status`."""

    instance_id: str
    worker_id: str
    pool_id: str
    task_id: str
    status: int


class Idle(Recorded, frozen=True, kw_only=True, tag="idle"):
    instance_id: str
    worker_id: str
    pool_id: str
    status: int


class DrainRequested(Recorded, frozen=True, kw_only=True, tag="drain_requested"):
    """The provisioner requested the machine to drain."""

    instance_id: str
    worker_id: str


class Terminated(Recorded, frozen=True, kw_only=True, tag="terminated"):
    instance_id: str
    account: str
    by: EndedBy


class TerminationRefused(Recorded, frozen=True, kw_only=True, tag="termination_refused"):
    """A call to terminate an instance was refused."""

    instance_id: str
    account: str


class TasksAdded(Recorded, frozen=True, kw_only=True, tag="tasks_added"):
    """Tasks were added to those of the scenario; they arrive at their offsets from `at`."""

    pool_id: str
    demand: Demand


class TaskArrived(Recorded, frozen=True, kw_only=True, tag="task_arrived"):
    task_id: str
    pool_id: str
    source_id: str
    duration_seconds: float


class TaskStarted(Recorded, frozen=True, kw_only=True, tag="task_started"):
    """A task started. `ends_at` is None for a unit of a demand level, which lasts until the level drops."""

    task_id: str
    pool_id: str
    instance_id: str
    ends_at: float | None
    duration_seconds: float = 0.0


class TaskClaimed(Recorded, frozen=True, kw_only=True, tag="task_claimed"):
    """An external worker claimed a task until `expires_at`, or longer if it renews the claim.

    The worker reports the end of the task. `unit`: of a demand level; such a claim also ends when the level drops."""

    task_id: str
    pool_id: str
    instance_id: str
    worker_id: str
    expires_at: float
    unit: bool
    duration_seconds: float = 0.0


class TaskRenewed(Recorded, frozen=True, kw_only=True, tag="task_renewed"):
    task_id: str
    pool_id: str
    expires_at: float


class TaskEnded(Recorded, frozen=True, kw_only=True, tag="task_ended"):
    """A task ended. `interrupted`: its machine terminated or its claim expired, and the task is pending again.
    `exit_code` is that reported by an external worker."""

    task_id: str
    pool_id: str
    instance_id: str
    result: Literal["done", "interrupted"]
    exit_code: int | None = None


class DemandSet(Recorded, frozen=True, kw_only=True, tag="demand_set"):
    """A level of demand without tasks. With `claimed` None, machines take as much of `pending` as they can."""

    pool_id: str
    pending: int
    claimed: int | None = None


class DemandReported(Recorded, frozen=True, kw_only=True, tag="demand_reported"):
    """Kafka acknowledged a demand report; its counts are those of `observed_at`."""

    pool_id: str
    pending: int
    claimed: int
    observed_at: float


Fact = (
    ScenarioLoaded
    | FaultSet
    | FaultCleared
    | Call
    | Reply
    | InstanceCreated
    | Registered
    | Refused
    | Unknown
    | ClaimUnknown
    | Claimed
    | Idle
    | DrainRequested
    | Terminated
    | TerminationRefused
    | TasksAdded
    | TaskArrived
    | TaskStarted
    | TaskClaimed
    | TaskRenewed
    | TaskEnded
    | DemandSet
    | DemandReported
)
