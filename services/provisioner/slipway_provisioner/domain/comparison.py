"""Comparison of declared entries with the stored rows: the steps that make the rows match, the changes that people see,
and what of it is dangerous. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from slipway_common.declaration.changes import Change, Result, archived_danger, maximum_danger, removed_danger
from slipway_common.declaration.identity import config_name
from slipway_common.declaration.models import Account, LaunchConfig, WorkerPool
from slipway_common.declaration.strict_yaml import DocumentProblem, Invalid
from slipway_provisioner.domain import ownership, revisions, roll_out
from slipway_provisioner.domain.declaration import DeclarationRefused, Given, Index, Request
from slipway_provisioner.domain.revisions import BODY, JUDGED, Revision, StoredRevision
from slipway_provisioner.domain.roll_out import Drain

DECLARED: Final = ("owner", "spec", "spec_digest")
"""Columns of what was declared, beside the columns that it sets."""


class AccountRow(msgspec.Struct, frozen=True, kw_only=True):
    """Account as declared, in the columns of its row."""

    id: str
    provider: str
    region: str
    identity: str
    lease_pool_id: str
    settings: dict[str, Any]
    owner: str
    spec: dict[str, Any]
    spec_digest: str


class StoredAccount(AccountRow, frozen=True, kw_only=True):
    removed: bool


class PoolRow(msgspec.Struct, frozen=True, kw_only=True):
    """Worker pool as declared, in the columns of its row."""

    id: str
    min_capacity: int
    max_capacity: int
    scaling_ratio: str
    mode: str
    profile: str
    boot_evidence: str
    claim_evidence: str
    on_bad_image: str
    freeze_after: int
    drain_seconds: float | None
    owner: str
    spec: dict[str, Any]
    spec_digest: str


class StoredPool(PoolRow, frozen=True, kw_only=True):
    deleted: bool
    revision: int


class NameRow(msgspec.Struct, frozen=True, kw_only=True):
    """Launch config as declared, in the columns of its name's row."""

    name: str
    pool_id: str
    current_id: str
    base_weight: float
    price_factor: float
    max_capacity: int | None


