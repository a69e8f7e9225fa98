"""Resources in a cloud that belong to no live workspace, as the listing of an account by its tags shows them. Pure."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from slipway_provisioner.domain.workspaces import Phase

NAMED_MAX: Final = 5
"""Resources of a workspace that a text names."""


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """A resource of a listing: the workspace in its tags, its address in the module of that workspace, its id as
    `terraform import` takes it, and what else its tags say, each empty if they lack it. `workspace` and `batch_id` are
    UUIDs."""

    workspace: str
    address: str
    id: str
    batch_id: str = ""
    launch_config_id: str = ""
    incarnation: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """Row of a workspace, as far as it is compared. What its runs did is settled since `settled_at`."""

    phase: Phase
    settled_at: datetime
    batch_id: str
    launch_config_id: str


class OrphanWorkspace(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that name a workspace which is not live, as of a listing that began at `listed_at`. Where their launch
    is known from no row it is that in their tags."""

    id: str
    listed_at: datetime
    resources: tuple[Resource, ...]
    batch_id: str
    launch_config_id: str
    incarnation: str

    @property
    def note(self) -> str:
        """The resources by their addresses and ids, for people."""
        named = [f"{each.address or 'no address'} ({each.id})" for each in self.resources[:NAMED_MAX]]
        more = len(self.resources) - len(named)
        return f"workspace {self.id or 'unnamed'}: {', '.join(named)}{f' and {more} more' if more else ''}"


def orphans(
    found: Sequence[Resource], rows: Mapping[str, Row], *, listed_at: datetime, visibility_seconds: float
) -> list[OrphanWorkspace]:
    """Orphans among the resources of a listing that began at `listed_at`. `rows` are read after it has ended: the row
    of a workspace is committed before its first resource exists.

    What a workspace that is gone has destroyed is still listed for `visibility_seconds`, and its runs may have effects
    until it is settled. The resources of an orphan that is being destroyed are its own until it is gone.
    """
    settled_before = listed_at - timedelta(seconds=visibility_seconds)
    resources: dict[str, list[Resource]] = {}
    for each in found:
        row = rows.get(each.workspace)
        is_settled = row is not None and row.phase is Phase.GONE and row.settled_at < settled_before
        if row is None or row.phase is Phase.ORPHAN or is_settled:
            resources.setdefault(each.workspace, []).append(each)
    return [_orphan(each, rows.get(id_), listed_at) for id_, each in sorted(resources.items())]


def _orphan(resources: Sequence[Resource], row: Row | None, listed_at: datetime) -> OrphanWorkspace:
    first = min(resources, key=_place)
    return OrphanWorkspace(
        id=first.workspace,
        listed_at=listed_at,
        resources=tuple(sorted(resources, key=_place)),
        batch_id=first.batch_id if row is None else row.batch_id,
        launch_config_id=first.launch_config_id if row is None else row.launch_config_id,
        incarnation=first.incarnation,
    )


def _place(resource: Resource) -> tuple[str, str]:
    return resource.address, resource.id
