"""The facts of a run, as the ledger holds them. Values only.

All state is these facts folded in order. Each carries `at`, in epoch seconds of this host (of the test's clock in
simulations). Secrets and tokens stand here because a machine has to go on with them after a restart: a ledger is as
private as the machines it stands for.
"""

from typing import Any, Literal

import msgspec

from slipway_simulator.demand import Demand
from slipway_simulator.faults import Fault
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
    at: float


class ScenarioLoaded(Recorded, frozen=True, kw_only=True, tag="scenario"):
    scenario: Scenario


class FaultSet(Recorded, frozen=True, kw_only=True, tag="fault_set"):
    fault: Fault


class FaultCleared(Recorded, frozen=True, kw_only=True, tag="fault_cleared"):
    name: str


class Call(Recorded, frozen=True, kw_only=True, tag="call"):
    """A create call has arrived. `request` is a fingerprint of its whole body."""

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
    """What the call came to, at the instant when it took effect. `lost`: the caller never heard of it.

    `repeated`: the token was known and nothing new was created. `bucket` is what is left of the account's tokens.
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
    """`boots_at` is None for a machine that never registers; one that does not `claims` takes no task."""

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
    """`token` is empty for a worker from outside: it has asked the queue for the first time."""

    instance_id: str
    worker_id: str
    pool_id: str
    token: str


class Refused(Recorded, frozen=True, kw_only=True, tag="refused"):
    """The provisioner does not want this machine; it stays, does nothing, and waits for its end."""

    instance_id: str
    status: int


class Claimed(Recorded, frozen=True, kw_only=True, tag="claimed"):
    """The provisioner has heard of the claim; `status` is its answer."""

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


class Told(Recorded, frozen=True, kw_only=True, tag="told"):
    """The machine has been told to leave."""

    instance_id: str
    worker_id: str


class Terminated(Recorded, frozen=True, kw_only=True, tag="terminated"):
    instance_id: str
    account: str
    by: EndedBy


class TasksAdded(Recorded, frozen=True, kw_only=True, tag="tasks_added"):
    """Somebody announced tasks beside the scenario's; they arrive at their offsets from now."""

    pool_id: str
    demand: Demand


class TaskArrived(Recorded, frozen=True, kw_only=True, tag="task_arrived"):
    task_id: str
    pool_id: str
    source_id: str
    duration_seconds: float


class TaskStarted(Recorded, frozen=True, kw_only=True, tag="task_started"):
    """`ends_at` is None for a unit of a demand level, which lasts until the level drops."""

    task_id: str
    pool_id: str
    instance_id: str
    ends_at: float | None
    duration_seconds: float = 0.0


class TaskClaimed(Recorded, frozen=True, kw_only=True, tag="task_claimed"):
    """A worker from outside has the task until `runs_out_at`, and longer if it renews its claim. It says itself when
    the task has ended. `unit`: of a demand level; such a claim also ends when the level drops."""

    task_id: str
    pool_id: str
    instance_id: str
    worker_id: str
    runs_out_at: float
    unit: bool
    duration_seconds: float = 0.0


class TaskRenewed(Recorded, frozen=True, kw_only=True, tag="task_renewed"):
    task_id: str
    pool_id: str
    runs_out_at: float


class TaskEnded(Recorded, frozen=True, kw_only=True, tag="task_ended"):
    """`interrupted`: its machine ended first, or its claim ran out; the task waits again. `exit_code` is what a
    worker from outside said."""

    task_id: str
    pool_id: str
    instance_id: str
    result: Literal["done", "interrupted"]
    exit_code: int | None = None


class DemandSet(Recorded, frozen=True, kw_only=True, tag="demand_set"):
    """A level of demand without tasks. `claimed` None: machines take as much of `pending` as they can."""

    pool_id: str
    pending: int
    claimed: int | None = None


class DemandReported(Recorded, frozen=True, kw_only=True, tag="demand_reported"):
    """Kafka has acknowledged this report; `observed_at` is when its counts were true."""

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
    | Claimed
    | Idle
    | Told
    | Terminated
    | TasksAdded
    | TaskArrived
    | TaskStarted
    | TaskClaimed
    | TaskRenewed
    | TaskEnded
    | DemandSet
    | DemandReported
)
