"""moto's server as a child process, and calls to it.

moto checks parameters and has what Slipway's calls leave behind: instances, volumes, interfaces, tags. It knows
accounts by access keys, and regions by the credential's scope.
"""

import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlencode
from xml.etree import ElementTree

import httpx2
import msgspec

from slipway_local.ec2 import wire
from slipway_local.servers.child import Child
from slipway_local.servers.supervisor import http_ready

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 120.0
CALL_SECONDS: Final = 120.0  # a busy machine, or thousands of instances
# Without its thousands of images the first call is fast. Types and key pairs are checked.
ENVIRONMENT: Final = {
    "MOTO_EC2_LOAD_DEFAULT_AMIS": "false",
    "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION": "true",
    "MOTO_ENABLE_KEYPAIR_VALIDATION": "true",
}
FORM: Final = "application/x-www-form-urlencoded; charset=utf-8"
LIVE_STATES: Final = ("pending", "running", "shutting-down", "stopping", "stopped")


class Subnet(msgspec.Struct, frozen=True):
    subnet: str
    zone: str
    zone_id: str
    is_default: bool


class Scope(msgspec.Struct, frozen=True):
    """Credential scope of a call."""

    access_key: str
    region: str
    service: str = "ec2"

    @property
    def authorization(self) -> str:
        scope = f"{self.access_key}/20260101/{self.region}/{self.service}/aws4_request"
        return f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0"


def scope_of(request: wire.Request) -> Scope:
    return Scope(request.access_key, request.region, request.service)


class Moto:
    """moto's server on a port of this host, and what it has been asked about accounts and subnets."""

    def __init__(self, port: int, log: Path, environment: Mapping[str, str]) -> None:
        self._port = port
        argv = [sys.executable, "-m", "moto.server", "-H", HOST, "-p", str(port)]
        self._child = Child("moto", argv, log=log, env=dict(environment) | ENVIRONMENT)
        limits = httpx2.Limits(max_connections=4, max_keepalive_connections=0)  # its server closes every connection
        self._http = httpx2.AsyncClient(
            base_url=f"http://{HOST}:{port}", timeout=CALL_SECONDS, limits=limits, trust_env=False
        )
        self._accounts: dict[str, str] = {}
        self._subnets: dict[tuple[str, str], dict[str, Subnet]] = {}

    async def start(self) -> None:
        """Start it, and make the first calls, which take seconds. Raises StartFailed."""
        self._child.start()
        await self._child.ready(lambda: http_ready(self._port, "/moto-api/"), START_SECONDS)
        await self.subnet(Scope("first", "us-east-1"), "")

    async def stop(self) -> None:
        await self._http.aclose()
        await self._child.stop()

    async def reset(self) -> None:
        """Forget everything, as after a start."""
        (await self._http.post("/moto-api/reset")).raise_for_status()
        self._accounts.clear()
        self._subnets.clear()

    async def forward(self, scope: Scope, body: bytes) -> httpx2.Response:
        """Send a request as it came."""
        headers = {"authorization": scope.authorization, "content-type": FORM}
        return await self._http.post("/", content=body, headers=headers)

    async def call(self, scope: Scope, action: str, parameters: Mapping[str, str]) -> ElementTree.Element:
        """Make a call. Raises Refused."""
        version = "2011-06-15" if scope.service == "sts" else "2016-11-15"
        body = urlencode({"Version": version, **parameters, "Action": action}).encode()
        response = await self.forward(scope, body)
        if not response.headers.get("content-type", "").startswith(("text/xml", "application/xml")):
            raise wire.Refused("InternalError", f"moto cannot answer {action}: {response.text[:200]}", 500)
        root = wire.parse(response.content)
        if response.status_code >= 400:
            raise wire.refusal(root, response.status_code)
        return root

    async def account(self, scope: Scope) -> str:
        """Account number of an access key."""
        if scope.access_key not in self._accounts:
            root = await self.call(Scope(scope.access_key, scope.region, "sts"), "GetCallerIdentity", {})
            self._accounts[scope.access_key] = root.findtext(".//Account", "")
        return self._accounts[scope.access_key]

    async def subnet(self, scope: Scope, subnet: str, zone: str = "") -> Subnet | None:
        """A subnet, or the default subnet of a zone (its name or id), or of the first zone."""
        key = await self.account(scope), scope.region
        known = self._subnets.get(key, {})
        if not known or (subnet and subnet not in known):
            root = await self.call(scope, "DescribeSubnets", {})
            known = self._subnets[key] = {item.subnet: item for item in _subnets(root)}
        if subnet:
            return known.get(subnet)
        defaults = sorted((s for s in known.values() if s.is_default), key=lambda s: s.zone)
        return next((s for s in defaults if zone in ("", s.zone, s.zone_id)), None)

    async def count(self, scope: Scope, tag: str) -> dict[str, dict[str, int]]:
        """Live instances, volumes and interfaces by the value of a tag, as moto has them; empty without it."""
        found: dict[str, dict[str, int]] = {}
        live = {f"Filter.1.Value.{n}": state for n, state in enumerate(LIVE_STATES, 1)}
        live["Filter.1.Name"] = "instance-state-name"
        for kind, action, path, parameters in (
            ("instances", "DescribeInstances", ".//instancesSet/item", live),
            ("volumes", "DescribeVolumes", "volumeSet/item", {}),
            ("interfaces", "DescribeNetworkInterfaces", "networkInterfaceSet/item", {}),
        ):
            async for item in self._items(scope, action, path, parameters):
                value = next(
                    (t.findtext("value", "") for t in item.findall("tagSet/item") if t.findtext("key") == tag), ""
                )
                counts = found.setdefault(value, {"instances": 0, "volumes": 0, "interfaces": 0})
                counts[kind] += 1
        return found

    async def _items(
        self, scope: Scope, action: str, path: str, parameters: Mapping[str, str]
    ) -> AsyncIterator[ElementTree.Element]:
        token = ""
        while True:
            root = await self.call(scope, action, {**parameters, **({"NextToken": token} if token else {})})
            for item in root.findall(path):
                yield item
            token = root.findtext("nextToken", "")
            if not token:
                return


def _subnets(root: ElementTree.Element) -> Iterator[Subnet]:
    for item in wire.items(root, "subnetSet"):
        yield Subnet(
            item.findtext("subnetId", ""),
            item.findtext("availabilityZone", ""),
            item.findtext("availabilityZoneId", ""),
            item.findtext("defaultForAz", "") == "true",
        )
