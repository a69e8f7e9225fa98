"""Comparison of declared entries with the stored rows: the writes that make the rows match, the changes that people
see, and the dangers among them. Pure."""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

import msgspec

from slipway_api.http.declaration import Change
from slipway_common.base.audited import AuditedChange, AuditedKind
from slipway_common.base.revisions import hash_of
from slipway_common.declaration.changes import (
    DIGEST_CHARACTERS,
    Danger,
    Result,
    archived_danger,
    changes_digest,
    difference,
    removed_danger,
)
from slipway_provisioner.domain import guard, ownership, revisions, roll_out
from slipway_provisioner.domain.declaration import DeclarationRefused, Request
from slipway_provisioner.domain.operator import ENTRY
from slipway_provisioner.domain.revisions import (
    BODY,
    HEALTH_SETTINGS,
    PROVIDER_KEYS,
    DeclaredRevision,
    HealthSettings,
    RevisionRow,
    StoredRevision,
)
from slipway_provisioner.domain.roll_out import Drain

AUDITED_KINDS: Final = {
    "account": AuditedKind.ACCOUNT,
    "worker pool": AuditedKind.POOL,
    "launch config": AuditedKind.CONFIG,
}
"""Kinds in the audit of the kinds of declared objects."""


class AccountRow(msgspec.Struct, frozen=True, kw_only=True):
    """Account as declared, in the columns of its row."""

    id: str
    provider: str
    region: str
    identity: str
    lease_pool_id: str
    credential: dict[str, Any]
    request_timeout_seconds: float | None
    accepted_timeout_seconds: float | None
    limits: dict[str, Any]
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
    limits: dict[str, Any]
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
    deadlines: dict[str, float]
    task_slots: int


class StoredName(NameRow, frozen=True, kw_only=True):
    paused: bool
    declared: bool


class DeclaredConfig(DeclaredRevision, frozen=True, kw_only=True):
    """Launch config as declared: the columns of its name, and its revision.

    `own_profile`: the profile is its own, not its pool's.
    """

    base_weight: float
    price_factor: float
    max_capacity: int | None
    deadlines: dict[str, float]
    task_slots: int
    own_profile: bool


class DeclaredPool(msgspec.Struct, frozen=True, kw_only=True):
    """Worker pool as declared, with its launch configs."""

    row: PoolRow
    configs: tuple[DeclaredConfig, ...]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """Stored rows that a declaration may change, with all revisions of their launch configs by name."""

    accounts: Mapping[str, StoredAccount]
    pools: Mapping[str, StoredPool]
    names: Mapping[str, StoredName]
    revisions: Mapping[str, Sequence[StoredRevision]]


class History(msgspec.Struct, frozen=True, kw_only=True):
    """Change of a pool, in the columns of its history. `revisions` are those in force after it, by name."""

    pool_id: str
    owner: str
    revisions: dict[str, dict[str, str]]
    spec: dict[str, Any]
    spec_digest: str
    changes: list[dict[str, Any]]


class Fallback(msgspec.Struct, frozen=True, kw_only=True):
    """Fallback of a replacement, in the columns of its row."""

    id: str
    replaced_by: str
    drain_seconds: float | None
    drain_terminate: bool


class Health(HealthSettings, frozen=True, kw_only=True):
    """Changed health settings of one revision."""

    id: str


class Writes(msgspec.Struct, kw_only=True):
    """Writes that make the rows match a declaration, by the statement that makes them. `terms` are those of
    replacements; `replacements` are those in pools that exist."""

    terms: str
    new_accounts: list[AccountRow] = []
    accounts: list[AccountRow] = []
    used_accounts: set[str] = set()
    removed_accounts: list[str] = []
    new_pools: list[PoolRow] = []
    pools: list[PoolRow] = []
    removed_pools: list[str] = []
    new_names: list[NameRow] = []
    names: list[NameRow] = []
    removed_names: list[str] = []
    new_revisions: list[RevisionRow] = []
    current: list[str] = []
    fallbacks: list[Fallback] = []
    drains: list[Drain] = []
    health: list[Health] = []
    replacements: list[guard.Replacement] = []
    renewed: set[str] = set()
    changes: list[Change] = []
    dangers: list[Danger] = []
    audit: list[AuditedChange] = []
    history: list[History] = []

    @property
    def empty(self) -> bool:
        return not (self.changes or self.pools or self.accounts)

    @property
    def digest(self) -> str:
        """Digest of the changes with all that is declared by them, which a change does not show of what it creates, and
        with the terms of replacements."""
        declared: list[AccountRow | PoolRow] = [*self.new_accounts, *self.accounts, *self.new_pools, *self.pools]
        contents = [*(danger.text for danger in self.dangers), *(f"{row.owner} {row.spec_digest}" for row in declared)]
        return changes_digest(self.changes, [self.terms, *contents])


