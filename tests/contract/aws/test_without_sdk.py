"""The provider where its extra is not installed: the service starts, and only its own accounts are refused."""

import asyncio
import sys

from tests.tools.mutants import ROOT

SCRIPT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("aiobotocore", "botocore", "aiohttp"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "aiobotocore" else found(name, package)
import asyncio
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.aws.adapter import Ec2
from slipway_provisioner.providers.port import OutcomeUnknown, ProviderSettings

async def main():
    provider = Ec2(ProviderSettings(timeout_seconds=60))
    await provider.open()
    print(provider.problem({}, "us-east-1"))
    account = Account(id="a", deployment="d", provider="aws", region="r", identity="1", lease_pool_id="l", settings={})
    try:
        await provider.identity(account)
    except OutcomeUnknown as error:
        print(error)
    await provider.close()

asyncio.run(main())
"""


async def test_an_account_is_refused_with_the_remedy() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    lines = printed.decode().splitlines()
    assert len(lines) == 2
    assert all("install slipway-provisioner[aws]" in line for line in lines)
