"""Providers of several packages: their names, and their end with the service."""

import asyncio
from pathlib import Path

import pytest

from slipway_provisioner import main
from slipway_provisioner.providers.installed import installed
from slipway_provisioner.providers.simulated import Simulated
from slipway_provisioner.settings import Settings
from tests.support.providers import provider_settings
from tests.support.provisioner import KEY


def test_a_name_that_two_packages_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the order of installation would decide which cloud an account is in."""
    about = tmp_path / "other_cloud-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: other-cloud\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[slipway.providers]\nsimulated = other_cloud:Cloud\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError, match="other-cloud and slipway-provisioner both have a provider simulated"):
        installed(provider_settings())


class Closing(Simulated):
    """The simulator; `failure` is raised by its close."""

    def __init__(self, failure: Exception | None) -> None:
        super().__init__(provider_settings())
        self.failure_of_close = failure

    async def close(self) -> None:
        await super().close()
        if self.failure_of_close is not None:
            raise self.failure_of_close


async def test_every_provider_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the service ends by cancellation and another provider fails to close."""
    providers = {name: Closing(OSError(name) if name == "b" else None) for name in "abc"}
    monkeypatch.setattr(main, "installed", lambda _: providers)
    service = main.build(Settings(database_url="", kafka="", registration_keys=KEY))
    clients = [provider.client for provider in providers.values()]
    with pytest.raises(OSError, match="b"):
        async with service.resources[0]:
            raise asyncio.CancelledError
    assert [client.is_closed for client in clients] == [True, True, True]
