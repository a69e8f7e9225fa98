"""Reads declared entries one by one: validates those that are not stored alike, and turns them into rows."""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec

from slipway_common.declaration.identity import Identities, Place, canonical_body, config_name
from slipway_common.declaration.models import Account, LaunchConfig, LeasePool, Limits, WorkerPool
from slipway_common.declaration.parsing import PROBLEMS_MAX, parse_entry
from slipway_common.declaration.strict_yaml import DocumentProblem, Invalid, path_text
from slipway_provisioner.domain import accounting, user_data
from slipway_provisioner.domain.comparison import AccountRow, DeclaredConfig, DeclaredPool, PoolRow
from slipway_provisioner.domain.declaration import (
    Calls,
    DeclarationRefused,
    Document,
    Grants,
    Index,
    Known,
    Owners,
    Times,
)
from slipway_provisioner.providers.port import Provider

SECTIONS: Final = {"account": "accounts", "worker_pool": "worker_pools", "lease_pool": "lease_pools"}
"""Section of slipway.yaml by the kind of its entries."""


class GivenPool(msgspec.Struct, frozen=True):
    """Declared worker pool: its owner, its declaration as JSON and as a model, and the digest of the JSON."""

    owner: str
    spec: dict[str, Any]
    digest: str
    pool: WorkerPool

    def names(self) -> list[str]:
        """Names of its launch configs."""
        return [config_name(self.pool, config) for config in self.pool.launch_configs]

    def rows(self, regions: Mapping[str, str], *, mode: str) -> DeclaredPool:
        """The pool and its launch configs in the columns of their rows, in this `mode` if it declares none. Raises
        Invalid for an account that is not among the `regions`, the accounts with the region of each."""
        pool = self.pool
        unknown = [
            DocumentProblem(
                f"worker pool {pool.id}: launch_configs[{number}].account",
                f"no account {config.account!r} is declared; declared: {', '.join(sorted(regions)[:10]) or 'none'}",
                document=self.owner,
            )
            for number, config in enumerate(pool.launch_configs)
            if config.account not in regions
        ]
        problems = unknown or [
            DocumentProblem(f"worker pool {pool.id}: launch_configs[{number}]", reason, document=self.owner)
            for number, config in enumerate(pool.launch_configs)
            if (reason := user_data.size_problem(pool.user_data or "", _values(pool, config, regions)))
        ]
        if problems:
            raise Invalid(problems[:PROBLEMS_MAX], max(0, len(problems) - PROBLEMS_MAX))
        return DeclaredPool(
            row=PoolRow(
                id=pool.id,
                min_capacity=pool.min_capacity,
                max_capacity=pool.max_capacity,
                scaling_ratio=str(pool.scaling_ratio),
                mode=pool.mode or mode,
                limits=_limits(pool.limits),
                **_health_settings(pool),
                owner=self.owner,
                spec=self.spec,
                spec_digest=self.digest,
            ),
            configs=tuple(_config(pool, config, regions[config.account]) for config in pool.launch_configs),
        )


