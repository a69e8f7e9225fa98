"""Provider port: operations that Slipway needs from a cloud. Only adapters interpret error codes, by a table."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from slipway_api.events.scopes import capacity_key, image_of_provider, lifecycle_of, quota_key
from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_common.base.process.users import ChildUser
from slipway_common.base.redaction import redacted
from slipway_common.observability.telemetry import logger
from slipway_provisioner.domain import account_check
from slipway_provisioner.domain.account_check import Finding
from slipway_provisioner.domain.cloud import Account, Instance, Protected
from slipway_provisioner.domain.identity import Attested, Proof
from slipway_provisioner.providers.pacing import LocalBuckets, Pacing
from slipway_provisioner.providers.workspaces import Workspaces

LOG = logger(__name__)
CODE_CHARACTERS_MAX: Final = 60
CONSOLE_BYTES_MAX: Final = 65_536
HANDLE_CHARACTERS_MAX: Final = 500


class TerraformSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the runs of Terraform: at most `runs_max` at a time, in `folder`, which only this process uses. With
    `shares` one plugin process serves all workspaces of an account, else one workspace each. A worker without contact
    for `refresh_after_seconds` has its workspace refreshed. `sweep_share` is the share of a core for refreshes in
    turn, of workspaces whose last one is `sweep_seconds` ago, and for listings of accounts."""

    folder: str = ""
    runs_max: int = 4
    shares: bool = False
    refresh_after_seconds: float = 450.0
    sweep_share: float = 0.01
    sweep_seconds: float = 3600.0


class ProviderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the provisioner for its providers. No call lasts longer than `timeout_seconds`, unless its account
    has a timeout of its own. Token buckets of `pacing` are shared by all replicas. Commands and modules run as
    `child_user` [default: the user of this service]."""

    timeout_seconds: float
    pacing: Pacing = msgspec.field(default_factory=LocalBuckets)
    accepted_seconds: float = 3600.0
    workspaces: Workspaces | None = None
    terraform: TerraformSettings = TerraformSettings()
    child_user: ChildUser | None = None

    def timeout(self, account: Account) -> float:
        """Timeout of a call in an account, in seconds."""
        return account.request_timeout_seconds or self.timeout_seconds

    def accepted_timeout(self, account: Account) -> float:
        """Time in which an accepted call of an account must end, in seconds."""
        return account.accepted_timeout_seconds or self.accepted_seconds


class CreateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call for `count` equal instances. `batch_id` and `incarnation`, of the database that has committed the call,
    are tags, `token` is the idempotency token. `user_data` are passed to each machine as they are, and hold the secret
    with which it registers."""

    batch_id: str
    incarnation: str
    token: str
    count: int
    config: Mapping[str, Any]
    user_data: str

    def __repr__(self) -> str:
        return f"CreateRequest(batch_id={self.batch_id!r}, count={self.count})"


class Accepted(msgspec.Struct, frozen=True):
    """Reply to a create call that the provider works on. `poll` resolves it by its `handle`: stored text without any
    secret, at most 500 characters."""

    handle: str

    def __post_init__(self) -> None:
        if not 0 < len(self.handle) <= HANDLE_CHARACTERS_MAX:
            raise ValueError(f"a handle has 1 to {HANDLE_CHARACTERS_MAX} characters, not {len(self.handle)}")


class Refused(Exception):
    """The provider certainly refused the call. `throttled`: only because of the API rate limit. `concludes`: raised by
    a poll, it is the outcome of the accepted call, whatever its scope, and no refusal of the poll."""

    def __init__(
        self, outcome: Outcome, message: str, *, retry_after_seconds: float | None = None, concludes: bool = False
    ) -> None:
        super().__init__(f"{outcome.code}: {redacted(message)}")
        self.outcome = outcome
        self.concludes = concludes
        self.throttled = outcome.scope is Scope.LIMITER
        self.retry_after_seconds = retry_after_seconds


class OutcomeUnknown(Exception):
    """There was no conclusive reply: the call may have taken effect. `look_up`: a repeat of the call would prove
    nothing, and only the listing shows its instances. `throttled`: the account answers, but admits no call now."""

    def __init__(self, message: str, *, look_up: bool = False, throttled: bool = False) -> None:
        super().__init__(redacted(message))
        self.look_up = look_up
        self.throttled = throttled


