"""State of a restored database, compared with what runs, and what a person may decide about it. Pure."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from slipway_provisioner.domain.cloud import WITHOUT_ID

UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Action(StrEnum):
    """Decision about an orphan instance. An adopted one gets a worker."""

    ADOPT = "adopt"
    LEAVE = "leave"
    TERMINATE = "terminate"


class Orphan(msgspec.Struct, frozen=True, kw_only=True):
    """An orphan instance that waits for a person, as of the newest pass over its account. `decision` is empty until it
    is made."""

    account_id: str
    instance_id: str
    batch_id: str
    launch_config_id: str
    created_at: datetime
    reason: str
    decision: str = ""


class LiveRevision(msgspec.Struct, frozen=True):
    """A revision of a launch config that is not archived."""

    id: str
    pool_id: str
    account_id: str
    image_revision: str


class Proposal(msgspec.Struct, frozen=True):
    """An orphan instance and what would become of it by default, with the reason."""

    orphan: Orphan
    action: Action
    why: str


class LostClaims(msgspec.Struct, frozen=True):
    """Tasks of a source that run, and the open claims that this database has of them."""

    pool_id: str
    source: str
    claimed: int
    known: int


def proposals(
    orphans: Iterable[Orphan], revisions: Mapping[str, LiveRevision], ended: Collection[tuple[str, str]]
) -> list[Proposal]:
    """Proposals for orphan instances without a decision: to adopt each if that is possible, so that its task goes on
    and its place is not filled twice; otherwise to leave it alone. `ended`: accounts and instances whose worker has
    ended."""
    found = []
    for orphan in orphans:
        if orphan.decision:
            found.append(Proposal(orphan, Action(orphan.decision), "decided before"))
        elif obstacle := cannot_adopt(orphan, revisions.get(orphan.launch_config_id), ended):
            found.append(Proposal(orphan, Action.LEAVE, obstacle))
        else:
            found.append(Proposal(orphan, Action.ADOPT, f"it becomes a worker of {orphan.launch_config_id}"))
    return found


def cannot_adopt(orphan: Orphan, revision: LiveRevision | None, ended: Collection[tuple[str, str]]) -> str:
    """Reason why an instance cannot become a worker; empty if it can."""
    if orphan.instance_id.startswith(WITHOUT_ID):
        return "a Terraform module has made it, and its tags do not show the id of its instance"
    if not UUID.fullmatch(orphan.batch_id):
        return "it has no tag of a launch batch"
    if not orphan.launch_config_id:
        return "it has no tag of a launch config"
    if revision is None:
        return f"its launch config {orphan.launch_config_id} is unknown or archived"
    if revision.account_id != orphan.account_id:
        return f"its launch config {revision.id} is of account {revision.account_id}"
    if (orphan.account_id, orphan.instance_id) in ended:
        return "its worker has ended"
    return ""


def lost_claims(claimed: Mapping[tuple[str, str], int], known: Mapping[tuple[str, str], int]) -> list[LostClaims]:
    """Sources (pool, source) that report more claimed tasks than the database has open claims."""
    return [
        LostClaims(pool_id, source, number, known.get((pool_id, source), 0))
        for (pool_id, source), number in sorted(claimed.items())
        if number > known.get((pool_id, source), 0)
    ]


def by_batch(orphans: Iterable[Orphan]) -> dict[str, Sequence[Orphan]]:
    """Orphan instances by batch, in order of ids."""
    found: dict[str, list[Orphan]] = {}
    for orphan in sorted(orphans, key=lambda orphan: (orphan.batch_id, orphan.instance_id)):
        found.setdefault(orphan.batch_id, []).append(orphan)
    return {batch_id: tuple(each) for batch_id, each in found.items()}
