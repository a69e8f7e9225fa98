"""Setup of one provider for the contract suite, and what its tests do with every provider alike."""

import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from slipway_api.percent import encoded
from slipway_common.base.process import identities
from slipway_common.base.process.identities import INSTANCE_TAG
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.port import Accepted, CreateRequest, OutcomeUnknown, Provider
from tests.support import providers
from tests.support.harness import until


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """A provider and an account with capacity for three instances of the requests.

    `cancelled` cancels a create call on which the provider works, waits until it has ended, and returns the ids of its
    instances, read from the cloud itself instead of the provider's listing. `restarted` is another provider object, as
    after a restart of the provisioner. `unreachable`: the account, where nothing answers; None if it always does.
    `config` has what the provider's requests need beside the usual config.
    """

    provider: Provider
    account: Account
    cancelled: Callable[[CreateRequest], Awaitable[set[str]]]
    restarted: Callable[[], Provider]
    bad_settings: Mapping[str, Any]
    unreachable: Account | None = None
    unknown_id: str = "1-1-nobody"
    config: Mapping[str, Any] = {}

    def request(self, count: int = 1, **settings: Any) -> CreateRequest:
        """A call of its own batch."""
        asked = providers.request(count, **settings)
        return msgspec.structs.replace(asked, config={**asked.config, **self.config})

    async def create(self, asked: CreateRequest, account: Account | None = None) -> list[str]:
        """Ids of the instances of a call, also if it is accepted at first."""
        account = account or self.account
        reply = await self.provider.create(account, asked)
        return await self.resolved(asked, reply, account) if isinstance(reply, Accepted) else [*reply]

    async def resolved(self, asked: CreateRequest, accepted: Accepted, account: Account | None = None) -> list[str]:
        """Ids of the instances of an accepted call, which the provider says that it may accept."""
        assert self.provider.accepts_calls
        found: list[str] = []

        async def answered() -> bool:
            polled = await self.provider.poll(account or self.account, asked, accepted.handle)
            found.extend(polled or ())
            return polled is not None

        await until(answered, "the accepted call is resolved")
        return found

    async def listed(self, batch_id: str | None = None) -> set[str]:
        """Ids of the listing."""
        return {i.id for i in await self.provider.instances(self.account, batch_id=batch_id)}

    async def exists(self, instance_id: str) -> bool:
        """True if an instance that was launched long ago exists."""
        return await self.provider.exists(self.account, instance_id, launched_at=None)

    async def terminate(self, *instance_ids: str) -> None:
        """Terminate instances and wait until they are gone."""
        ids = [*instance_ids]

        async def gone() -> bool:
            with contextlib.suppress(OutcomeUnknown):  # as on a busy host; it is called again
                await self.provider.terminate(self.account, ids)
            return not await self.listed() & {*ids}

        await until(gone, "the instances are gone")


async def clear() -> None:
    """Kill every process of the deployment of this test run, and wait until they are gone."""

    def left() -> list[identities.Process]:
        found = identities.tagged(INSTANCE_TAG, encoded(providers.DEPLOYMENT) + "/")
        for process in found:
            identities.send(process.identity, signal.SIGKILL)
        return found

    await until(lambda: not left(), "every process of the deployment is gone")
