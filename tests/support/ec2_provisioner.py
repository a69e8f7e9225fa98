"""Provisioner with accounts of EC2, on a small server in its place (`ec2_server`)."""

import contextlib
import itertools
from collections.abc import AsyncIterator
from typing import Any, Final

from slipway_local.ec2.server import ENDPOINTS
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.domain.operator import CredentialOfOperator, OfProvider
from slipway_provisioner.providers.aws.adapter import Ec2
from slipway_provisioner.providers.operator import permitted
from slipway_provisioner.providers.pacing import LocalBuckets
from slipway_provisioner.providers.port import ProviderSettings
from tests.support.provisioner import Provisioner, declared, provisioner_on

ENTRIES: Final[dict[str, dict[str, Any]]] = {}
"""Entries of the operator, named like the URL of a server that stands in for EC2."""
CREDENTIALS: Final = {"ci": CredentialOfOperator(environment="CI_AWS")}
"""Credentials of the operator, to which a test may add its own."""


@contextlib.asynccontextmanager
async def opened() -> AsyncIterator[Ec2]:
    """Provider of EC2, whose first client takes a while. Its buckets are always full."""
    hours = itertools.count(step=3600)
    ec2 = Ec2(ProviderSettings(timeout_seconds=60, pacing=LocalBuckets(lambda: float(next(hours)))))
    await ec2.open()
    try:
        yield ec2
    finally:
        await ec2.close()


@contextlib.asynccontextmanager
async def with_ec2(postgres: EmbeddedPostgres, ec2: Ec2 | None = None) -> AsyncIterator[Provisioner]:
    """Provisioner that has the provider `aws`, one of its own unless it is given."""
    async with (
        contextlib.nullcontext(ec2) if ec2 is not None else opened() as provider,
        provisioner_on(postgres, call_timeout_seconds=60.0) as provisioner,
    ):
        provisioner.providers["aws"] = provisioner.app.state.providers["aws"] = permitted(
            {"aws": provider}, {"aws": OfProvider(ENTRIES, CREDENTIALS)}
        )["aws"]
        yield provisioner


def body(url: str = "http://127.0.0.1:1", *, credential: Any = "none", **settings: Any) -> dict[str, Any]:
    """Declaration of an account of EC2 and a pool in it, whose launch config has these settings."""
    ENTRIES[url] = dict.fromkeys(ENDPOINTS, url)
    declaration = declared()
    declaration["accounts"][0] |= {
        "provider": "aws",
        "region": "us-east-1",
        "credential": credential,
        "settings": {"entry": url},
    }
    declaration["worker_pools"][0]["mode"] = "enforce"
    declaration["worker_pools"][0]["launch_configs"][0] |= {"zone": "use1-az4", "settings": settings}
    return declaration
