"""Comparison of a provider's listing with the worker rows: orphan and missing instances. Pure.

Both are streamed, the listing page by page and the rows in chunks: of a listed instance only its ids are kept, unless
no worker has it. The listing is complete before the rows are compared: an instance that it lacks was created later, or
is gone.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from slipway_api.events.lifecycle import ASKED_TO_STOP, State
from slipway_provisioner.domain.cloud import Instance
from slipway_provisioner.domain.launching import BatchState
from slipway_provisioner.domain.recovery import Action, Orphan

IMPLAUSIBLE_SHARE: Final = 0.2  # a larger share of missing or orphan instances in one pass suggests a broken listing
ORPHANS_MAX: Final = 20  # of a pass; more are terminated only if they are few among the instances of the account
UNKNOWN_BATCH: Final = "its launch batch is unknown to this database"


class Kept(msgspec.Struct, frozen=True):
    """An orphan instance that waits for a person, and the reason."""

    instance: Instance
    reason: str


class Owner(msgspec.Struct, frozen=True):
    """A worker that has, or had, a listed instance. `boots`: it starts once its provider has started the instance."""

    worker_id: str
    instance_id: str
    ended_at: datetime | None = None
    boots: bool = False


class Bound(msgspec.Struct, frozen=True, kw_only=True):
    """A live worker with an instance, as far as it is compared. It has been expected in listings `since` then."""

    id: str
    instance_id: str
    state: State
    since: datetime
    batch_id: str | None = None
    launched_at: datetime | None = None


class Findings(msgspec.Struct, frozen=True):
    """`orphans`: ids of instances to terminate; `kept`: those that wait for a person. `missing`: workers whose instance
    was not listed. `implausible`: reason to distrust `missing`; empty if there is none."""

    orphans: Sequence[str]
    kept: Sequence[Kept]
    missing: Sequence[Bound]
    implausible: str


class Listing:
    """A listing, and what it is compared with. All pages are added before the first worker.

    Instances younger than `settled_seconds`, and those whose worker stopped that recently, are no orphans: they end by
    themselves, or are found in a later pass. The listing of another account (`identity_matches` is false) yields none.
    """

    def __init__(self, *, listed_at: datetime, settled_seconds: float, identity_matches: bool) -> None:
        self.identity_matches = identity_matches
        self.present: set[str] = set()
        self.tags: set[str] = set()
        self.unowned: list[Instance] = []
        self.booted: dict[str, str] = {}  # worker → its instance, which its provider has started
        self._young = listed_at - timedelta(seconds=settled_seconds)
        self._expected = 0
        self._missing: list[Bound] = []

    def add_page(self, page: Sequence[Instance], owners: Sequence[Owner]) -> None:
        """Add a page of the listing, and the workers that have its instances."""
        running = {instance.id for instance in page if instance.running}
        # A page may repeat instances of an earlier one, since the fleet changes while it is listed.
        new = [*{instance.id: instance for instance in page if instance.id not in self.present}.values()]
        self.present.update(instance.id for instance in new)
        self.tags.update(instance.batch_id for instance in new)
        self.unowned += self._without(owners, new)
        self.booted |= {o.worker_id: o.instance_id for o in owners if o.boots and o.instance_id in running}

    def disown(self, owners: Sequence[Owner]) -> None:
        """Forget unowned instances that have a worker by now."""
        self.unowned = self._without(owners, self.unowned)

    def add_workers(self, workers: Sequence[Bound]) -> None:
        """Add live workers of the account, as read after the last page."""
        expected = [worker for worker in workers if worker.since < self._young]
        self._expected += len(expected)
        self._missing += [worker for worker in expected if worker.instance_id not in self.present]

    def findings(self, batches: Mapping[str, str], *, asked: Sequence[Orphan] = (), unconfirmed: str = "") -> Findings:
        """Findings once everything is added.

        `batches` maps each tag of an unowned instance to its state; unknown tags are absent. An instance is an orphan
        if no worker has it, unless the outcome of its batch is unknown. Those of an unknown batch are orphans at any
        age, since a batch is committed before its call, and what a restored database has lost is younger than its
        newest pass; so are those that an earlier pass has `asked` about, whose batch is known once another of its
        instances is adopted.

        An orphan is kept for a person if its batch is unknown, if there are too many, or while a restore is
        `unconfirmed` (the reason). Those that an earlier pass has `asked` about stay so, for its reason, whatever their
        number is now, until a person decides to end them.
        """
        questions = {orphan.instance_id for orphan in asked}
        found = [
            i
            for i in self.unowned
            if (i.batch_id not in batches or i.id in questions or i.created_at < self._young)
            and batches.get(i.batch_id) != BatchState.CALLING
        ]
        listed = len(self.present)
        orphans, kept = _judged(found if self.identity_matches else [], listed, batches, asked, unconfirmed)
        return Findings(orphans, kept, self._missing, self._implausible())

    def _implausible(self) -> str:
        unexpected = sum(worker.state not in ASKED_TO_STOP for worker in self._missing)
        if not self.identity_matches:
            return "the credentials belong to another account"
        if unexpected and not self.present:
            return "the listing is empty"
        if unexpected > IMPLAUSIBLE_SHARE * self._expected:
            return f"{unexpected} of {self._expected} instances went missing in one pass"
        return ""

    def _without(self, owners: Sequence[Owner], instances: Sequence[Instance]) -> list[Instance]:
        owned = {owner.instance_id for owner in owners if owner.ended_at is None or owner.ended_at >= self._young}
        return [instance for instance in instances if instance.id not in owned]


def _judged(
    found: Sequence[Instance],
    listed: int,
    batches: Mapping[str, str],
    asked: Sequence[Orphan],
    unconfirmed: str,
) -> tuple[list[str], list[Kept]]:
    """Orphans to terminate, and those that are kept for a person."""
    reasons = {orphan.instance_id: orphan.reason for orphan in asked}
    to_terminate = {orphan.instance_id for orphan in asked if orphan.decision == Action.TERMINATE}
    decided = [i for i in found if i.id in to_terminate]
    open_ = [i for i in found if i.id not in to_terminate]
    known = [i for i in open_ if i.batch_id in batches and i.id not in reasons]
    kept = [Kept(i, _noted(UNKNOWN_BATCH, i)) for i in open_ if i.batch_id not in batches]
    kept += [Kept(i, reasons[i.id]) for i in open_ if i.batch_id in batches and i.id in reasons]
    reason = unconfirmed
    if not reason and len(known) > ORPHANS_MAX and len(known) > IMPLAUSIBLE_SHARE * listed:
        reason = f"{len(known)} of {listed} instances have no worker, too many for one pass"
    if reason:
        kept += [Kept(i, _noted(reason, i)) for i in known]
        known = []
    if unconfirmed:
        kept += [Kept(i, _noted(unconfirmed, i)) for i in decided]
        decided = []
    return [i.id for i in (*decided, *known)], kept


def _noted(reason: str, instance: Instance) -> str:
    return f"{reason}; {instance.note}" if instance.note else reason
