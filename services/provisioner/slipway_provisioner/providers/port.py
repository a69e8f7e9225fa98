"""What Slipway needs of a cloud. Adapters classify errors once, from a table; nobody else looks at codes."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from slipway_common.events.worker import Outcome
from slipway_provisioner.domain.cloud import Account, Instance


class CreateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One call for `count` equal instances. `batch_id` is the tag, `token` the idempotency token; `secret` goes into
    the machines' user data and nowhere else."""

    batch_id: str
    token: str
    count: int
    config: Mapping[str, Any]
    secret: str


class Refused(Exception):
    """The provider said no, for certain. `throttled`: it says something about the API limiter only."""

    def __init__(self, outcome: Outcome, message: str, *, throttled: bool, retry_after_seconds: float | None) -> None:
        super().__init__(f"{outcome.code}: {message}")
        self.outcome = outcome
        self.throttled = throttled
        self.retry_after_seconds = retry_after_seconds


class OutcomeUnknown(Exception):
    """No reply, or one that proves nothing: the call may have had its effect."""


class Provider(Protocol):
    """Every method raises OutcomeUnknown when the cloud cannot be reached or gives no usable answer."""

    def problem(self, account_settings: Mapping[str, Any]) -> str:
        """What is wrong with an account's settings, and what to write; empty when they can be used."""
        ...

    def honours_tokens(self, account: Account) -> bool:
        """Whether repeating a call with its token is safe."""
        ...

    def console(self, account: Account, batch_id: str, instance_id: str) -> str:
        """Where what a machine of a batch has printed can be read, for people: a path or an address. Empty if nowhere.
        Asks nobody: the machine may be gone."""
        ...

    async def create(self, account: Account, request: CreateRequest) -> Sequence[str]:
        """Instance ids, 1…count of them. Raises Refused."""
        ...

    async def instances(self, account: Account, *, batch_id: str | None = None) -> Sequence[Instance]:
        """Live instances of this deployment, of one batch if given."""
        ...

    async def exists(self, account: Account, instance_id: str) -> bool:
        """Whether one instance is still there; for when a listing cannot be believed."""
        ...

    async def terminate(self, account: Account, instance_id: str) -> None:
        """Ends an instance; ending one that is gone is fine."""
        ...

    async def identity(self, account: Account) -> str:
        """Who we are to the cloud, as the account declares it."""
        ...