class PutBack(Exception):
    """An accepted call had no effect, which says nothing about its launch config; the text is the reason."""


class TerminationRefused(OutcomeUnknown):
    """The provider refuses to terminate some instances, by their ids, until a person has done something. The others
    are tried nevertheless."""

    def __init__(self, instances: Mapping[str, Protected]) -> None:
        super().__init__("; ".join(dict.fromkeys(each.reason for each in instances.values())))
        self.instances = instances


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """Meaning of an error code, for people. `scope` is that of outcomes, or unclassified; `resource` is the part of the
    account that is concerned, if not all of it. `launched` says whether machines may run: no, maybe or yes."""

    stage: Stage
    scope: str
    resource: str
    launched: str
    advice: str


UNCLASSIFIED: Final = "unclassified"


class LookUps(Protocol):
    """Look-ups of instances by id."""

    async def exists(self, account: Account, instance_id: str, *, launched_at: datetime | None) -> bool:
        """True if the instance exists. Confirms what a listing suggests. `launched_at` is None if that time is unknown.
        Raises OutcomeUnknown if the instance is so young that the provider may not know it yet."""
        ...

    async def gone(self, account: Account, instances: Mapping[str, datetime | None]) -> Sequence[str]:
        """Ids of those instances, given with their launch times, of which `exists` is false. Those that it raises
        OutcomeUnknown for are left out. A provider that can look up many at once saves calls."""
        gone = []
        for instance_id, launched_at in instances.items():
            try:
                if not await self.exists(account, instance_id, launched_at=launched_at):
                    gone.append(instance_id)
            except OutcomeUnknown as error:
                LOG.warning("looking up an instance that is not listed failed", instance=instance_id, error=str(error))
        return gone

    async def ready(self, account: Account, instance_ids: Sequence[str]) -> Sequence[str]:
        """Those of these running instances that have passed the status checks of the provider, if it makes any: the
        boot evidence of workers that do not register. Those that it has no answer for are left out."""
        return instance_ids


class Declarations(Protocol):
    """Checks of what is declared for a provider."""

    def problem(self, account_settings: Mapping[str, Any], region: str) -> str:
        """Problem with an account's settings in its region and its remedy; empty if they are usable."""
        ...

    def credential_problem(self, credential: Mapping[str, Any]) -> str:
        """Problem with an account's reference to a credential and its remedy; empty if it is usable. A provider that
        needs no credential accepts none, since nobody would notice that it is not used."""
        return "this provider needs none; write credential: none" if credential else ""

    def config_problem(self, account_settings: Mapping[str, Any], config_settings: Mapping[str, Any]) -> str:
        """Problem with the settings of a launch config in an account and its remedy; empty if they are usable."""
        return ""

    def meaning(self, account_settings: Mapping[str, Any], code: str, message: str) -> Meaning | None:
        """Meaning of an error code in an account with these settings; None if the provider has no table for people."""
        return None

    async def preview(self, account: Account, config: Mapping[str, Any]) -> str:
        """Problem that a preview of a launch finds, without any effect, and its remedy; empty if there is none, or if
        the provider has no previews. The caller cancels one that takes long."""
        return ""


class Lifecycle(Protocol):
    """Life of a provider in one process, in this order: open, work, stop, close."""

    async def open(self) -> None:
        """Make what calls need, before the first one. Makes no call itself."""
        return

    async def close(self) -> None:
        """Release connections and threads. Instances continue."""
        return

    async def work(self) -> bool:
        """Do a step of work that no call waits for, such as runs of a queue; False if there is none. Called by every
        replica in turn with itself; a cancelled step ends within seconds, and leaves the rest to another replica."""
        return False

    async def stop(self) -> None:
        """End and record within seconds what steps of `work` have begun, while the database is still connected."""
        return


