"""Provider port: operations that Slipway needs from a cloud. Only adapters interpret error codes, by a table."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import msgspec

from slipway_common.base.percent import encoded
from slipway_common.base.redaction import redacted
from slipway_common.events.scopes import quota_key
from slipway_common.events.worker import Outcome, Result, Scope, Stage
from slipway_provisioner.domain.cloud import Account, Instance

CODE_CHARACTERS_MAX: Final = 60


class ProviderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the provisioner for its providers. Machines reach the provisioner at `register_url`. No call lasts
    longer than `timeout_seconds`."""

    register_url: str
    timeout_seconds: float


class CreateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call for `count` equal instances. `batch_id` and `incarnation`, of the database that has committed the call,
    are tags, `token` is the idempotency token. `secret` is passed in the machines' user data only."""

    batch_id: str
    incarnation: str
    token: str
    count: int
    config: Mapping[str, Any]
    secret: str

    def user_data(self, settings: ProviderSettings) -> dict[str, Any]:
        """User data of each machine, with which its agent registers. A provider may add fields."""
        return {
            "register_url": settings.register_url,
            "batch_id": self.batch_id,
            "secret": self.secret,
            "settings": self.config["settings"],
        }


class Refused(Exception):
    """The provider certainly refused the call. `throttled`: only because of the API rate limit."""

    def __init__(self, outcome: Outcome, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(f"{outcome.code}: {redacted(message)}")
        self.outcome = outcome
        self.throttled = outcome.scope is Scope.LIMITER
        self.retry_after_seconds = retry_after_seconds


class OutcomeUnknown(Exception):
    """There was no conclusive reply: the call may have taken effect."""

    def __init__(self, message: str) -> None:
        super().__init__(redacted(message))


class Provider(Protocol):
    """Cloud provider. Asynchronous methods raise OutcomeUnknown if it is unreachable or replies unusably.

    A provider is a subclass, takes ProviderSettings, and is named by an entry point of the group `slipway.providers`.
    """

    async def close(self) -> None:
        """Release connections and threads. Instances continue."""
        return

    def capacity_key(self, account: Account, config: Mapping[str, Any]) -> str:
        """Key of the capacity that a config uses. A capacity failure concerns every config with the same key."""
        return encoded(config["instance_type"], config["zone"], config.get("lifecycle", "on-demand"))

    def failure(
        self, account: Account, config: Mapping[str, Any], code: str, scope: Scope | None, message: str = ""
    ) -> Outcome:
        """Outcome of a refused launch, counted under the key of its scope. Without a scope it is a definite failure of
        unknown meaning, charged to the config; `message` is the provider's own text."""
        match scope:
            case None:
                code, sample = redacted(code, CODE_CHARACTERS_MAX), redacted(message)
                return Outcome(
                    Stage.LAUNCH, Result.FAILED, Scope.CONFIG, config["id"], code, classified=False, sample=sample
                )
            case Scope.CAPACITY:
                key = self.capacity_key(account, config)
            case Scope.QUOTA:
                key = quota_key(account.id, account.region, config["instance_type"]).id
            case Scope.IMAGE:
                key = config["image"]
            case Scope.CREDENTIAL | Scope.LIMITER:
                key = account.id
            case _:
                key = config["id"]
        return Outcome(Stage.LAUNCH, Result.FAILED, scope, key, code)

    def problem(self, account_settings: Mapping[str, Any]) -> str:
        """Problem with an account's settings and its remedy; empty if they are usable."""
        ...

    def honours_tokens(self, account: Account) -> bool:
        """True if a call may be repeated with its token."""
        ...

    def console(self, account: Account, batch_id: str, instance_id: str) -> str:
        """Path or URL of an instance's console output, for people; empty if there is none. Makes no call, since the
        instance may be gone."""
        ...

    async def create(self, account: Account, request: CreateRequest) -> Sequence[str]:
        """Launch 1…count instances and return their ids. Raises Refused.

        The caller may cancel it at any time, and does after `timeout_seconds`. The outcome is then unknown, as after
        OutcomeUnknown, and is resolved by the token if it is honoured, else by the tag. So every instance has its tag
        from the start, and a cancelled call creates no more than what it has already asked the provider for, listed
        once the provider's visibility delay has passed.
        """
        ...

    async def instances(self, account: Account, *, batch_id: str | None = None) -> Sequence[Instance]:
        """List the live instances of the account's deployment, or of one batch. Never those of other deployments."""
        ...

    async def exists(self, account: Account, instance_id: str) -> bool:
        """True if the instance exists. Confirms what a listing suggests."""
        ...

    async def terminate(self, account: Account, instance_id: str) -> None:
        """Terminate an instance. Succeeds if it is already gone."""
        ...

    async def identity(self, account: Account) -> str:
        """Identity of the account that the credentials belong to, to compare with the declared one."""
        ...