class Comparison:
    """Comparison of declared entries, one at a time, with a snapshot; collects the `writes`. `workers` is the
    number of serving workers by revision, `machines` that of workers with a launch call by account that moves."""

    def __init__(
        self,
        request: Request,
        seen: Snapshot,
        now: datetime,
        workers: Mapping[str, int],
        machines: Mapping[str, int] = {},
    ) -> None:
        self.request, self.seen, self.workers, self.machines = request, seen, workers, machines
        self.deadline = now + timedelta(seconds=request.drain_seconds) if request.drain_seconds is not None else None
        self.writes = Writes(terms=request.terms)
        self._by_pool: dict[str, list[StoredName]] = {}
        self._pool_of_name: dict[str, str] = {}
        for stored in seen.names.values():
            self._by_pool.setdefault(stored.pool_id, []).append(stored)

    def account(self, wanted: AccountRow, released: Collection[str]) -> None:
        """Compare an account. `released`: owners that may lose it."""
        stored = self.seen.accounts.get(wanted.id)
        live = stored if stored is not None and not stored.removed else None
        if live is not None:
            ownership.check("account", live.id, live.owner, wanted.owner, self.request, released)
        if stored is not None:
            machines = self.machines.get(wanted.id, 0)
            self.writes.dangers += guard.of_account(wanted.id, _location(stored), _location(wanted), machines)
        result: Result = "created" if stored is None else "updated" if live is not None else "reactivated"
        before = _declared(live) if live is not None else {}
        after = {name: value for name, value in _declared(wanted).items() if live is None or before.get(name) != value}
        if live is None or after:
            gone = {name: before[name] for name in after if name in before}
            self._changed("account", wanted.id, result, gone, after)
        (self.writes.new_accounts if stored is None else self.writes.accounts).append(wanted)

    def pool(self, declared: DeclaredPool, released: Collection[str]) -> None:
        """Compare a worker pool with its launch configs. `released`: owners that may lose it."""
        wanted = declared.row
        stored = self.seen.pools.get(wanted.id)
        live = stored if stored is not None and not stored.deleted else None
        if live is not None:
            ownership.check("worker pool", live.id, live.owner, wanted.owner, self.request, released)
        before = len(self.writes.changes)
        fields = _different(live, wanted, _columns(PoolRow))
        result: Result = "created" if stored is None else "updated" if live is not None else "reactivated"
        if live is None or fields:
            self._changed("worker pool", wanted.id, result, _picked(live, fields), _picked(wanted, fields))
        inherited = set(fields).intersection(HEALTH_SETTINGS) if live is not None else set[str]()
        current = [self._config(config, inherited, wanted) for config in declared.configs]
        self._leave_out(wanted.id, {config.name for config in declared.configs})
        if live is not None:
            serving = self._serving(self._by_pool.get(wanted.id, ()))
            self.writes.dangers += guard.of_pool(_limits(live), _limits(wanted), serving)
        made = self.writes.changes[before:]
        if made or (live is not None and live.spec_digest != wanted.spec_digest):
            (self.writes.new_pools if stored is None else self.writes.pools).append(wanted)
        if made:
            self._record(wanted, current, made)

    def remove_account(self, id_: str) -> None:
        self.writes.removed_accounts.append(id_)
        self._changed("account", id_, "archived", _declared(self.seen.accounts[id_]), {})

    def remove_pool(self, id_: str) -> None:
        """Remove a worker pool: its launch configs drain."""
        stored, before = self.seen.pools[id_], len(self.writes.changes)
        self.writes.removed_pools.append(id_)
        self._changed("worker pool", id_, "archived", _picked(stored, _columns(PoolRow)), {})
        self._leave_out(id_, set(), removed=True)
        serving = self._serving(self._by_pool.get(id_, ()))
        self.writes.dangers.append(removed_danger("worker pool", id_, guard.drained(serving)))
        self.writes.history.append(
            History(
                pool_id=id_,
                owner=stored.owner,
                revisions={},
                spec={},
                spec_digest="",
                changes=[msgspec.to_builtins(made) for made in self.writes.changes[before:]],
            )
        )

    def _config(self, config: DeclaredConfig, inherited: Collection[str], pool: PoolRow) -> RevisionRow:
        """Compare a launch config; returns its current revision. Changes of `inherited` settings are listed with the
        pool."""
        self._claim(config)
        stored, known = self.seen.names.get(config.name), self.seen.revisions.get(config.name, ())
        wanted = revision_of(config, known)
        row = NameRow(
            name=config.name,
            pool_id=config.pool_id,
            current_id=wanted.id,
            base_weight=config.base_weight,
            price_factor=config.price_factor,
            max_capacity=config.max_capacity,
            deadlines=config.deadlines,
            task_slots=config.task_slots,
        )
        before, after = _described(stored, known), _described(row, [wanted])
        by_pool = set(inherited) - ({"profile"} if config.own_profile else set())
        fields = [field for field in after if field not in by_pool and before.get(field) != after[field]]
        reused = any(revision.id == wanted.id for revision in known)
        moved = stored is None or not stored.declared or stored.current_id != wanted.id
        ending = self._others_do(wanted, known).drain_ids if self.request.ends_others and not moved else ()
        if stored is None:
            self.writes.new_names.append(row)
        elif fields or not stored.declared or ending or self.seen.pools[pool.id].owner != pool.owner:
            self.writes.names.append(row)
            self._guard_maximum(stored, config, pool)
        if moved:
            self._replace(wanted, known, reused=reused)
        self._drain(ending, f"replaced by {wanted.id}")
        self._adapt(wanted, known)
        if ending:
            fields, before = [*fields, "ending"], before | {"ending": None}
            seconds = self.request.drain_seconds
            after["ending"] = ", ".join(ending) + (f", within {seconds:g} s" if seconds is not None else "")
        if fields or moved:
            result: Result = "reactivated" if moved and reused else "updated" if before else "created"
            gone = {field: before[field] for field in fields if field in before}
            self._changed("launch config", config.name, result, gone or None, {field: after[field] for field in fields})
        return wanted

    def _guard_maximum(self, stored: StoredName, config: DeclaredConfig, pool: PoolRow) -> None:
        """Note the danger of another maximum of a launch config. Without its own it has that of its pool."""
        before = self.seen.pools[pool.id].max_capacity if stored.max_capacity is None else stored.max_capacity
        after = pool.max_capacity if config.max_capacity is None else config.max_capacity
        if stored.declared and stored.max_capacity != config.max_capacity:
            serving = self._serving([stored])
            self.writes.dangers += guard.of_maximum("launch config", config.name, before, after, serving)

    def _serving(self, names: Iterable[StoredName]) -> int:
        """Number of serving workers of launch configs, of all revisions."""
        return sum(
            self.workers.get(revision.id, 0) for name in names for revision in self.seen.revisions.get(name.name, ())
        )

    def _claim(self, config: DeclaredConfig) -> None:
        """Raise DeclarationRefused if another launch config has the name."""
        name, stored = config.name, self.seen.names.get(config.name)
        other = stored.pool_id if stored is not None else self._pool_of_name.get(name, config.pool_id)
        if other != config.pool_id:
            raise DeclarationRefused(
                f"launch config {name} of worker pool {config.pool_id}: the name belongs to worker pool {other}; "
                "use another name"
            )
        self._pool_of_name[name] = config.pool_id

    def _replace(self, wanted: RevisionRow, known: Sequence[StoredRevision], *, reused: bool) -> None:
        """Make a revision the current one of its name, and give the others their parts."""
        request = self.request
        self.writes.used_accounts.add(wanted.account_id)
        if reused:
            self.writes.current.append(wanted.id)
            former = next(revision for revision in known if revision.id == wanted.id)
            self.writes.dangers += guard.of_return(former)
            if former.state == "archived":
                self.writes.renewed.add(wanted.id)
        else:
            self.writes.new_revisions.append(wanted)
        others_do = self._others_do(wanted, known)
        self._note(wanted, known, others_do.fallback_id)
        if others_do.fallback_id is not None:
            self.writes.fallbacks.append(
                Fallback(
                    id=others_do.fallback_id,
                    replaced_by=request.strategy,
                    drain_seconds=request.drain_seconds,
                    drain_terminate=request.terminate,
                )
            )
        self._drain(others_do.drain_ids, f"replaced by {wanted.id}")

    def _note(self, wanted: RevisionRow, known: Sequence[StoredRevision], fallback_id: str | None) -> None:
        """Note a replacement, but not in a new pool, which has nothing to lose."""
        name, pool = self.seen.names.get(wanted.name), self.seen.pools.get(wanted.pool_id)
        if pool is not None and not pool.deleted:
            by_id = {revision.id: revision for revision in known}
            replaced = by_id.get(name.current_id) if name is not None and name.declared else None
            fallback = by_id[fallback_id] if fallback_id is not None else None
            self.writes.replacements.append(guard.Replacement(target=wanted, replaced=replaced, fallback=fallback))

    def _others_do(self, wanted: RevisionRow, known: Sequence[StoredRevision]) -> roll_out.Steps:
        """Steps for the other revisions of a name, but for those that end in time already."""
        request, stored = self.request, self.seen.names.get(wanted.name)
        others = [
            roll_out.Revision(
                id=revision.id,
                state=revision.state,
                current=stored is not None and stored.current_id == revision.id,
                proven=revision.proven,
            )
            for revision in known
            if revision.id == wanted.id or not revision.ends_by(self.deadline)
        ]
        return roll_out.replace(others, wanted.id, request.strategy, terminate=request.terminate)

    def _adapt(self, wanted: RevisionRow, known: Iterable[StoredRevision]) -> None:
        """Give the kept revisions of a name its health settings."""
        health = {name: getattr(wanted, name) for name in HEALTH_SETTINGS}
        self.writes.health += [
            Health(id=revision.id, **health)
            for revision in known
            if (revision.state != "archived" or revision.id == wanted.id)
            and any(getattr(revision, name) != value for name, value in health.items())
        ]

    def _leave_out(self, pool_id: str, kept: Collection[str], *, removed: bool = False) -> None:
        """Archive the launch configs of a pool that are no longer declared."""
        declared = [stored for stored in self._by_pool.get(pool_id, ()) if stored.declared]
        gone = [stored for stored in declared if stored.name not in kept]
        drainable = partial(roll_out.may_drain, strategy=self.request.strategy, terminate=self.request.terminate)
        for stored in gone:
            self.writes.removed_names.append(stored.name)
            known = self.seen.revisions.get(stored.name, ())
            drains = [revision.id for revision in known if drainable(revision.state)]
            self._drain(drains, "the launch config is no longer declared")
            paused = {"paused": True} if stored.paused else {}
            self._changed("launch config", stored.name, "archived", _described(stored, known) | paused, {})
        active_names = {stored.name for stored in declared if not stored.paused}
        if not removed:
            archived = sum(stored.name in active_names for stored in gone)
            added = len(kept) - len(declared) + len(gone)
            drained = guard.drained(self._serving(gone))
            danger = archived_danger(
                pool_id, active=len(active_names), archived=archived, added=added, consequence=drained
            )
            self.writes.dangers += [danger] if danger is not None else []

    def _drain(self, ids: Iterable[str], reason: str) -> None:
        request = self.request
        self.writes.drains += [
            Drain(
                id=id_,
                state_reason=f"{reason}: {request.reason}" if request.reason else reason,
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
        before, after = _without_secrets(before or {}), _without_secrets(after)
        detail = ", ".join(_differences(before, after)) if result in ("updated", "reactivated") else ""
        self.writes.changes.append(Change(kind=kind, id=id_, result=result, detail=detail))
        self.writes.audit.append(
            AuditedChange(
                kind=AUDITED_KINDS[kind], subject_id=id_, result=result, before=before or None, after=after or None
            )
        )

    def _record(self, wanted: PoolRow, current: Iterable[RevisionRow], made: Sequence[Change]) -> None:
        self.writes.history.append(
            History(
                pool_id=wanted.id,
                owner=wanted.owner,
                revisions=revisions.in_force(current),
                spec=wanted.spec,
                spec_digest=wanted.spec_digest,
                changes=[msgspec.to_builtins(change) for change in made],
            )
        )


def revision_of(config: DeclaredConfig, known: Iterable[StoredRevision]) -> RevisionRow:
    """Revision that a declared launch config stands for, among the `known` ones of its name or a new one."""
    stored = {revision.id: revision for revision in known}
    id_ = revisions.revision_id(config.name, config.digest, {each.id: each.digest for each in stored.values()})
    given = {name: getattr(config, name) for name in DeclaredRevision.__struct_fields__}
    by_provider = {name: getattr(stored[id_], name) for name in PROVIDER_KEYS} if id_ in stored else {}
    return RevisionRow(id=id_, **given, **by_provider)


def _limits(pool: PoolRow) -> guard.Limits:
    return guard.Limits(id=pool.id, minimum=pool.min_capacity, maximum=pool.max_capacity, mode=pool.mode)


def moves(stored: StoredAccount | None, wanted: AccountRow) -> bool:
    """True if the declaration changes where the machines of an account are."""
    return stored is not None and _location(stored) != _location(wanted)


def _location(account: AccountRow) -> guard.Location:
    return guard.Location(
        provider=account.provider,
        region=account.region,
        identity=account.identity,
        entry=account.settings.get(ENTRY),
    )


def _declared(account: AccountRow) -> dict[str, Any]:
    """Fields of an account as declared, with its owner."""
    return {name: value for name, value in account.spec.items() if name != "id"} | {"owner": account.owner}


def _columns(row: type[msgspec.Struct]) -> list[str]:
    """Columns that people see of a declared row."""
    return [name for name in row.__struct_fields__ if name not in ("id", "spec", "spec_digest")]


def _different(stored: Any, wanted: Any, fields: Sequence[str]) -> list[str]:
    """Fields whose declared value is not the stored one; all of them for a row that does not exist."""
    return [name for name in fields if stored is None or getattr(stored, name) != getattr(wanted, name)]


def _picked(row: Any, fields: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(row, name) for name in fields} if row is not None else {}


def _described(name: NameRow | None, known: Iterable[RevisionRow]) -> dict[str, Any]:
    """Fields of a launch config and of its current revision, for people."""
    current = next((revision for revision in known if name is not None and revision.id == name.current_id), None)
    if name is None or current is None:
        return {}
    fields = ("base_weight", "price_factor", "max_capacity", "deadlines", "task_slots")
    of_name = {field: getattr(name, field) for field in fields}
    return (
        {"revision": hash_of(current.id)}
        | {field: getattr(current, field) for field in (*BODY, *HEALTH_SETTINGS)}
        | of_name
    )


def _without_secrets(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an object for people, with digests of what may hold secrets: each setting, and user data."""
    shown = dict(fields)
    if "settings" in shown:
        shown["settings"] = {key: _digest(value) for key, value in shown["settings"].items()}
    if "user_data" in shown:
        shown["user_data"] = _digest(shown["user_data"]) if shown["user_data"] else "default"
    return shown


def _digest(value: Any) -> str:
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()[:DIGEST_CHARACTERS]


def _differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterable[str]:
    """Differing fields for people, for example `zone: a → b`; of settings only the keys that differ."""
    for field, value in after.items():
        old = before.get(field)
        if field == "ending":
            yield f"drains at once: {value}"
        elif field == "deadlines":
            seconds = old or {}
            for key in sorted(seconds.keys() | value.keys()):
                if seconds.get(key) != value.get(key):
                    yield difference(f"deadlines.{key}", seconds.get(key), value.get(key))
        elif field == "settings":
            digests = old or {}
            for key in sorted(digests.keys() | value.keys()):
                if digests.get(key) != value.get(key):
                    state = "removed" if key not in value else "changed" if key in digests else "added"
                    yield f"settings.{key}: {state}"
        elif old != value:
            yield difference(field, old, value)
