"""Client of EC2's instance metadata service, version 2 (IMDSv2): identity of the machine, and notices about its end."""

import re
from datetime import datetime
from typing import Final

import msgspec

from slipway_client.transport.decoding import UNREADABLE
from slipway_client.transport.exchange import NoAnswer, Received, exchange
from slipway_client.worker.core import Notice

LINK_LOCAL: Final = "http://169.254.169.254"
TOKEN_SECONDS: Final = 21_600
REQUEST_SECONDS: Final = 2.0
INSTANCE_ID: Final = re.compile("i-[0-9a-f]{8,32}")
TOKEN: Final = re.compile("[!-~]{1,1000}")
META_DATA: Final = "meta-data/"
DOCUMENT: Final = "dynamic/instance-identity/"
ZONE: Final = re.compile("[!-~]{1,100}")


class Proof(msgspec.Struct, frozen=True):
    """Signed identity document of an instance, with its signatures in base64: of the exact text, and as PKCS7 data."""

    document: str
    signature: str = ""
    rsa2048: str = ""


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Identity of an instance. Accounts may name one zone differently, but agree on its id. Both may be empty. Without
    a `proof` the metadata service has no identity document."""

    instance_id: str
    zone: str = ""
    zone_id: str = ""
    proof: Proof | None = None


class _Action(msgspec.Struct, frozen=True):
    time: datetime | None = None


def interruption(content: bytes) -> Notice:
    """Interruption notice of a spot instance. One without a time that can be read is in force as well."""
    try:
        time = msgspec.json.decode(content, type=_Action).time
    except UNREADABLE:
        time = None
    return Notice("interruption", time if time is not None and time.tzinfo is not None else None)


class Imds:
    """The metadata service of this machine. Its token is replaced when it is refused."""

    def __init__(self, url: str = LINK_LOCAL, *, request_seconds: float = REQUEST_SECONDS) -> None:
        self._url = url.removesuffix("/")
        self._request_seconds = request_seconds
        self._token = ""

    async def identity(self) -> Identity:
        """Identity of this machine. Raises NoAnswer."""
        instance_id = await self._text("instance-id")
        if not INSTANCE_ID.fullmatch(instance_id):
            raise NoAnswer(f"{self._url} answered something other than an instance id")
        zone = await self._text("placement/availability-zone")
        zone_id = await self._text("placement/availability-zone-id")
        return Identity(
            instance_id=instance_id,
            zone=zone if ZONE.fullmatch(zone) else "",
            zone_id=zone_id if ZONE.fullmatch(zone_id) else "",
            proof=await self._proof(),
        )

    async def notices(self) -> list[Notice]:
        """Notices that are in force. Raises NoAnswer."""
        action = await self._get("spot/instance-action")
        if action is not None:
            return [interruption(action)]
        return [] if await self._get("events/recommendations/rebalance") is None else [Notice("rebalance")]

    async def _proof(self) -> Proof | None:
        document = await self._get("document", below=DOCUMENT)
        if document is None:
            return None
        try:
            text = document.decode()  # not stripped, since its exact bytes are signed
        except UnicodeDecodeError:
            raise NoAnswer(f"{self._url} answered something other than an identity document") from None
        signature = await self._text("signature", below=DOCUMENT)
        return Proof(text, signature, await self._text("rsa2048", below=DOCUMENT))

    async def _text(self, name: str, *, below: str = META_DATA) -> str:
        return (await self._get(name, below=below) or b"").decode("latin-1").strip()

    async def _get(self, name: str, *, below: str = META_DATA) -> bytes | None:
        """Content of an item; None if there is none."""
        status, content, _ = await self._request(below + name)
        if status == 401:
            self._token = ""
            status, content, _ = await self._request(below + name)
        if status == 404:
            return None
        if status != 200:
            raise NoAnswer(f"{self._url} answered {status} to a request for {name}")
        return content

    async def _request(self, path: str) -> Received:
        if not self._token:
            self._token = await self._new_token()
        headers = {"X-aws-ec2-metadata-token": self._token}
        url = f"{self._url}/latest/{path}"
        return await exchange("GET", url, b"", headers=headers, seconds=self._request_seconds)

    async def _new_token(self) -> str:
        headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_SECONDS)}
        url = f"{self._url}/latest/api/token"
        status, content, _ = await exchange("PUT", url, b"", headers=headers, seconds=self._request_seconds)
        token = content.decode("latin-1")
        if status != 200 or not TOKEN.fullmatch(token):
            raise NoAnswer(f"{self._url} answered {status} without a token")
        return token