class Provider(Lifecycle, Declarations, LookUps, Protocol):
    """Cloud provider. Asynchronous methods raise OutcomeUnknown if it is unreachable or replies unusably.

    A provider is a subclass, takes ProviderSettings, and is named by an entry point of the group `slipway.providers`.
    """

    real: bool = True
    """Its machines cost money: new pools that declare no mode begin in mode observe."""
    runs_commands: bool = True
    """Calls start programs on this host. Such a provider may be declared only where SLIPWAY_PROVIDERS lists it, and
    starts them as `child_user`."""
    operator_settings: frozenset[str] = frozenset()
    """Settings of accounts that are paths, commands or endpoints: the operator states them in SLIPWAY_PROVIDERS, and a
    declaration names the entry that has them."""
    accepts_calls: bool = False
    """Create calls may be accepted, and then keep their lease for up to `accepted_timeout_seconds`."""
    launches_per_second: float | None = None
    """Machines a second that the API of an account launches in the long run; None: unknown. `slipway apply` paces
    launches by it, unless their lease pool declares a pacing."""

    def units_max(self, account: Account) -> int | None:
        """Most instances of one call; None: any number."""
        return None

    def visibility_seconds(self, account: Account) -> float | None:
        """Longest time until a new instance is listed; None: the setting of this service. Where a call may have been
        accepted and its reply was lost, and its token is not honoured, the time of an accepted call comes first."""
        return None

    def call(self, account: Account, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Parameters of a create call that are more than its launch config: settings of the account and defaults of the
        provider, which may be others when the call is repeated. They are committed with the call, as `config["call"]`
        of its request, whose `config` this one is. Pure; raises nothing for settings without a problem."""
        return {}

    def checks_tokens_first(self, account: Account) -> bool:
        """True if the refusal of a repeated call proves that the first one had no effect, unless it is throttled or
        its credential is refused. False: such a call is looked up."""
        return True

    def capacity_key(self, account: Account, config: Mapping[str, Any]) -> str:
        """Id of the capacity that a config launches from, `encoded` from its parts. A capacity failure concerns every
        config with the same one, in whatever pool or account. Makes no call; empty if it is not known yet."""
        zone, lifecycle = config["zone"], lifecycle_of(config["settings"])
        return capacity_key(account.id, account.region, zone, config["instance_type"], lifecycle).id

    def image_key(self, account: Account, config: Mapping[str, Any]) -> str:
        """Id of the image that the machines of a config boot. Its boots and claims concern every config with the same
        one, in whatever pool or account. Makes no call; empty if it is not known yet."""
        return image_of_provider(account.provider, config["image"])

    def quota_family(self, account: Account, config: Mapping[str, Any]) -> str:
        """Instance types of an account and region that count towards one quota, by a name of theirs."""
        return str(config["instance_type"]).split(".")[0]

    def subnet(self, account: Account, config: Mapping[str, Any]) -> str:
        """Subnet whose free addresses the machines of a config take: a quota that configs of any instance type share.
        Makes no call; empty if the provider knows none."""
        return ""

    def failure(
        self,
        account: Account,
        config: Mapping[str, Any],
        code: str,
        scope: Scope | None,
        message: str = "",
        *,
        stage: Stage = Stage.LAUNCH,
        key: str = "",
    ) -> Outcome:
        """Outcome of a refused launch, or of a later `stage`, counted under the key of its scope, or under `key`.
        Without a scope it is a definite failure of unknown meaning, charged to the config; `message` is the provider's
        own text."""
        match scope:
            case None:
                code, sample = redacted(code, CODE_CHARACTERS_MAX), redacted(message)
                return Outcome(stage, Result.FAILED, Scope.CONFIG, config["id"], code, classified=False, sample=sample)
            case Scope.CAPACITY:
                own = self.capacity_key(account, config)
            case Scope.QUOTA:
                family = self.quota_family(account, config)
                own = quota_key(account.id, account.region, config["instance_type"], family).id
            case Scope.IMAGE:
                own = config["image"]
            case Scope.CREDENTIAL | Scope.LIMITER:
                own = account.id
            case _:
                own = config["id"]
        return Outcome(stage, Result.FAILED, scope, key or own, code)

    def attested(self, account: Account, image: str, proof: Proof | None) -> Attested | None:
        """Machine of an account, launched from an image, that a proof is about, as this provider has signed it. None if
        its machines have no identity but the secret of their batch. Makes no call. Raises IdentityRefused, and
        OutcomeUnknown if this installation cannot check proofs."""
        return None

    def honours_tokens(self, account: Account) -> bool:
        """True if a call may be repeated with its token."""
        ...

    def console(self, account: Account, batch_id: str, instance_id: str) -> str:
        """Path or URL of an instance's console output, for people; empty if there is none. Makes no call, since the
        instance may be gone."""
        ...

    async def console_output(self, account: Account, batch_id: str, instance_id: str) -> str:
        """The newest console output of an instance, which may be gone: at most its last 64 kB; empty if the provider
        has none, or none yet. It may contain secrets of the machine. Raises OutcomeUnknown."""
        return ""

    async def create(self, account: Account, request: CreateRequest) -> Sequence[str] | Accepted:
        """Launch 1…count instances and return their ids, or accept the call and work on it. Raises Refused.

        The caller may cancel it at any time, and does after the request timeout. The outcome is then unknown, as after
        OutcomeUnknown, and is resolved by the token if it is honoured, else by the tag. So every instance has its tag
        from the start, and a cancelled call creates no more than what it has already asked the provider for, listed
        once the provider's visibility delay has passed.
        """
        ...

    async def poll(self, account: Account, request: CreateRequest, handle: str) -> Sequence[str] | None:
        """Ids of the instances of an accepted call; None while the provider works on it. Raises Refused, PutBack.

        It may be called again at any time, also after it has answered, by any replica and after a restart. Once the
        deadline of the accepted call has passed, its instances are looked up by their tag instead.
        """
        raise OutcomeUnknown("this provider accepts no calls")

    def pages(self, account: Account, *, batch_id: str | None = None) -> AsyncIterator[Sequence[Instance]]:
        """List the live instances of the account's deployment, or of one batch, page by page. Never those of other
        deployments. Raises OutcomeUnknown also between two pages: then the listing is incomplete."""
        ...

    async def instances(self, account: Account, *, batch_id: str | None = None) -> Sequence[Instance]:
        """All pages of a listing. Raises OutcomeUnknown if one of them fails: its instances would count as missing."""
        return [instance async for page in self.pages(account, batch_id=batch_id) for instance in page]

    async def ending(self, account: Account, config: Mapping[str, Any], instance_id: str) -> Outcome | None:
        """Outcome of an instance that died while it booted, as far as the provider knows the reason; None if not."""
        return None

    async def terminate(self, account: Account, instance_ids: Sequence[str]) -> None:
        """Terminate instances; those that are already gone are no failure. Tries each of them before it raises. That
        they are gone is proven by the listing, not by this call. Raises TerminationRefused for those that only a person
        can free."""
        ...

    async def clean_up(self, account: Account) -> None:
        """Delete what terminated instances of the account's deployment have left behind. Called after each listing."""
        return

    async def health(self, account: Account) -> None:
        """Make a cheap call that reads. Raises Refused if the account's credential is refused."""
        await self.identity(account)

    async def identity(self, account: Account) -> str:
        """Identity of the account that the credentials belong to, to compare with the declared one."""
        ...

    async def check(self, account: Account, configs: Sequence[Mapping[str, Any]]) -> Sequence[Finding]:
        """Findings on all that launches of these configs need from the account: its identity, and what else the
        provider can find out. Changes nothing, and waits rather than take what launches need of the account's API.
        Each of `configs` is that of a request, with its `name`. Raises OutcomeUnknown only if the account does not
        answer; a refusal is a finding."""
        return [account_check.identity(account.identity, await self.identity(account))]


async def each(instance_ids: Sequence[str], terminate: Callable[[str], Awaitable[None]]) -> None:
    """Terminate instances one by one at the same time. Once all were tried it raises TerminationRefused for those that
    are refused, or else the first failure."""
    results = await asyncio.gather(*map(terminate, instance_ids), return_exceptions=True)
    refusals = [result.instances for result in results if isinstance(result, TerminationRefused)]
    if refused := {id_: why for instances in refusals for id_, why in instances.items()}:
        raise TerminationRefused(refused)
    for result in results:
        if result is not None:
            raise result
