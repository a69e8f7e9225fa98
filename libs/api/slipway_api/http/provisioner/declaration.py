"""Declarations and their results, and the history of pools."""

from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from slipway_api.http.declaration import Change, OwnedSpec
from slipway_api.limits import Name, RequiredReason
from slipway_api.time import Time

DRAIN_SECONDS_MAX = 31_536_000


class PoolCost(msgspec.Struct, frozen=True, kw_only=True):
    """Upper bound for an hour of a pool, exact as text; null if no price is known. `unknown` lists the kinds of
    machines without a price."""

    pool: str
    mode: str
    cost: Decimal | None
    unknown: list[str]
    text: str


class UnpricedPool(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds of machines of a pool whose launches would be refused, since spend is limited and no price is known."""

    pool: str
    kinds: list[str]
    text: str


class PreviewProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Problem that the preview of a launch config has found, or the reason why it was not previewed."""

    config: str
    problem: str


class RevisionInForce(msgspec.Struct, frozen=True, kw_only=True):
    """Revision and image of a launch config."""

    revision: str
    image: str


class DeclarationResult(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that a declaration makes, or would make if not `applied`.

    Up to 10,000 changes are listed, and `more` counted; `unchanged` entries are stored alike. `digest`, of all changes,
    confirms the `dangers`. `costs` are those of changed pools whose machines cost money. `previews`, of a dry run, are
    those with a problem.
    """

    items: list[Change]
    more: int
    unchanged: int
    digest: str
    dangers: list[str]
    costs: list[PoolCost]
    unpriced: list[UnpricedPool]
    applied: bool
    previews: list[PreviewProblem] | UnsetType = UNSET
    to_revision: int | UnsetType = UNSET
    revisions: dict[str, RevisionInForce] | UnsetType = UNSET


class ExportedDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """Declared objects by section, and nothing else; a section is absent if another one was asked for."""

    accounts: list[OwnedSpec] | UnsetType = UNSET
    worker_pools: list[OwnedSpec] | UnsetType = UNSET


class PoolRevision(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of a pool's history: who declared it, by apply, put, set, set-image or rollback, then to an entry.

    `revisions` in force are by launch config, `changes` those that it made. `spec`, what was declared, is absent unless
    it was asked for, and null unless the token has the scope read:settings; `spec_digest` is its hash.
    """

    revision: int
    at: Time
    by: str
    action: str
    reason: str
    to_revision: int | None
    owner: str
    revisions: dict[str, RevisionInForce]
    spec_digest: str
    changes: list[Change]
    spec: dict[str, Any] | UnsetType | None = UNSET


class RollbackPreview(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that a rollback would make now, to an entry of the pool's history. `refused`: why it would be refused,
    empty if it would not."""

    to_revision: int | None
    items: list[Change]
    dangers: list[str]
    refused: str


class RollbackRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rollback of a pool's launch configs to their revisions in an entry of its history [default: before the last
    change of revisions, but for those that a rollback has left].

    All else that is declared of the pool stays, unless the `whole` pool is to be as it was. What is rolled away from
    launches nothing more, and its workers finish their tasks; until the target is proven, a fallback that is proven
    launches what it does not. With `replace`, revisions are replaced as by any other change, within `drain_seconds`.
    """

    to_revision: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    whole: bool = False
    reason: RequiredReason
    force: bool = False
    confirm: Name = ""
    replace: Literal["natural", "rolling", "now"] | None = None
    drain_seconds: Annotated[float, Meta(gt=0, le=DRAIN_SECONDS_MAX)] | None = None
    terminate: bool = False
    dry_run: bool = False
