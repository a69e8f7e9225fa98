"""A provider of EC2 instances whose AWS is a small server that answers as a test says."""

import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import msgspec
import pytest

from slipway_common.base.ids import new_id
from slipway_local.ec2.server import ENDPOINTS
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.aws.adapter import Ec2
from slipway_provisioner.providers.pacing import LocalBuckets
from slipway_provisioner.providers.port import CreateRequest, OutcomeUnknown, ProviderSettings, Refused
from tests.support.ec2_server import Ec2Server, serving

REGION: Final = "us-east-1"
ZONE: Final = "use1-az4"
KEY: Final = "AKIAEXAMPLE"
SECRET: Final = "a-secret-access-key"


class Cloud(msgspec.Struct, frozen=True):
    """A provider and the server that it calls."""

    provider: Ec2
    server: Ec2Server

    def account(self, *, credential: dict[str, Any] | None = None, **settings: Any) -> Account:
        urls = dict.fromkeys(ENDPOINTS, self.server.url)
        return Account(
            id="ci/aws",
            deployment="deployment-1",
            provider="aws",
            region=REGION,
            identity="123456789012",
            lease_pool_id="ci",
            settings=urls | settings,
            credential={"environment": "CI_AWS"} if credential is None else credential,
            request_timeout_seconds=60.0,
        )


def request(count: int = 1, batch_id: str = "", zone: str = ZONE, **settings: Any) -> CreateRequest:
    config = {"id": "linux/a@1", "zone": zone, "instance_type": "m5.large", "image": "ami-1", "settings": settings}
    batch_id = batch_id or new_id()
    return CreateRequest(
        batch_id=batch_id, incarnation="in", token=f"t-{batch_id}", count=count, user_data="the-secret", config=config
    )


async def result(cloud: Cloud, account: Account, asked: CreateRequest) -> Sequence[str] | Refused | OutcomeUnknown:
    """Instances of a call, or its failure."""
    try:
        return await cloud.provider.create(account, asked)
    except (Refused, OutcomeUnknown) as failed:
        return failed


@pytest.fixture(scope="session")
async def provider() -> AsyncIterator[Ec2]:
    """One provider for all tests, since the first client of the SDK takes long. Its buckets are always full."""
    hours = itertools.count(step=3600)
    buckets = LocalBuckets(lambda: float(next(hours)))
    provider = Ec2(ProviderSettings(timeout_seconds=60, pacing=buckets))
    await provider.open()
    yield provider
    await provider.close()


@pytest.fixture
async def cloud(provider: Ec2, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cloud]:
    monkeypatch.setenv("CI_AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("CI_AWS_SECRET_ACCESS_KEY", SECRET)
    async with serving() as server:
        yield Cloud(provider, server)
