"""API of worker agents. What they report ignores unknown fields: an agent may be newer than its provisioner."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from slipway_api.limits import Note, RequiredName
from slipway_api.time import Time

WORKER_TOKEN: Final = "slipway-worker-"  # noqa: S105 # the beginning of a token
UUID: Final = "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
WrittenTime = Annotated[str, Meta(min_length=1, max_length=64, extra_json_schema={"format": "date-time"})]
"""A timestamp in the words of its sender, to be compared with them."""


class MachineIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Identity document of a machine, as its provider shows it there, with its signatures in base64."""

    document: Annotated[str, Meta(min_length=1, max_length=4096)]
    signature: Annotated[str, Meta(max_length=1024)] = ""
    rsa2048: Annotated[str, Meta(max_length=8192)] = ""


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """Registration of an instance. `token`: the worker's, from an earlier registration of the machine, or drawn by its
    agent before the first."""

    batch_id: Annotated[str, Meta(pattern=f"^{UUID}$", max_length=36)]
    secret: RequiredName
    instance_id: RequiredName
    token: Annotated[str, Meta(pattern=f"^{WORKER_TOKEN}[A-Za-z0-9_-]{{43}}$", max_length=58)] | None = None
    identity: MachineIdentity | None = None


class RegisteredWorker(msgspec.Struct, frozen=True, kw_only=True):
    """The worker of a registered instance, its token, and the number of tasks that it runs at once."""

    worker_id: str
    token: str
    pool_id: str
    task_slots: int


class ClaimReport(msgspec.Struct, frozen=True, kw_only=True):
    """Claim of a task. `at`: time of the claim, by which its end names it, in the same words."""

    task_id: RequiredName
    source: RequiredName
    at: WrittenTime


class EndReport(msgspec.Struct, frozen=True, kw_only=True):
    """End of a task. `claimed_at`: `at` of the claim that ends. A worker with one task at a time may leave out all but
    `at`."""

    at: Time
    task_id: RequiredName | None = None
    source: RequiredName | None = None
    claimed_at: WrittenTime | None = None


class StopReport(msgspec.Struct, frozen=True, kw_only=True):
    """The machine stops by itself."""

    at: Time


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """An error of the machine, by its kind."""

    kind: RequiredName
    detail: Note = ""


class NoticeReport(msgspec.Struct, frozen=True, kw_only=True):
    """A notice of the provider: it interrupts the machine at `ends_at`, null: at an unknown time, or recommends
    replacing it."""

    kind: Literal["rebalance", "interruption"]
    at: Time
    ends_at: Time | None = None
    zone_id: Annotated[str, Meta(pattern=r"^[a-z0-9-]*(?!\n)$", max_length=64)] = ""


class ReportAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a report: `terminate` is true for a worker that must stop, or leave after its task, for `reason`."""

    terminate: bool
    reason: str


class ClaimAnswer(ReportAnswer, frozen=True, kw_only=True):
    """`counted` is false for a claim above the worker's task slots."""

    counted: bool


class EndAnswer(ReportAnswer, frozen=True, kw_only=True):
    """`ended` is the number of claims that the report has ended: 0 if no open claim is the one that it names, or if it
    names none and several are open."""

    ended: int


class HeartbeatAnswer(ReportAnswer, frozen=True, kw_only=True):
    """`has_task` is false if the task of the worker is not known: its agent reports the claim again."""

    has_task: bool


class Standing(ReportAnswer, frozen=True, kw_only=True):
    """Standing of a worker's revision: the launch config, the hash of the worker's revision and of the current one, its
    state, active, paused, draining or archived, and the end of its drain; null unless it drains."""

    config: str
    revision: str
    current: str
    state: str
    deadline: Time | None
