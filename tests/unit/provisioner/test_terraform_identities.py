"""Identities of credentials: when each is looked up."""

from pathlib import Path

import pytest

from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.terraform.identities import Identities

OWN = "own"


class World:
    """A cloud that knows the owner of each credential, and the accounts that were reported."""

    def __init__(self) -> None:
        self.looked_up: list[str] = []
        self.reported: list[str] = []
        self.identities = Identities(self.report)

    async def report(self, account: Account, kind: str) -> None:
        assert kind == "identity"
        self.reported.append(account.id)

    async def identity(self, owner: str = OWN, **environment: str) -> str:
        account = Account(
            id="tf", deployment="d", provider="terraform", region="r", identity=OWN, lease_pool_id="l", settings={}
        )

        async def look_up() -> str:
            if owner == "no answer":
                raise ConnectionError(owner)
            self.looked_up.append(owner)
            return owner

        return await self.identities.of(account, environment, look_up)


async def test_a_credential_is_looked_up_once() -> None:
    world = World()
    assert [await world.identity(TOKEN="1") for _ in range(3)] == [OWN] * 3
    assert world.looked_up == [OWN]


async def test_a_replaced_credential_is_looked_up_before_it_is_used() -> None:
    """A foreign one is reported; the previous one is still fresh."""
    world = World()
    await world.identity(TOKEN="1")
    assert await world.identity("other", TOKEN="2") == "other"
    assert await world.identity("other", TOKEN="2") == "other"
    assert await world.identity(TOKEN="1") == OWN
    assert world.looked_up == [OWN, "other"]
    assert world.reported == ["tf"]


async def test_a_file_that_a_variable_names_is_part_of_a_credential(tmp_path: Path) -> None:
    """As GOOGLE_APPLICATION_CREDENTIALS does."""
    world, key = World(), tmp_path / "key.json"
    for text in ("own", "the key of another account"):
        key.write_text(text)
        await world.identity(KEY=str(key))
    assert len(world.looked_up) == 2


async def test_a_look_up_that_failed_is_repeated() -> None:
    world = World()
    with pytest.raises(ConnectionError):
        await world.identity("no answer", TOKEN="1")
    assert await world.identity(TOKEN="1") == OWN


async def test_a_module_without_an_identity_reports_nothing() -> None:
    world = World()
    assert await world.identity("", TOKEN="1") == ""
    assert world.reported == []
