"""`slipway why`: finds the resource of an id and reads its rows; view/why/ explains them."""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec
import typer

from slipway_api.http.lease_broker import Lease, LeaseDecision
from slipway_api.http.lease_pools import LeasePool
from slipway_api.http.provisioner.accounts import Account, AccountDetails
from slipway_api.http.provisioner.decisions import Decision
from slipway_api.http.provisioner.declaration import RollbackPreview
from slipway_api.http.provisioner.demand import DemandSource
from slipway_api.http.provisioner.launch_configs import LaunchConfig, LaunchConfigDetails
from slipway_api.http.provisioner.pools import LaunchStop, Pool, PoolDetails
from slipway_api.http.provisioner.workers import ConsoleOutput, Worker
from slipway_api.http.service import ServiceStatus
from slipway_client.cli import options
from slipway_client.cli.commands.workers import DIGITS, NEWEST, found
from slipway_client.cli.options import AsOutput, api_of, now
from slipway_client.cli.tables import Output, as_json, filled
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import Api, Parameter, path
from slipway_common.base.revisions import name_of

if TYPE_CHECKING:
    from slipway_client.view.why.explanation import Explanation, Facts

T = TypeVar("T")
UUID: Final = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
POOLS_MAX: Final = 5  # of those that use an image, one request each
ACCOUNTS_MAX: Final = 5  # of those with problems, one request each
ANSWER_SECONDS: Final = 5.0  # one service that hangs must not hide what the others know
IMAGE: Final = "image/"
LISTS: Final = (
    "`slipway pool ls`, `slipway lc ls`, `slipway worker ls`, `slipway lease pools` and `slipway lease ls` list what"
    " there is"
)


class Kind(StrEnum):
    """Kinds of things that can be explained."""

    POOL = "pool"
    CONFIG = "config"
    IMAGE = "image"
    LEASE_POOL = "lease-pool"
    LEASE = "lease"
    WORKER = "worker"