class StoredName(NameRow, frozen=True, kw_only=True):
    paused: bool
    declared: bool


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Stored rows that a declaration may change, with all revisions of their launch configs by name."""

    accounts: Mapping[str, StoredAccount]
    pools: Mapping[str, StoredPool]
    names: Mapping[str, StoredName]
    revisions: Mapping[str, Sequence[StoredRevision]]


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """Change of one declared object, in the columns of the audit: the fields that changed, before and after."""

    kind: str
    subject_id: str
    result: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Change of a pool, in the columns of its history."""

    pool_id: str
    owner: str
    spec: dict[str, Any]
    spec_digest: str
    changes: list[dict[str, Any]]


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """Fallback of a replacement, in the columns of its row."""

    id: str
    replaced_by: str
    drain_seconds: float | None
    drain_terminate: bool


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Changed health settings of one revision."""

    id: str
    profile: str
    boot_evidence: str
    claim_evidence: str
    on_bad_image: str
    freeze_after: int


class Steps(msgspec.Struct, kw_only=True):
    """Writes that make the rows match a declaration, by the statement that makes them."""

    accounts: list[AccountRow] = []
    removed_accounts: list[str] = []
    new_pools: list[PoolRow] = []
    pools: list[PoolRow] = []
    removed_pools: list[str] = []
    new_names: list[NameRow] = []
    names: list[NameRow] = []
    removed_names: list[str] = []
    new_revisions: list[Revision] = []
    current: list[str] = []
    fallbacks: list[Fallback] = []
    drains: list[Drain] = []
    health: list[Health] = []
    created_pools: set[str] = set()
    renewed: set[str] = set()
    changes: list[Change] = []
    dangers: list[str] = []
    audit: list[Audit] = []
    history: list[History] = []

    @property
    def empty(self) -> bool:
        return not (self.changes or self.pools or self.accounts)


class Comparison:
    """Comparison of declared entries, one at a time, with a snapshot; collects `steps`."""

    def __init__(self, request: Request, index: Index, seen: Snapshot, regions: Mapping[str, str]) -> None:
        self.request, self.index, self.seen = request, index, seen
        self.regions = regions
        self.steps = Steps()
        self._by_pool: dict[str, list[StoredName]] = {}
        self._pool_of_name: dict[str, str] = {}
        for stored in seen.names.values():
            self._by_pool.setdefault(stored.pool_id, []).append(stored)

    def account(self, given: Given[Account], released: Collection[str]) -> None:
        """Compare an account. `released`: owners that declare nothing of this section any more."""
        stored = self.seen.accounts.get(given.entry.id)
        wanted = account_row(given)
        live = stored if stored is not None and not stored.removed else None
        if live is not None:
            ownership.check("account", live.id, live.owner, given.owner, self.request, released)
        result: Result = "created" if stored is None else "updated" if live is not None else "reactivated"
        fields = _different(live, wanted, _columns(AccountRow))
        if live is None or fields:
            self._changed("account", wanted.id, result, _picked(live, fields), _picked(wanted, fields))
        self.steps.accounts.append(wanted)

    def pool(self, given: Given[WorkerPool], released: Collection[str]) -> None:
        """Compare a worker pool with its launch configs. `released`: owners that may lose it."""
        pool, wanted = given.entry, pool_row(given)
        stored = self.seen.pools.get(pool.id)
        live = stored if stored is not None and not stored.deleted else None
        if live is not None:
            ownership.check("worker pool", live.id, live.owner, given.owner, self.request, released)
        before = len(self.steps.changes)
        fields = _different(live, wanted, _columns(PoolRow))
        result: Result = "created" if stored is None else "updated" if live is not None else "reactivated"
        if live is None or fields:
            self._changed("worker pool", pool.id, result, _picked(live, fields), _picked(wanted, fields))
        inherited = set(fields).intersection(JUDGED) if live is not None else set[str]()
        self._check_accounts(pool)
        for config in pool.launch_configs:
            self._config(pool, config, inherited, live)
        names = {config_name(pool, config) for config in pool.launch_configs}
        self._leave_out(pool.id, names)
        if live is not None:
            self._danger(maximum_danger("worker pool", pool.id, live.max_capacity, wanted.max_capacity))
        made = self.steps.changes[before:]
        if made or (live is not None and live.spec_digest != wanted.spec_digest):
            (self.steps.new_pools if stored is None else self.steps.pools).append(wanted)
        if live is None:
            self.steps.created_pools.add(pool.id)
        if made:
            self._record(wanted, made)

    def remove_account(self, id_: str) -> None:
        self.steps.removed_accounts.append(id_)
        self._changed("account", id_, "archived", _picked(self.seen.accounts[id_], _columns(AccountRow)), {})

    def remove_pool(self, id_: str) -> None:
        """Remove a worker pool: its launch configs drain."""
        stored, before = self.seen.pools[id_], len(self.steps.changes)
        self.steps.removed_pools.append(id_)
        self._changed("worker pool", id_, "archived", _picked(stored, _columns(PoolRow)), {})
        self._leave_out(id_, set(), removed=True)
        self._danger(removed_danger("worker pool", id_))
        self.steps.history.append(
            History(
                pool_id=id_,
                owner=stored.owner,
                spec={},
                spec_digest="",
                changes=[msgspec.to_builtins(made) for made in self.steps.changes[before:]],
            )
        )

    def _check_accounts(self, pool: WorkerPool) -> None:
        declared = ", ".join(sorted(self.regions)[:10]) or "none"
        problems = [
            DocumentProblem(
                f"worker pool {pool.id}: launch_configs[{number}].account",
                f"no account {config.account!r} is declared; declared: {declared}",
            )
            for number, config in enumerate(pool.launch_configs)
            if config.account not in self.regions
        ]
        if problems:
            raise Invalid(problems)

    def _config(
        self, pool: WorkerPool, config: LaunchConfig, inherited: Collection[str], live: StoredPool | None
    ) -> None:
        """Compare a launch config. Changes of `inherited` settings are listed with the pool."""
        name = self._claimed(pool, config)
        stored, known = self.seen.names.get(name), self.seen.revisions.get(name, ())
        wanted = revisions.revision(
            pool,
            config,
            name=name,
            region=self.regions[config.account],
            known={revision.id: revision.digest for revision in known},
        )
        row = NameRow(
            name=name,
            pool_id=pool.id,
            current_id=wanted.id,
            base_weight=config.base_weight,
            price_factor=config.price_factor,
            max_capacity=config.max_capacity,
        )
        before = _described(stored, known)
        after = _described(row, [wanted])
        by_pool = set(inherited) - ({"profile"} if config.profile else set())
        fields = [field for field in after if field not in by_pool and before.get(field) != after[field]]
        if stored is None:
            self.steps.new_names.append(row)
        elif fields or not stored.declared:
            self.steps.names.append(row)
            if stored.max_capacity is not None and live is not None:
                most = pool.max_capacity if config.max_capacity is None else config.max_capacity
                self._danger(maximum_danger("launch config", name, stored.max_capacity, most))
        reused = any(revision.id == wanted.id for revision in known)
        moved = stored is None or not stored.declared or stored.current_id != wanted.id
        if moved:
            self._replace(wanted, known, reused=reused)
        self._adapt(wanted, known)
        if fields or moved:
            result: Result = "reactivated" if moved and reused else "updated" if before else "created"
            gone = {field: before[field] for field in fields if field in before}
            self._changed("launch config", name, result, gone or None, {field: after[field] for field in fields})

    def _claimed(self, pool: WorkerPool, config: LaunchConfig) -> str:
        """Name of a launch config; raises DeclarationRefused if another one has it."""
        name = config_name(pool, config)
        stored = self.seen.names.get(name)
        other = stored.pool_id if stored is not None else self._pool_of_name.get(name, pool.id)
        if other != pool.id:
            raise DeclarationRefused(
                f"launch config {name} of worker pool {pool.id}: the name belongs to worker pool {other}; "
                "use another name"
            )
        if name in self._pool_of_name:
            raise DeclarationRefused(f"launch config {name}: worker pool {pool.id} declares the name twice")
        self._pool_of_name[name] = pool.id
        return name

    def _replace(self, wanted: Revision, known: Sequence[StoredRevision], *, reused: bool) -> None:
        """Make a revision the current one of its name, and give the others their parts."""
        request, stored = self.request, self.seen.names.get(wanted.name)
        if reused:
            self.steps.current.append(wanted.id)
            if any(revision.id == wanted.id and revision.state == "archived" for revision in known):
                self.steps.renewed.add(wanted.id)
        else:
            self.steps.new_revisions.append(wanted)
        others = [
            roll_out.Revision(
                id=revision.id,
                state=revision.state,
                current=stored is not None and stored.current_id == revision.id,
                proven=revision.proven,
            )
            for revision in known
        ]
        steps = roll_out.replace(others, wanted.id, request.strategy)
        if steps.fallback_id is not None:
            self.steps.fallbacks.append(
                Fallback(
                    id=steps.fallback_id,
                    replaced_by=request.strategy,
                    drain_seconds=request.drain_seconds,
                    drain_terminate=request.terminate,
                )
            )
        self._drain(steps.drain_ids, f"replaced by {wanted.id}")

    def _adapt(self, wanted: Revision, known: Iterable[StoredRevision]) -> None:
        """Give the kept revisions of a name its health settings."""
        health = {name: getattr(wanted, name) for name in JUDGED}
        self.steps.health += [
            Health(id=revision.id, **health)
            for revision in known
            if (revision.state != "archived" or revision.id == wanted.id)
            and any(getattr(revision, name) != value for name, value in health.items())
        ]

    def _leave_out(self, pool_id: str, kept: Collection[str], *, removed: bool = False) -> None:
        """Archive the launch configs of a pool that are no longer declared."""
        declared = [stored for stored in self._by_pool.get(pool_id, ()) if stored.declared]
        gone = [stored for stored in declared if stored.name not in kept]
        for stored in gone:
            self.steps.removed_names.append(stored.name)
            known = self.seen.revisions.get(stored.name, ())
            active = [revision.id for revision in known if revision.state == "active"]
            self._drain(active, "the launch config is no longer declared")
            self._changed("launch config", stored.name, "archived", _described(stored, known), {})
        active_names = {stored.name for stored in declared if not stored.paused}
        if not removed:
            archived = sum(stored.name in active_names for stored in gone)
            added = len(kept) - len(declared) + len(gone)
            self._danger(archived_danger(pool_id, active=len(active_names), archived=archived, added=added))

    def _drain(self, ids: Iterable[str], reason: str) -> None:
        request = self.request
        self.steps.drains += [
            Drain(
                id=id_,
                state_reason=request.reason or reason,
                state_by=request.by,
                replaced_by=request.strategy,
                drain_seconds=request.drain_seconds,
                drain_terminate=request.terminate,
            )
            for id_ in ids
        ]

    def _changed(
        self, kind: str, id_: str, result: Result, before: dict[str, Any] | None, after: dict[str, Any]
    ) -> None:
        detail = ", ".join(_differences(before or {}, after)) if result in ("updated", "reactivated") else ""
        self.steps.changes.append(Change(kind=kind, id=id_, result=result, detail=detail))
        self.steps.audit.append(
            Audit(kind=kind, subject_id=id_, result=result, before=before or None, after=after or None)
        )

    def _danger(self, danger: str) -> None:
        if danger:
            self.steps.dangers.append(danger)

    def _record(self, wanted: PoolRow, made: Sequence[Change]) -> None:
        self.steps.history.append(
            History(
                pool_id=wanted.id,
                owner=wanted.owner,
                spec=wanted.spec,
                spec_digest=wanted.spec_digest,
                changes=[msgspec.to_builtins(change) for change in made],
            )
        )


def account_row(given: Given[Account]) -> AccountRow:
    account = given.entry
    return AccountRow(
        id=account.id,
        provider=account.provider,
        region=account.region,
        identity=account.identity,
        lease_pool_id=account.lease_pool,
        settings=dict(account.settings),
        owner=given.owner,
        spec=given.spec,
        spec_digest=given.digest,
    )


def pool_row(given: Given[WorkerPool]) -> PoolRow:
    pool = given.entry
    return PoolRow(
        id=pool.id,
        min_capacity=pool.min_capacity,
        max_capacity=pool.max_capacity,
        scaling_ratio=str(pool.scaling_ratio),
        mode=pool.mode,
        drain_seconds=pool.drain_seconds,
        **revisions.health_settings(pool),
        owner=given.owner,
        spec=given.spec,
        spec_digest=given.digest,
    )


def _columns(row: type[msgspec.Struct]) -> list[str]:
    """Columns that people see of a declared row."""
    return [name for name in row.__struct_fields__ if name not in ("id", "spec", "spec_digest")]


def _different(stored: Any, wanted: Any, fields: Sequence[str]) -> list[str]:
    """Fields whose declared value is not the stored one; all of them for a row that does not exist."""
    return [name for name in fields if stored is None or getattr(stored, name) != getattr(wanted, name)]


def _picked(row: Any, fields: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in fields} if row is not None else {}


def _described(name: NameRow | None, known: Iterable[Revision]) -> dict[str, Any]:
    """Fields of a launch config and of its current revision, for people."""
    current = next((revision for revision in known if name is not None and revision.id == name.current_id), None)
    if name is None or current is None:
        return {}
    of_name = {field: getattr(name, field) for field in ("base_weight", "price_factor", "max_capacity")}
    _, hash_ = revisions.split(current.id)
    return {"revision": hash_} | {field: getattr(current, field) for field in (*BODY, *JUDGED)} | of_name


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterable[str]:
    """Differing fields for people, for example `zone: a → b`; of settings only the keys that differ."""
    for field, value in after.items():
        old = before.get(field)
        if isinstance(old, dict) and isinstance(value, dict):
            for key in sorted(old.keys() | value.keys()):
                if old.get(key) != value.get(key):
                    yield f"{field}.{key}: {old.get(key)} → {value.get(key)}"
        elif old != value:
            yield f"{field}: {old} → {value}"
