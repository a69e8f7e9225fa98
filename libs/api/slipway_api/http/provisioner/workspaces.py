"""Terraform workspaces, their states, and the keys of the states."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from slipway_api.http.provisioner.agents import UUID
from slipway_api.limits import Reason
from slipway_api.time import Time

NUMBER_MAX: Final = 2**63 - 1


class StateExport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request for a state. `rejected`: the newest rejected state, in place of the stored one."""

    reason: Reason = ""
    rejected: bool = False


class ExportedState(msgspec.Struct, frozen=True, kw_only=True):
    """A Terraform state as text, and the number of rejected ones."""

    state: str
    rejected: int


class WorkspaceUnlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reason to unlock a workspace."""

    reason: Reason = ""


class UnlockedWorkspace(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace after it was unlocked; `was_locked`: it was locked before. Its phase names its next run, which is due
    at `due_at`. What a run that has lost the lock does may take effect until `effects_until`, which is
    `effects_seconds` after its begin. `fence` is the fencing token of its lock."""

    id: str
    deployment: str
    incarnation: str
    account_id: str
    batch_id: str
    ordinal: int
    launch_config_id: str
    phase: str
    effects_seconds: float
    holder: str
    fence: int
    locked_until: Time | None
    effects_until: Time | None
    due_at: Time | None
    failed_runs: int
    interruptions: int
    instance_id: str | None
    address: str
    outcome: dict[str, Any] | None
    problem: str
    created_at: Time | None
    refreshed_at: Time | None
    ended_at: Time | None
    was_locked: bool


class StateKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key of states with the number of documents that are encrypted with it. The one that `encrypts` is for new
    documents; one that is not `available` is not among the keys of this service."""

    id: str
    documents: int
    available: bool
    encrypts: bool


class DocumentPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Place of a document: its workspace, its kind (inputs, state or rejected), and its number among those of that
    kind."""

    workspace_id: str
    kind: str
    number: int


class AfterDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Place of a document in a request, as an answer has given it."""

    workspace_id: Annotated[str, Meta(pattern=f"^{UUID}$", max_length=36)]
    kind: Literal["inputs", "state", "rejected"]
    number: Annotated[int, Meta(ge=0, le=NUMBER_MAX)]


class KeyRotation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Request to encrypt a chunk of documents: those after a place, or the first ones."""

    after: AfterDocument | None = None


class UnauthenticDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A document that no key decrypts any more, and its worker; null if that is gone."""

    workspace_id: str
    kind: str
    number: int
    worker_id: str | None


class RotatedKeys(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of documents: those `encrypted` now, those `left` with another available key, and those whose key is
    `unavailable`. `after` is for the next request; null after the last chunk. Those that are `not_authentic` stay as
    they are."""

    encrypted: int
    not_authentic: list[UnauthenticDocument]
    after: DocumentPlace | None
    left: int
    unavailable: int
