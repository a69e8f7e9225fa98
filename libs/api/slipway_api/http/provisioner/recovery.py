"""Identity of a deployment, and recovery after a restore of its database."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from slipway_api.limits import RequiredName
from slipway_api.time import Time

CHOICES_MAX = 10_000


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of the deployment, which never changes and with which its machines are tagged, and of the incarnation of its
    database."""

    id: str
    incarnation: str


class OrphanInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance without a worker, and what becomes of it by default: adopt, leave or terminate, and why. `reason`:
    why it waits for a person. `decision` is empty until it is made."""

    account_id: str
    instance_id: str
    batch_id: str
    launch_config_id: str
    created_at: Time
    reason: str
    decision: str
    action: str
    why: str


class MissingInstance(msgspec.Struct, frozen=True, kw_only=True):
    """A worker whose instance was not listed in the newest pass over its account."""

    account_id: str
    worker_id: str
    pool_id: str
    instance_id: str | None
    state: str
    found_at: Time


class OpenCall(msgspec.Struct, frozen=True, kw_only=True):
    """A launch batch whose outcome is unknown, of `units` workers."""

    batch_id: str
    account_id: str
    launch_config_id: str
    units: int
    started_at: Time


class LostClaim(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks of a source that run, and the open claims that the database has of them."""

    pool_id: str
    source: str
    claimed: int
    known: int


class UnlistedAccount(msgspec.Struct, frozen=True, kw_only=True):
    """An account of which no listing surely has everything that was launched before the restore. A listing that begins
    at `counts_from` or later has; None until the first one gives that time."""

    account_id: str
    counts_from: Time | None


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """State of a restored database, and the differences between its rows and what runs, as of the newest pass over each
    account.

    `unconfirmed`: why nothing is launched; `restored`: the reason that was given; each empty if there is none.
    `compared`: the database was compared with Kafka. `not_listed`: accounts for which a confirmation waits.
    """

    unconfirmed: str
    restored: str
    compared: bool
    orphans: list[OrphanInstance]
    missing: list[MissingInstance]
    open_calls: list[OpenCall]
    lost_claims: list[LostClaim]
    not_listed: list[UnlistedAccount]


class OrphanChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decision about an orphan instance. An adopted one gets a worker."""

    account_id: RequiredName
    instance_id: RequiredName
    action: Literal["adopt", "leave", "terminate"]


class RecoveryConfirmation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Decisions about orphan instances. Those without one still wait. `unlisted`: accounts to confirm although they
    have not been listed since the restore."""

    instances: Annotated[tuple[OrphanChoice, ...], Meta(max_length=CHOICES_MAX)] = ()
    unlisted: Annotated[tuple[RequiredName, ...], Meta(max_length=CHOICES_MAX)] = ()


class RecoveryConfirmed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a confirmation, as numbers of instances. `open` ones still wait for a decision. `restore`: it ended the
    stop of a restore."""

    adopted: int
    terminating: int
    left: int
    open: int
    restore: bool
