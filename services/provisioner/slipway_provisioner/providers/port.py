"""Provider port: operations that Slipway needs from a cloud. Only adapters interpret error codes, by a table."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from slipway_common.events.worker import Outcome
from slipway_provisioner.domain.cloud import Account, Instance


class ProviderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the provisioner for its providers. `deployment` tags our instances, machines reach the provisioner at
    `register_url`, and no call lasts longer than `timeout_seconds`."""

    deployment: str
    register_url: str
    timeout_seconds: float


class CreateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call for `count` equal instances. `batch_id` is the tag, `token` the idempotency token. `secret` is passed in
    the machines' user data only."""

    batch_id: str
    token: str
    count: int
    config: Mapping[str, Any]
    secret: str


class Refused(Exception):
    """The provider certainly refused the call. `throttled`: only because of the API rate limit."""

    def __init__(self, outcome: Outcome, message: str, *, throttled: bool, retry_after_seconds: float | None) -> None:
        super().__init__(f"{outcome.code}: {message}")
        self.outcome = outcome
        self.throttled = throttled
        self.retry_after_seconds = retry_after_seconds


class OutcomeUnknown(Exception):
    """There was no conclusive reply: the call may have had its effect."""


class Provider(Protocol):
    """Cloud provider. Asynchronous methods raise OutcomeUnknown if it is unreachable or replies unusably.

    A provider is a subclass, takes ProviderSettings, and is named by an entry point of the group `slipway.providers`.
    """

    async def close(self) -> None:
        """Release connections and threads. Instances continue."""
        return

    def capacity_key(self, account: Account, config: Mapping[str, Any]) -> str:
        """Key of the capacity that instances of a config need: one failure for lack of it speaks for all of them."""
        return f"{config['instance_type']}/{config['zone']}/{config.get('lifecycle', 'on-demand')}"

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
        """Launch 1…count instances and return their ids. Raises Refused."""
        ...

    async def instances(self, account: Account, *, batch_id: str | None = None) -> Sequence[Instance]:
        """List the live instances of this deployment, or of one batch."""
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
