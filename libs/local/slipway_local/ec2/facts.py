"""Facts of the stand-in, as recorded in its ledger. Values only; the words are those of the simulator's ledger.

`at` is in epoch seconds of this host. User data are not recorded, because they contain secrets.
"""

from typing import Final, Literal

import msgspec

from slipway_local.ec2.scenario import Scenario
from slipway_simulator.facts import Recorded
from slipway_simulator.notation import Fault

Lifecycle = Literal["on-demand", "spot"]
# self: shut down from inside; api: TerminateInstances; spot: interrupted; fault: died or crashed.
EndedBy = Literal["self", "api", "spot", "fault"]
Notice = Literal["interruption", "rebalance"]


class Cleared(Recorded, frozen=True, kw_only=True, tag="cleared"):
    """Everything was removed, as after a start."""


class ScenarioLoaded(Recorded, frozen=True, kw_only=True, tag="scenario"):
    scenario: Scenario


class FaultSet(Recorded, frozen=True, kw_only=True, tag="fault_set"):
    fault: Fault


class FaultCleared(Recorded, frozen=True, kw_only=True, tag="fault_cleared"):
    name: str


class Call(Recorded, frozen=True, kw_only=True, tag="call"):
    """A call was received."""

    call_id: str
    account: str
    region: str
    action: str


class Launch(Recorded, frozen=True, kw_only=True, tag="launch"):
    """The content of a RunInstances call. `request` is a fingerprint of all its parameters; `token_zone` is the zone to
    which its token belongs, empty for the whole region."""

    call_id: str
    account: str
    region: str
    token: str
    token_zone: str
    request: str
    deployment: str
    batch: str
    config: str
    least: int
    count: int
    zone: str
    subnet: str
    instance_type: str
    lifecycle: Lifecycle
    image: str
    stays_when_off: bool
    tags: dict[str, str]


class Reply(Recorded, frozen=True, kw_only=True, tag="reply"):
    """Result of a call, at the time it took effect. `lost`: the caller did not get it. `repeated`: the token was known,
    and nothing was created."""

    call_id: str
    account: str
    action: str
    code: str
    message: str = ""
    instance_ids: tuple[str, ...] = ()
    lost: bool = False
    repeated: bool = False


class InstanceCreated(Recorded, frozen=True, kw_only=True, tag="instance_created"):
    """An instance was created. `boots_at` is None if nothing starts on it; one that `breaks` prints an error then, and
    starts no agent. `dies` is the StateReason with which it is terminated at `runs_at` instead of running. One that was
    `seeded` has no launch call, no machine and no counterpart in moto."""

    instance_id: str
    call_id: str
    account: str
    region: str
    reservation: str
    index: int
    deployment: str
    batch: str
    config: str
    zone: str
    instance_type: str
    lifecycle: Lifecycle
    image: str
    visible_at: float
    runs_at: float
    boots_at: float | None
    dies: str
    stays_when_off: bool
    tags: dict[str, str]
    breaks: bool = False
    seeded: bool = False


class Tagged(Recorded, frozen=True, kw_only=True, tag="tagged"):
    instance_id: str
    tags: dict[str, str]


class Started(Recorded, frozen=True, kw_only=True, tag="started"):
    """The machine's agent was started as a process."""

    instance_id: str
    pid: int


class Exited(Recorded, frozen=True, kw_only=True, tag="exited"):
    """The machine's process ended; negative for a signal."""

    instance_id: str
    exit_code: int


class Noticed(Recorded, frozen=True, kw_only=True, tag="noticed"):
    """A machine got a notice; of an interruption it ends at `ends_at`."""

    instance_id: str
    notice: Notice
    ends_at: float


class ShuttingDown(Recorded, frozen=True, kw_only=True, tag="shutting_down"):
    instance_id: str
    by: EndedBy
    reason: str


class Stopped(Recorded, frozen=True, kw_only=True, tag="stopped"):
    """A machine shut down from inside and stays, because its launch did not ask for termination."""

    instance_id: str


class Terminated(Recorded, frozen=True, kw_only=True, tag="terminated"):
    instance_id: str
    account: str
    by: EndedBy
    reason: str


Fact = (
    Cleared
    | ScenarioLoaded
    | FaultSet
    | FaultCleared
    | Call
    | Launch
    | Reply
    | InstanceCreated
    | Tagged
    | Started
    | Exited
    | Noticed
    | ShuttingDown
    | Stopped
    | Terminated
)
DECODER: Final[msgspec.json.Decoder[Fact]] = msgspec.json.Decoder(Fact)