class Declared(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a request declares. `unchanged`: section and id of entries that are stored alike, with owners."""

    documents: list[Document] = []
    accounts: dict[str, AccountRow] = {}
    pools: dict[str, GivenPool] = {}
    unchanged: dict[tuple[str, str], str] = {}

    def owners(self, section: str) -> Owners:
        """Owners of a section, and of its declared entries."""
        changed = self.accounts if section == "accounts" else self.pools
        entries = {id_: given.owner for id_, given in changed.items()}
        entries |= {id_: owner for (of, id_), owner in self.unchanged.items() if of == section}
        documents = {document.owner for document in self.documents if section in document.sections}
        return Owners(entries=entries, documents=frozenset(documents))


class DeclaredReader:
    """Reader of declared entries. Raises Invalid with the problems of all entries when it has read them."""

    def __init__(self, index: Index, *, providers: Mapping[str, Provider], times: Times, skips: bool = True) -> None:
        """`skips`: entries that are stored alike are not compared further."""
        self._index, self._skips = index, skips
        self._providers, self._times = providers, times
        self._places: dict[str, int] = {}
        self._identities = Identities()
        self._problems: list[DocumentProblem] = []
        self._lease_pools: list[Grants] = []
        self.declared = Declared()

    def document(self, owner: str, sections: Iterable[str]) -> None:
        """Begin the document of an owner."""
        self.declared.documents.append(Document(owner, frozenset(sections)))
        self._places = {}

    def entry(self, section: str, text: bytes | msgspec.Raw) -> None:
        """Read the next entry of a section, as JSON. Raises msgspec.DecodeError if it is not."""
        if not self.declared.documents:
            raise Invalid([DocumentProblem(section, "no document has begun: its first line has a version")])
        place = self._places[section] = self._places.get(section, -1) + 1
        owner, id_ = self.declared.documents[-1].owner, _id(text)
        # The texts of our own clients are canonical, so that most entries need not even be decoded.
        if not self._stored_alike(section, id_, owner, sha256(text).hexdigest()):
            body = msgspec.json.decode(text)
            try:
                entry = parse_entry(section, place, body)
            except Invalid as error:
                self._refuse(error.problems)
                return
            id_ = entry.id
            self._add(section, owner, entry)
        found = self._identities.claim(section, id_ or "", Place(owner, (section, place, "id")))
        self._refuse(DocumentProblem(path_text(path), reason) for path, reason in found)

    def finished(self) -> Declared:
        """All that was declared. Raises Invalid if there were problems, and DeclarationRefused for lease pools whose
        grants would not last."""
        if self._problems:
            raise Invalid(self._problems)
        declared = self.declared.accounts
        own = [Calls(**{name: getattr(row, name) for name in Calls.__struct_fields__}) for row in declared.values()]
        own += [calls for calls in self._index.calls if calls.id not in declared]
        by_lease_pool: dict[str, list[Calls]] = {}
        for calls in own:
            by_lease_pool.setdefault(calls.lease_pool_id, []).append(calls)
        accepting = {name for name, provider in self._providers.items() if provider.accepts_calls}
        for pool in self._lease_pools:
            if problem := self._times.problem(pool, by_lease_pool.get(pool.id, ()), accepting):
                raise DeclarationRefused(problem)
        return self.declared

    def _stored_alike(self, section: str, id_: str | None, owner: str, digest: str) -> bool:
        if not self._skips or section == "lease_pools" or id_ is None:
            return False
        if self._index.of(section).get(id_) != Known(owner, digest):
            return False
        self.declared.unchanged[section, id_] = owner
        return True

    def _add(self, section: str, owner: str, entry: Account | LeasePool | WorkerPool) -> None:
        if isinstance(entry, LeasePool):
            self._lease_pools.append(
                Grants(id=entry.id, reserve_seconds=entry.reserve_seconds, hold_seconds=entry.hold_seconds)
            )
            return
        spec = entry.model_dump(mode="json")
        digest = spec_digest(spec)
        if self._stored_alike(section, entry.id, owner, digest):
            return
        if isinstance(entry, WorkerPool):
            self.declared.pools[entry.id] = GivenPool(owner, spec, digest, entry)
        else:
            self._check_settings(entry)
            self.declared.accounts[entry.id] = _account(entry, owner, spec, digest)

    def _check_settings(self, account: Account) -> None:
        if account.provider not in self._providers:
            raise DeclarationRefused(
                f"account {account.id}: unknown provider {account.provider}; "
                f"use one of {', '.join(sorted(self._providers))}"
            )
        provider = self._providers[account.provider]
        problem = provider.problem(account.settings, account.region) or user_data.queue_url_problem(account.settings)
        if problem:
            raise DeclarationRefused(f"account {account.id}: settings: {problem}")
        if problem := provider.credential_problem(_credential(account)):
            raise DeclarationRefused(f"account {account.id}: credential: {problem}")

    def _refuse(self, problems: Iterable[DocumentProblem]) -> None:
        owner = self.declared.documents[-1].owner
        self._problems += [msgspec.structs.replace(problem, document=owner) for problem in problems]
        if len(self._problems) >= PROBLEMS_MAX:
            raise Invalid(self._problems)


def spec_digest(spec: Any) -> str:
    """Digest of a declared entry, independent of the order of its fields."""
    return sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()


class _Identified(msgspec.Struct):
    id: str


_IDENTIFIED: Final = msgspec.json.Decoder(_Identified)


def _id(text: bytes | msgspec.Raw) -> str | None:
    """Id of an entry; None if it has no valid one."""
    try:
        return _IDENTIFIED.decode(text).id
    except msgspec.ValidationError:
        return None


def _account(account: Account, owner: str, spec: dict[str, Any], digest: str) -> AccountRow:
    return AccountRow(
        id=account.id,
        provider=account.provider,
        region=account.region,
        identity=account.identity,
        lease_pool_id=account.lease_pool,
        credential=_credential(account),
        request_timeout_seconds=account.request_timeout_seconds,
        accepted_timeout_seconds=account.accepted_timeout_seconds,
        limits=_limits(account.limits),
        settings=dict(account.settings),
        owner=owner,
        spec=spec,
        spec_digest=digest,
    )


def _credential(account: Account) -> dict[str, Any]:
    return {} if isinstance(account.credential, str) else account.credential.model_dump(mode="json")


def _limits(limits: Limits | None) -> dict[str, Any]:
    return {} if limits is None else limits.model_dump(mode="json")


def _config(pool: WorkerPool, config: LaunchConfig, region: str) -> DeclaredConfig:
    return DeclaredConfig(
        name=config_name(pool, config),
        digest=sha256(canonical_body(config, region, pool.user_data)).hexdigest(),
        pool_id=pool.id,
        account_id=config.account,
        region=region,
        zone=config.zone,
        instance_type=config.instance_type,
        image_revision=config.image,
        settings=dict(config.settings),
        user_data=pool.user_data or "",
        base_weight=config.base_weight,
        price_factor=config.price_factor,
        max_capacity=config.max_capacity,
        deadlines=pool.deadlines_of(config),
        task_slots=config.task_slots or accounting.task_slots(pool.scaling_ratio),
        own_profile=config.profile is not None,
        **_health_settings(pool, config.profile),
    )


def _values(pool: WorkerPool, config: LaunchConfig, regions: Mapping[str, str]) -> user_data.Values:
    """Values of the user data of a launch config that are known when it is declared."""
    return user_data.Values(
        register_url="",
        batch_id="",
        queue_url="",
        settings=config.settings,
        pool=pool.id,
        launch_config=config_name(pool, config),
        account=config.account,
        region=regions[config.account],
        zone=config.zone,
        instance_type=config.instance_type,
        image=config.image,
    )


def _health_settings(pool: WorkerPool, profile: str | None = None) -> dict[str, Any]:
    """Health settings of a launch config: its own profile if it has one, the rest from its pool."""
    return {
        "profile": profile or pool.profile,
        "boot_evidence": pool.evidence.boot,
        "claim_evidence": pool.evidence.claim,
        "on_bad_image": pool.on_bad_image,
        "freeze_after": pool.freeze_after,
    }
