"""Provisioner with accounts of EC2, on a small server in its place (`ec2_server`)."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from slipway_local.ec2.server import ENDPOINTS
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.providers.aws.adapter import Ec2
from slipway_provisioner.providers.port import ProviderSettings
from tests.support.provisioner import Provisioner, declared, provisioner_on


@contextlib.asynccontextmanager
async def with_ec2(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    """Provisioner that has the provider `aws`."""
    ec2 = Ec2(ProviderSettings(timeout_seconds=60))
    await ec2.open()
    try:
        async with provisioner_on(postgres, call_timeout_seconds=60.0) as provisioner:
            provisioner.providers["aws"] = provisioner.app.state.providers["aws"] = ec2
            yield provisioner
    finally:
        await ec2.close()


def body(url: str = "http://127.0.0.1:1", *, credential: Any = "none", **settings: Any) -> dict[str, Any]:
    """Declaration of an account of EC2 and a pool in it, whose launch config has these settings."""
    declaration = declared(settings=dict.fromkeys(ENDPOINTS, url))
    declaration["accounts"][0] |= {
        "provider": "aws",
        "region": "us-east-1",
        "credential": credential,
        "settings": dict.fromkeys(ENDPOINTS, url),
    }
    declaration["worker_pools"][0]["mode"] = "enforce"
    declaration["worker_pools"][0]["launch_configs"][0] |= {"zone": "use1-az4", "settings": settings}
    return declaration
