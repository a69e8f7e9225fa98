"""Port of the database of workspaces, which providers that run Terraform share between replicas."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import msgspec

from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.orphan_workspaces import OrphanWorkspace, Resource
from slipway_provisioner.domain.workspace_runs import Next
from slipway_provisioner.domain.workspaces import Operation, Version, Workspace


class NoRoom(Exception):
    """The account has no room for another workspace; the text says how many it has."""


class QueueFull(Exception):
    """Too many workspaces of the account wait for a run; the text says how many."""


class ListingPending(Exception):
    """The resources of the account have not been listed since a restore; the text says why."""


class RunClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A workspace whose lock its caller holds, for one run. `inputs` are those of its launch. Earlier runs of it may
    have effects for `unsettled_seconds`. `began_at` is the monotonic time from which the time limit of an
    apply counts. `problem` is the reason why it cannot be run."""

    workspace: Workspace
    operation: Operation
    account: Account
    inputs: Mapping[str, Any] | None = None
    state: bytes = b""
    version: Version = Version("", 0)
    unsettled_seconds: float = 0.0
    began_at: float = 0.0
    problem: str = ""


class Room(msgspec.Struct, frozen=True, kw_only=True):
    """Workspaces that an account may have, None for any number, and those of a deployment that may wait for a run."""

    workspaces_max: int | None
    queue_max: int


class ListingClaim(msgspec.Struct, frozen=True, kw_only=True):
    """An account whose resources its caller lists by their tags from `began_at` on, under the token `fence`."""

    account: Account
    fence: int
    began_at: datetime


class Listings(Protocol):
    """Listings of the resources of accounts by their tags."""

    async def orphans(self, account: Account, *, visibility_seconds: float) -> Sequence[OrphanWorkspace]:
        """Resources of an account without a live workspace, as of the newest listing. An account without one is listed
        soon; after a restore ListingPending is raised until then."""
        ...

    async def claim(self, *, all_: bool) -> ListingClaim | None:
        """Account that is due to be listed, which no other replica lists; None if there is none. Without `all_` only
        one that has not been listed yet, or not since a restore."""
        ...

    async def finish(self, claim: ListingClaim, found: Sequence[Resource], *, visibility_seconds: float) -> int:
        """Compare a complete listing with the rows, and store its orphans; returns the number of their workspaces. One
        that another has overtaken stores nothing."""
        ...

    async def fail(self, claim: ListingClaim, problem: str) -> None:
        """Record that a listing has failed. The one before stays."""
        ...

    async def reclaim(self, account: Account, found: Sequence[OrphanWorkspace]) -> Mapping[str, str]:
        """Have orphans destroyed that are not yet; returns the reason for each that cannot be, by its workspace."""
        ...


class Workspaces(Protocol):
    """Workspaces of a deployment. Every method is a transaction of its own."""

    @property
    def problem(self) -> str:
        """Reason why no workspace can be stored, and the remedy; empty if there is none."""
        ...

    @property
    def listings(self) -> Listings:
        """Listings of resources in the same database."""
        ...

    async def add(self, account: Account, batch_id: str, inputs: Sequence[Mapping[str, Any]], room: Room) -> None:
        """Queue a workspace for each of `inputs`, as many as there is room for, unless the batch has some already.
        Raises NoRoom, QueueFull, KeyMissing."""
        ...

    async def of_batch(self, account: Account, batch_id: str) -> Sequence[Workspace]:
        """Workspaces of a batch, also those that are gone, in their order."""
        ...

    async def live(self, account: Account, batch_id: str | None) -> Sequence[Workspace]:
        """Workspaces of an account or a batch that are not gone."""
        ...

    async def of_instances(self, account: Account, instance_ids: Sequence[str]) -> Sequence[Workspace]:
        """Workspaces of instances that are not gone."""
        ...

    async def destroy(self, account: Account, instance_ids: Sequence[str]) -> Sequence[Workspace]:
        """Destroy the workspaces of instances; returns those that are not gone."""
        ...

    async def refresh_unresponsive(self, after_seconds: float) -> int:
        """Make a refresh due for the workspace of each worker without contact for so long, once until its next
        contact; returns their number."""
        ...

    async def refresh_oldest(self, age_seconds: float) -> bool:
        """Make a refresh due for the ready workspace whose last one is longest ago, if that is so long; False if there
        is none."""
        ...

    async def claim(self, holder: str, most: int) -> Sequence[RunClaim]:
        """Lock up to `most` workspaces that are due. An apply is claimed only where a launch may start now; its
        workspace is gone otherwise, and its launch put back. The lapsed lock of another run is taken over
        once it has been observed for a while: call this every second, also with 0."""
        ...

    async def renew(self, claims: Sequence[RunClaim]) -> Sequence[str]:
        """Renew locks; returns the ids of the workspaces whose lock was lost."""
        ...

    async def finish(self, claim: RunClaim, state: bytes | None, next_: Next) -> str:
        """Save the state of a run and release its lock. Returns the reason for which the state was stored as a rejected
        one instead, after which the workspace is unknown if it was applied; empty if it was saved."""
        ...

    async def request_check(self, account: Account, kind: str, subject: str = "") -> None:
        """Make the check of an account due, unless its last one found a problem of this kind and subject."""
        ...

    async def exist(self) -> bool:
        """True if there is a workspace that is not gone, in any account, or an account to list."""
        ...

    async def release(self, holder: str) -> int:
        """Release the locks of a process that has ended, with all that it ran; returns their number."""
        ...
