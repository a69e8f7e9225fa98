"""Requests for tests of providers, and provisioners in processes of their own: one that is killed during a call, one
on a host without capacity.

`python -m tests.support.providers creating DEPLOYMENT BATCH FOLDER`, `python -m tests.support.providers crowded`
"""

import asyncio
import json
import os
import resource
import socket
import sys
from typing import Any, Final

from slipway_common.base.ids import new_id
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.port import CreateRequest, ProviderSettings, Refused
from slipway_provisioner.providers.process import Processes

DEPLOYMENT: Final = f"test/{new_id()}"  # of the processes of this test run
ACCOUNT: Final = "ci/here"
CONFIG: Final = "linux/zone-a@3f2c9a"
URL: Final = "http://127.0.0.1:9"  # no listener
# An agent that stores its user data and then waits until it is terminated.
WAITING: Final = ("sh", "-c", 'cat > "$SEEN/$$"; exec sleep 600')


def provider_settings() -> ProviderSettings:
    return ProviderSettings(timeout_seconds=60)


def request(count: int = 1, batch_id: str = "", **settings: Any) -> CreateRequest:
    config = {"id": CONFIG, "zone": "zone-a", "instance_type": "m5.large", "image": "linux-1", "settings": settings}
    batch_id = batch_id or new_id()
    user_data = {"register_url": URL, "batch_id": batch_id, "secret": "the-secret", "settings": settings}
    return CreateRequest(
        batch_id=batch_id,
        incarnation="in",
        token=f"t-{batch_id}",
        count=count,
        config=config,
        user_data=json.dumps(user_data),
    )


def account(deployment: str = DEPLOYMENT, **settings: Any) -> Account:
    settings = {"command": list(WAITING), "processes_max": 3} | settings
    return Account(
        id=ACCOUNT,
        deployment=deployment,
        provider="process",
        region="r",
        identity=socket.gethostname(),
        lease_pool_id="l",
        settings=settings,
    )


async def creating(deployment: str, batch_id: str, folder: str) -> None:
    """Start ten agents, one after another. Their logs and user data go to the folder."""
    here = account(deployment, environment={"SEEN": folder}, log_folder=folder, processes_max=None)
    await Processes(provider_settings()).create(here, request(10, batch_id))


async def crowded() -> None:
    """Try to start an agent where no file can be opened, and print the scope and code of the failure."""
    provider = Processes(provider_settings())
    resource.setrlimit(resource.RLIMIT_NOFILE, (1, 1))
    try:
        await provider.create(account(processes_max=None), request())
    except Refused as refused:
        print(refused.outcome.scope, refused.outcome.code, flush=True)
    os._exit(0)  # an orderly shutdown would need files; this one leaves buffers as they are


if __name__ == "__main__":
    role, *arguments = sys.argv[1:]
    asyncio.run(creating(*arguments) if role == "creating" else crowded())
