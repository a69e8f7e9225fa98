"""HTTP API of the simulator: accounts of a simulated provider, its task queue, and for operators."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

COUNT_MAX: Final = 1_000_000
"""An amount of demand that one deployment could hold."""
TASKS_MAX: Final = 100_000
WAIT_SECONDS_MAX: Final = 30
Text = Annotated[str, Meta(min_length=1, max_length=200)]
NotNegative = Annotated[float, Meta(ge=0)]


class InstanceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Create call of `count` instances. `settings` may be part of the JSON in `user_data` instead."""

    token: Annotated[str, Meta(min_length=1, max_length=128)]
    tags: dict[str, str] = {}
    count: int = 1
    zone: str
    instance_type: str
    image: str
    user_data: str = ""
    settings: dict[str, Any] = {}


class InstanceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of an instance: pending, running or terminated."""

    id: str
    state: str


class CreatedInstances(msgspec.Struct, frozen=True, kw_only=True):
    """Instances of a create call, also of one whose token is repeated."""

    instances: list[InstanceStatus]


class ListedInstance(InstanceStatus, frozen=True, kw_only=True):
    """A live instance with the launch batch and launch config of its tags. `created_at` is in epoch seconds."""

    batch: str
    config: str
    zone: str
    created_at: float


class ListedInstances(msgspec.Struct, frozen=True, kw_only=True):
    """Live instances of a deployment."""

    instances: list[ListedInstance]


class SimulatedIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """The account that was asked."""

    account: str


class ProviderError(msgspec.Struct, frozen=True, kw_only=True):
    """An error with the code of a provider."""

    code: str
    message: str
    retry_after_seconds: float | UnsetType = UNSET


class LoadedScenario(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario that began at `started_at`, in epoch seconds. `speed` is product seconds in a second."""

    started_at: float
    seed: int
    speed: float


class NewTasks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tasks to add. `at`: arrival of each in product seconds from now [default: all now]."""

    pool_id: str
    count: Annotated[int, Meta(ge=1, le=TASKS_MAX)] = 1
    duration_seconds: NotNegative
    at: list[NotNegative] | None = None


class AddedTasks(msgspec.Struct, frozen=True, kw_only=True):
    """Number of tasks that were added to a pool."""

    pool_id: str
    count: int


class DemandLevel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Demand to set, in tasks. `claimed` null: those that workers have claimed."""

    pending: Annotated[int, Meta(ge=0, le=COUNT_MAX)]
    claimed: Annotated[int, Meta(ge=0, le=COUNT_MAX)] | None = None


class SetDemand(msgspec.Struct, frozen=True, kw_only=True):
    """Demand of a pool in tasks, set `at` a time in epoch seconds."""

    pool_id: str
    at: float
    pending: int
    claimed: int


class NewFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fault to set, within product seconds since the scenario began; null: from now, and until it is cleared."""

    name: str
    arg: str = ""
    from_seconds: float | None = None
    until_seconds: float | None = None


class SimulatedFault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fault, within product seconds since the scenario began. Absent: without an argument, from the begin, or until
    it is cleared."""

    name: str
    arg: str = ""
    from_seconds: float | None = None
    until_seconds: float | None = None


class FaultsInForce(msgspec.Struct, frozen=True, kw_only=True):
    """Faults that are set, active or not."""

    faults: list[SimulatedFault]


class LedgerFile(msgspec.Struct, frozen=True, kw_only=True):
    """Place of the ledger, and its size in bytes."""

    path: str
    size_bytes: int


class SimulatorLive(msgspec.Struct, frozen=True, kw_only=True):
    """The process runs."""

    live: bool


class SimulatorReady(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger is read. `kafka`: the connection for reports of demand is open."""

    ready: bool
    kafka: bool


class CallCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Create calls: all, those in flight, those whose reply was lost, and replies by code."""

    total: int
    in_flight: int
    lost_replies: int
    replies: dict[str, int]


class InstanceCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Instances: live ones, and all that were launched."""

    live: int
    launched: int


class MachineCounts(InstanceCounts, frozen=True, kw_only=True):
    """Instances with those whose machines have registered, and those whose registration was refused."""

    registered: int
    refused: int


class ZoneCounts(InstanceCounts, frozen=True, kw_only=True):
    """Instances of a zone. `out`: it has no capacity now."""

    out: bool


class SimulatedPool(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks and machines of a pool: `pending` and `claimed` tasks as reported, `registered` machines, `busy` ones of
    them, machines that are `available` for a task now, and tasks over the life of the scenario."""

    pending: int
    claimed: int
    registered: int
    busy: int
    available: int
    tasks_arrived: int
    tasks_done: int


class SimulatorState(msgspec.Struct, frozen=True, kw_only=True):
    """State of the simulation. `at` and `started_at` are in epoch seconds, the latter 0 without a scenario."""

    at: float
    started_at: float
    speed: float
    product_seconds: float
    calls: CallCounts
    instances: MachineCounts
    accounts: dict[str, InstanceCounts]
    zones: dict[str, ZoneCounts]
    pools: dict[str, SimulatedPool]
    faults: list[SimulatedFault]


class TaskRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request for a task. `wait_seconds`: real seconds to wait if there is none."""

    worker_id: Text
    instance_id: Text
    wait_seconds: Annotated[float, Meta(ge=0, le=WAIT_SECONDS_MAX)] = 0.0


class ClaimedTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task, which is pending again unless the claim is renewed within `claim_seconds`."""

    task_id: str
    command: list[str]
    source: str
    claim_seconds: float


class TaskRenewal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Renewal of the claim of a task."""

    worker_id: Text


class RenewedTask(msgspec.Struct, frozen=True, kw_only=True):
    """Time for which the claim lasts from now."""

    claim_seconds: float


class FinishedTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """End of a task with its exit code."""

    worker_id: Text
    exit_code: int


class TaskFinished(msgspec.Struct, frozen=True, kw_only=True):
    """The task that was finished."""

    task_id: str