def _complete(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    offered = (options.pools, options.revisions, options.lease_pools, options.workers)
    return [row for complete in offered for row in complete(context, incomplete)]


Subject = Annotated[
    str,
    typer.Argument(metavar="ID", help="Pool, config, image, lease pool, lease or worker", autocompletion=_complete),
]
AsKind = Annotated[Kind | None, typer.Option("--kind", help="Kind of the object, if the ID is ambiguous")]


def why(context: typer.Context, subject: Subject, kind: AsKind = None, output: AsOutput = Output.TABLE) -> None:
    """Explain a state: cause, since when, effect, remedy

    ID is a worker pool, a launch config (its name or NAME@HASH), an image (`image/REVISION` or the revision), a lease
    pool, a lease or a worker (its id or the last digits of it). With -o json the sentences and the facts: kind, id,
    cause, since, effect, remedy; `since` is null where no service keeps the time.

    \b
    Examples:
      slipway why linux
      slipway why linux-zone-b
      slipway why image/linux-1
      slipway why sim-a --kind lease-pool
      slipway why 3f9a12cd
    """
    explained = explanation(api_of(context).within(ANSWER_SECONDS), subject, kind)
    lines = explained.sentences(now())
    if output is Output.JSON:
        fields = {name: getattr(explained, name) for name in ("kind", "id", "cause", "effect", "remedy")}
        since = explained.since.isoformat() if explained.since else None
        as_json(fields | {"since": since, "sentences": lines})
        return
    for line in lines:
        print(filled(line, "    " if line.startswith((" ", "→")) else ""))


def explanation(api: Api, subject: str, kind: Kind | None) -> "Explanation":
    """Explain what has this id. Raises Failed if there is nothing, or more than one thing."""
    search = _Search(api, subject)
    kinds = search.kinds(kind)
    if not kinds:
        what = f"no {kind.value.replace('-', ' ')}" if kind else "nothing named"
        where = " in what could be searched" if search.problems else ""
        problems = "".join(f"\n{problem}" for problem in dict.fromkeys(search.problems))
        raise Failed(f"There is {what} {subject!r}{where}.\n{LISTS}.{problems}", "unknown-subject")
    if len(kinds) > 1:
        names = " and ".join(f"a {one.value.replace('-', ' ')}" for one in kinds).replace("a image", "an image")
        choices = " or ".join(f"--kind {one.value}" for one in kinds)
        raise Failed(f"{subject!r} names {names}.\nName the one that you mean with {choices}.", "ambiguous-subject")
    return search.explained(kinds[0])


class _Search:
    """The things that have one id, and their explanations. `problems` are services that could not be searched,
    `unread` says which parts of an explanation could not be read."""

    def __init__(self, api: Api, subject: str) -> None:
        self.api = api
        self.subject = subject
        self.problems: list[str] = []
        self.unread: list[str] = []
        self.configs = self._known(LaunchConfig, "provisioner", "/launch-configs") or []
        images = {config.image_revision for config in self.configs}
        self.image_revision = subject if subject in images else subject.removeprefix(IMAGE)
        lease_pools = self._known(LeasePool, "lease-broker", "/lease-pools")
        self.lease_pools = lease_pools or []
        unavailable = f"the lease-broker at {api.urls['lease-broker']} is unavailable"
        self.broker = unavailable if lease_pools is None else ""

    def kinds(self, wanted: Kind | None) -> list[Kind]:
        """The kinds of things with this id, of `wanted` alone if that is given."""
        return [kind for kind, (holds, _) in self._ways().items() if wanted in (None, kind) and holds()]

    def explained(self, kind: Kind) -> "Explanation":
        """Explanation of what is of this kind, by all that can be read."""
        explained = self._ways()[kind][1]()
        return msgspec.structs.replace(explained, details=[*explained.details, *self.unread])

    def _ways(self) -> "Mapping[Kind, tuple[Callable[[], bool], Callable[[], Explanation]]]":
        """By kind: if there is such a thing, and its explanation."""
        return {
            Kind.POOL: (self._is_pool, self.pool),
            Kind.CONFIG: (self._is_config, self.config),
            Kind.IMAGE: (lambda: any(_has_image(config, self.image_revision) for config in self.configs), self.image),
            Kind.LEASE_POOL: (lambda: any(pool.id == self.subject for pool in self.lease_pools), self.lease_pool),
            Kind.LEASE: (self._is_lease, self.lease),
            Kind.WORKER: (self._is_worker, self.worker),
        }

    def pool(self) -> "Explanation":
        from slipway_client.view.why.pools import of_pool

        return of_pool(
            self.api.get(PoolDetails, "provisioner", path("pools", self.subject)),
            self._facts([config for config in self.configs if config.pool_id == self.subject], self.subject),
            sources=self._listed("its sources of demand", DemandSource, "/demand", pool=self.subject),
            calculator=_calculator(self.api),
            broker=self.broker,
        )

    def config(self) -> "Explanation":
        from slipway_client.view.why.configs import of_config

        config = self.api.get(LaunchConfigDetails, "provisioner", path("launch-configs", self.subject))
        # None for one that was deleted, and the config archived with it.
        pool = _unless("unknown-pool", lambda: self.api.get(PoolDetails, "provisioner", path("pools", config.pool_id)))
        name = name_of(config.id)
        siblings = [row for row in self.configs if name_of(row.id) == name and row.id != config.id]
        return of_config(config, pool, self._facts([config], config.pool_id), siblings=siblings)

    def image(self) -> "Explanation":
        from slipway_client.view.why.configs import of_image, repaired_pool
        from slipway_client.view.why.explanation import Facts

        users = [config for config in self.configs if _has_image(config, self.image_revision)]
        rollback = self._rollback(repaired_pool(users), users)
        pools = sorted({config.pool_id for config in users})[:POOLS_MAX]
        newest = [decision for pool_id in pools for decision in self._newest(pool_id)]
        facts = Facts(now=now(), configs=users, decisions=newest, rollback=rollback)
        return of_image(self.image_revision, facts, consoles=self._consoles(users[0].image_revision))

    def lease_pool(self) -> "Explanation":
        from slipway_client.view.why.leases import of_lease_pool

        (pool,) = (pool for pool in self.lease_pools if pool.id == self.subject)
        return of_lease_pool(pool, self.configs, now=now())

    def lease(self) -> "Explanation":
        from slipway_client.view.why.leases import of_lease

        lease = self.api.get(Lease, "lease-broker", path("leases", self.subject))
        place = path("leases", self.subject, "history")
        history = self._part("its history", lambda: self.api.items(LeaseDecision, "lease-broker", place))
        return of_lease(lease, history or [], now=now())

    def worker(self) -> "Explanation":
        from slipway_client.view.why.workers import of_worker

        worker = found(self.api, self.subject).value
        config = next((config for config in self.configs if config.id == worker.launch_config_id), None)
        lease_pool_id = config.lease_pool_id if config else ""
        lease_pool = next((pool for pool in self.lease_pools if pool.id == lease_pool_id), None)
        is_silent = worker.launched_at and not worker.registered_at
        consoles = self._consoles(worker.image_revision) if is_silent else []
        place = path("decisions", worker.decision_id)
        decision = self._part("its decision", lambda: self.api.get(Decision, "provisioner", place))
        return of_worker(worker, decision, lease_pool, config=config, consoles=consoles, now=now())

    def _part(self, what: str, read: Callable[[], T]) -> T | None:
        """A part of an explanation; None if it cannot be read, which the explanation says."""
        try:
            return read()
        except Failed as error:
            reason = str(error).partition("\n")[0].rstrip(".")
            self.unread.append(f"Could not read {what}: {reason}.")
            return None

    def _listed(self, what: str, type_: type[T], place: str, **parameters: Parameter) -> list[T]:
        """The same of a list of the provisioner; none if it cannot be read."""
        return self._part(what, lambda: self.api.items(type_, "provisioner", place, limit=None, **parameters)) or []

    def _facts(self, configs: Sequence[LaunchConfig], pool_id: str) -> "Facts":
        """Facts around launch configs of one pool."""
        from slipway_client.view.why.explanation import Facts

        return Facts(
            now=now(),
            configs=configs,
            launch_stops=self._listed("launch stops", LaunchStop, "/launch-stops"),
            lease_pools=self.lease_pools,
            accounts=self._accounts(configs),
            decisions=self._newest(pool_id),
            rollback=self._rollback(pool_id, configs),
        )

    def _rollback(self, pool_id: str, configs: Sequence[LaunchConfig]) -> RollbackPreview | None:
        """Preview of a rollback of a pool, if one of the launch configs is tripped."""
        from slipway_client.view.phrases import is_tripped

        if not any(map(is_tripped, configs)):
            return None
        place = path("pools", pool_id, "rollback")
        return self._part("what a rollback changes", lambda: self.api.get(RollbackPreview, "provisioner", place))

    def _newest(self, pool_id: str) -> list[Decision]:
        """The newest decision of a pool; none of one that was deleted."""
        place = path("pools", pool_id, "decisions")

        def read() -> list[Decision] | None:
            return _unless("unknown-pool", lambda: self.api.items(Decision, "provisioner", place, limit=1))

        return self._part(f"the last decision of pool {pool_id}", read) or []

    def _accounts(self, configs: Sequence[LaunchConfig]) -> list[AccountDetails]:
        """Accounts of launch configs that throttle calls, or in which the last check found problems, with its
        findings."""
        used = {config.account_id for config in configs}

        def read() -> list[AccountDetails]:
            rows = self.api.items(Account, "provisioner", "/accounts")
            bad = [row.id for row in rows if row.id in used and (row.problems or row.throttled)]
            return [self.api.get(AccountDetails, "provisioner", path("accounts", id_)) for id_ in bad[:ACCOUNTS_MAX]]

        return self._part("its accounts", read) or []

    def _consoles(self, image_revision: str) -> list[ConsoleOutput]:
        """Console output of a machine of an image that never registered."""
        return self._listed("console output", ConsoleOutput, "/console-outputs", image=image_revision)

    def _is_pool(self) -> bool:
        return any(pool.id == self.subject for pool in self.api.items(Pool, "provisioner", "/pools"))

    def _is_config(self) -> bool:
        """True for a name, and for a revision, also an archived one."""
        if any(self.subject in (config.id, name_of(config.id)) for config in self.configs):
            return True
        return "@" in self.subject and bool(self.configs) and self._exists("launch-configs", "unknown-config")

    def _is_lease(self) -> bool:
        if not UUID.fullmatch(self.subject):
            return False
        try:
            self.api.get(object, "lease-broker", path("leases", self.subject))
        except Failed as error:
            if error.slug != "unknown-lease":
                self.problems.append(str(error).partition("\n")[0])
            return False
        return True

    def _is_worker(self) -> bool:
        """True for a whole id, and for the last digits of one of the newest workers' ids."""
        if UUID.fullmatch(self.subject):
            return self._exists("workers", "unknown-worker")
        if not DIGITS.fullmatch(self.subject):
            return False
        workers = self.api.items(Worker, "provisioner", "/workers", limit=NEWEST)
        return any(worker.id.endswith(self.subject) for worker in workers)

    def _exists(self, collection: str, unknown: str) -> bool:
        place = path(collection, self.subject)
        return _unless(unknown, lambda: self.api.get(object, "provisioner", place)) is not None

    def _known(self, type_: type[T], service: str, place: str) -> list[T] | None:
        """Items of a list; None if the service is unavailable: what others know can still be explained."""
        try:
            return self.api.items(type_, service, place)
        except Failed as error:
            self.problems.append(str(error).partition("\n")[0])
            return None


def _has_image(config: LaunchConfig, image: str) -> bool:
    """True if a config launches from this image, by its revision or by the id that its provider gives it."""
    return image == config.image_revision or any((row.kind, row.id) == ("image", image) for row in config.shared)


def _unless(slug: str, read: Callable[[], T]) -> T | None:
    """Answer of a service; None for a refusal with this slug, as of an ID that it does not know."""
    try:
        return read()
    except Failed as error:
        if error.slug != slug:
            raise
        return None


def _calculator(api: Api) -> str:
    """The error of an unavailable weight-calculator; empty when it is ready."""
    try:
        status = api.get(ServiceStatus, "weight-calculator", "/status")
    except Failed:
        return f"the weight-calculator at {api.urls['weight-calculator']} is unavailable"
    return "" if status.ready else f"the weight-calculator is not ready ({'; '.join(status.reasons)})"
