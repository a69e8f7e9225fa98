"""The metadata service of an EC2 instance, over HTTP."""

from datetime import UTC, datetime

import pytest

from slipway_client.transport.exchange import NoAnswer
from slipway_client.worker.core import Notice
from slipway_client.worker.imds import Identity, Imds, Proof, interruption
from tests.support.imds import INSTANCE_ID, fake_imds

AT = datetime(2026, 8, 1, 15, tzinfo=UTC)


async def test_an_identity_needs_one_token() -> None:
    """Instance, zone and the zone's id."""
    async with fake_imds() as fake:
        assert await Imds(fake.url).identity() == Identity(
            instance_id=INSTANCE_ID, zone="eu-west-1b", zone_id="euw1-az2"
        )
        assert fake.calls.count("PUT") == 1


async def test_a_zone_may_be_unknown() -> None:
    """Without the items, or with something else in their place."""
    async with fake_imds() as fake:
        del fake.items["placement/availability-zone"]
        fake.items["placement/availability-zone-id"] = "<html>\n</html>"
        assert await Imds(fake.url).identity() == Identity(instance_id=INSTANCE_ID)


@pytest.mark.parametrize("other", ["", "i-", "<html></html>", "i-0123\nX", "i-0123456789ABCDEF0"])
async def test_another_service_is_no_metadata_service(other: str) -> None:
    """Something else may answer at the address outside EC2."""
    async with fake_imds() as fake:
        fake.items["instance-id"] = other
        with pytest.raises(NoAnswer, match="something other than an instance id"):
            await Imds(fake.url).identity()


async def test_the_proof_of_an_identity() -> None:
    """The exact text of the document, whose signatures stand for each byte; a service without it gives none."""
    async with fake_imds() as fake:
        assert (await Imds(fake.url).identity()).proof is None
        fake.attest()
        document = fake.items["/latest/dynamic/instance-identity/document"]
        assert document.endswith("\n")
        assert (await Imds(fake.url).identity()).proof == Proof(document, "c2ln", "cGtjczc=")
        fake.items["/latest/dynamic/instance-identity/document"] = "\udcff"
        with pytest.raises(NoAnswer, match="something other than an identity document"):
            await Imds(fake.url).identity()


async def answer(imds: Imds) -> str:
    """Notices, or the reason for which there was no answer."""
    try:
        return str(await imds.notices())
    except NoAnswer as error:
        return str(error)


async def test_a_refused_token_is_replaced() -> None:
    """Once per request: a service that refuses the new one as well has not answered."""
    async with fake_imds() as fake:
        imds = Imds(fake.url)
        assert await answer(imds) == "[]"
        fake.revoke()
        assert await answer(imds) == "[]"
        assert fake.calls.count("PUT") == 2
        fake.off = True
        assert "answered 403" in await answer(imds)


async def test_a_service_that_refuses_every_token_does_not_answer() -> None:
    async with fake_imds() as fake:
        fake.distrusting = True
        with pytest.raises(NoAnswer, match="answered 401 to a request for instance-id"):
            await Imds(fake.url).identity()
        assert fake.calls == ["PUT", "instance-id", "PUT", "instance-id"]


async def test_notices() -> None:
    """A recommendation, and an interruption, which makes it old news, even if it cannot be read."""
    async with fake_imds() as fake:
        imds = Imds(fake.url)
        fake.recommend_rebalance()
        assert await imds.notices() == [Notice("rebalance")]
        fake.interrupt("2026-08-01T15:00:00Z")
        assert await imds.notices() == [Notice("interruption", AT)]
        fake.items["spot/instance-action"] = "<html>"
        assert await imds.notices() == [Notice("interruption")]


@pytest.mark.parametrize(
    ("content", "ends_at"),
    [
        (b'{"action": "stop", "time": "2026-08-01T15:00:00Z"}', AT),
        (b'{"action": "hibernate"}', None),
        (b'{"action": "terminate", "time": "2026-08-01T15:00:00"}', None),
        (b'{"action": "terminate", "time": "soon"}', None),
        (b"", None),
        (b"<html>", None),
    ],
)
def test_an_interruption_that_cannot_be_read_is_one(content: bytes, ends_at: datetime | None) -> None:
    """Its time is then unknown."""
    assert interruption(content) == Notice("interruption", ends_at)
