"""Runtime of the stand-in: answers calls, by decisions of the pure modules or by moto, and records facts.

Everything runs on one event loop. Launches are decided one after another, so that none is decided before the
instances of another are known.
"""

import asyncio
import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Final
from urllib.parse import urlencode
from xml.sax.saxutils import escape

import msgspec

from slipway_common.base.ids import new_id
from slipway_local.ec2 import accounts, boot, cloud, listing, permissions, seeding, shown, wire
from slipway_local.ec2.buckets import Buckets
from slipway_local.ec2.cloud import Granted
from slipway_local.ec2.facts import Call, Cleared, InstanceCreated, Launch, Reply, Tagged
from slipway_local.ec2.faults import Effects
from slipway_local.ec2.history import History
from slipway_local.ec2.identity import Signer
from slipway_local.ec2.lives import Lives
from slipway_local.ec2.machines import Machines
from slipway_local.ec2.metadata import Sessions
from slipway_local.ec2.moto import Moto, scope_of
from slipway_local.ec2.seeding import Described, Seed
from slipway_local.ec2.wire import Refused, Request
from slipway_simulator.http.accounts import BATCH_TAG, CONFIG_TAG, DEPLOYMENT_TAG

CONSOLE_BYTES: Final = 65536
TORN_PAGE: Final = 8  # instances of a page while listings are torn, so that those of a small run have pages
EFFECTFUL: Final = ("RunInstances", "TerminateInstances")
# Calls that would change machines behind the stand-in's back.
NOT_PLAYED: Final = frozenset(
    {
        "StartInstances",
        "StopInstances",
        "RebootInstances",
        "CreateFleet",
        "RequestSpotInstances",
        "RunScheduledInstances",
    }
)
BROKEN: Final = "<html><head><title>502 Bad Gateway</title></head><body>502 Bad Gateway</body></html>"


class HttpAnswer(msgspec.Struct, frozen=True):
    """An answer to a caller; `lost`: it does not arrive."""

    status: int
    text: str
    media_type: str = "text/xml"
    lost: bool = False


class StandIn:
    """A cloud of one run."""

    def __init__(self, history: History, moto: Moto, machines: Machines) -> None:
        self.history = history
        self.now = history.now
        self.moto = moto
        self.lives = Lives(history, moto, machines)
        self.sessions = Sessions()
        self.signer = Signer()
        self.zone_ids: dict[str, str] = {}
        self._buckets = Buckets()
        self._expires_at: dict[str, float] = {}  # by access key
        self._descriptions: dict[tuple[str, ...], Described] = {}
        self._launching = asyncio.Lock()
        self._received = 0

    async def clear(self) -> None:
        """End all machines and forget everything, as after a start."""
        await self.lives.stop()
        await self.moto.reset()
        self._expires_at.clear()
        self._descriptions.clear()
        self._buckets, self.sessions = Buckets(), Sessions()
        self.history.record([Cleared(at=self.now())])
        self.lives.start()

    async def stop(self) -> None:
        await self.lives.stop()
        self.history.ledger.close()

    async def seed(self, seed: Seed) -> list[list[str]]:
        """Add running instances without machines, and without moto; returns their ids, by batch. Raises Refused."""
        description = await self._described(seed)
        zone = description.subnet.zone
        self.zone_ids[zone] = description.subnet.zone_id
        rng = self.history.chance(f"seed/{self.history.cloud.created}")
        facts = list(seeding.created(seed, zone, now=self.now(), rng=rng))
        for fact in facts:
            self.lives.descriptions[fact.instance_id] = description.of(fact.instance_id)
        self.history.record(facts)
        ids = [fact.instance_id for fact in facts]
        return [ids[at : at + seed.size] for at in range(0, len(ids), seed.size)]

    # Calls

    async def answer(self, body: bytes, authorization: str, target: str = "") -> HttpAnswer:
        """Answer a call to EC2, STS or Service Quotas."""
        request_id = new_id()
        try:
            request = wire.read(body, authorization, target)
        except Refused as refused:
            return HttpAnswer(refused.status, wire.error(refused, "ec2", request_id))
        scope = scope_of(request)
        account = await self.moto.account(scope)
        if request.service == "ec2":
            self.lives.scopes[account, request.region] = scope
        self._received += 1
        call_id = f"call-{self._received}"
        rng = self.history.chance(call_id)
        self.history.record(
            [
                Call(
                    at=self.now(),
                    call_id=call_id,
                    account=account,
                    region=request.region,
                    action=request.action,
                )
            ]
        )
        try:
            text, reply = await self._admitted(request, body, call_id, account, rng)
        except Refused as refused:
            answer = HttpAnswer(refused.status, wire.error(refused, request.service, request_id), media_type(request))
            reply = Reply(
                at=self.now(),
                call_id=call_id,
                account=account,
                action=request.action,
                code=refused.code,
                message=refused.message,
            )
        else:
            answer = HttpAnswer(200, text, media_type(request))
        effects = self.history.effects()
        if request.action in EFFECTFUL:
            if rng.random() < effects.lost_reply_ratio:
                answer = msgspec.structs.replace(answer, lost=True)
            elif rng.random() < effects.broken_reply_ratio:
                answer = HttpAnswer(502, BROKEN, "text/html")
        undelivered = answer.lost or answer.status == 502
        self.history.record([msgspec.structs.replace(reply, lost=undelivered)])
        return answer

    async def _admitted(
        self, request: Request, body: bytes, call_id: str, account: str, rng: Random
    ) -> tuple[str, Reply]:
        effects = self.history.effects()
        if seconds := cloud.latency_seconds(self.history.cloud, request.action, effects, rng):
            await asyncio.sleep(seconds)
        if self._expires_at.get(request.access_key, float("inf")) <= self.now():
            effects = msgspec.structs.replace(effects, expired=True)
        if refused := cloud.injected(effects, request.action, rng):
            raise refused
        permissions.check(request, account, effects)
        if request.service == "ec2":
            self._buckets.admit(account, request, self.history.cloud.rules, effects, self.now())
        reply = Reply(at=self.now(), call_id=call_id, account=account, action=request.action, code="OK")
        if request.service in wire.JSON_SERVICES:
            code = request.parameters.get("QuotaCode", "")
            found = accounts.quota(self.history.cloud, effects, account, request.region, code)
            return json.dumps(found), reply
        if not self.history.cloud.rules.has_machines and (text := shown.nothing_left(request.action, account)):
            return text, reply
        if request.service != "ec2":
            return await self._session(request, body, account), reply
        if request.parameters.get("DryRun") == "true" or request.action in NOT_PLAYED:
            return await self._dry(request, reply, effects), reply
        match request.action:
            case "RunInstances":
                return await self._run(request, reply, rng)
            case "TerminateInstances":
                return await self._terminate(request, reply)
            case "DescribeInstances":
                return self._describe(request, account, effects, rng), reply
            case "GetConsoleOutput":
                return await self._console(request, account), reply
            case "DescribeSubnets":
                return accounts.subnets(await self._forward(request, body), effects), reply
            case "DescribeImages":
                found_images = accounts.images(self.history.cloud, effects, request)
                return wire.answer("DescribeImages", found_images, new_id()), reply
            case "CreateTags":
                text = await self._forward(request, body)
                self._tag(request, account)
                return text, reply
            case _:
                return await self._forward(request, body), reply

    async def _forward(self, request: Request, body: bytes) -> str:
        response = await self.moto.forward(scope_of(request), body)
        if response.status_code >= 400:
            if not response.headers.get("content-type", "").startswith(("text/xml", "application/xml")):
                raise Refused("InvalidAction", f"the stand-in does not know how to answer {request.action}")
            raise wire.refusal(wire.parse(response.content), response.status_code)
        return response.text

    async def _dry(self, request: Request, reply: Reply, effects: Effects) -> str:
        """Answer a dry run, which is always an error. Raises Refused."""
        match request.action:
            case action if action in NOT_PLAYED:
                raise Refused("UnsupportedOperation", f"the stand-in does not support {request.action}")
            case "RunInstances":
                launch = await self._read_launch(request, reply)
                cloud.check(self.history.cloud, launch, effects, is_dry=True)
                await self.moto.call(scope_of(request), "RunInstances", _of_moto(request, launch))
            case "TerminateInstances":
                ids = request.numbered("InstanceId")
                listing.by_ids(self.history.cloud, reply.account, request.region, ids, now=self.now())
        raise Refused("DryRunOperation", "Request would have succeeded, but DryRun flag is set.")

    async def _session(self, request: Request, body: bytes, account: str) -> str:
        """Answer STS, and remember for how long the credentials of an assumed role are valid."""
        if request.action == "DecodeAuthorizationMessage":
            inner = escape(permissions.decoded(request.parameters.get("EncodedMessage", "")))
            result = f"<DecodeAuthorizationMessageResult><DecodedMessage>{inner}</DecodedMessage>"
            return wire.answer(request.action, f"{result}</DecodeAuthorizationMessageResult>", new_id())
        text, effects = await self._forward(request, body), self.history.effects()
        if request.action == "GetCallerIdentity":
            return accounts.identity(text, account, effects)
        session_seconds = self.history.cloud.rules.session_seconds
        if effects.session_seconds is not None:
            session_seconds = effects.session_seconds
        if session_seconds is None or not request.action.startswith("AssumeRole"):
            return text
        root = wire.parse(text)
        key, until = root.findtext(".//AccessKeyId", ""), root.findtext(".//Expiration", "")
        self._expires_at[key] = self.now() + session_seconds
        return text.replace(until, _iso(self._expires_at[key])) if until else text

    # Launches

    async def _run(self, request: Request, reply: Reply, rng: Random) -> tuple[str, Reply]:
        try:
            user_data = boot.decoded(request.parameters.get("UserData", ""))
        except boot.UnusableUserData as error:
            raise Refused("InvalidUserData.Malformed", str(error)) from error
        if len(user_data) > cloud.USER_DATA_BYTES_MAX:
            raise Refused("InvalidParameterValue", f"User data is limited to {cloud.USER_DATA_BYTES_MAX} bytes")
        launch = await self._read_launch(request, reply)
        async with self._launching:
            effects = self.history.effects()
            self.history.record([launch])
            decision = cloud.decide_launch(self.history.cloud, launch, effects, now=self.now())
            if not isinstance(decision, Granted):
                ids = decision.instance_ids
                text = self._reservation(ids)
                return text, msgspec.structs.replace(reply, at=self.now(), instance_ids=ids, repeated=True)
            created = await self._create(request, launch, decision.count, (effects, rng))
            self.history.record(created)
            ids = tuple(fact.instance_id for fact in created)
            if self.history.cloud.rules.has_machines:
                self.lives.begin(created, user_data)
            return self._reservation(ids), msgspec.structs.replace(reply, at=self.now(), instance_ids=ids)

    async def _read_launch(self, request: Request, reply: Reply) -> Launch:
        p = request.parameters
        tags = request.tags("instance")
        subnet_id = p.get("SubnetId") or p.get("NetworkInterface.1.SubnetId", "")
        zone = p.get("Placement.AvailabilityZone") or p.get("Placement.AvailabilityZoneId", "")
        subnet = await self.moto.subnet(scope_of(request), subnet_id, zone)
        if subnet is None and subnet_id:
            raise Refused("InvalidSubnetID.NotFound", f"The subnet ID '{subnet_id}' does not exist")
        if subnet is None:
            raise Refused("InvalidParameterValue", f"Invalid availability zone: [{zone}]")
        self.zone_ids[subnet.zone] = subnet.zone_id
        if len(tags) > cloud.TAGS_MAX:
            raise Refused("TagLimitExceeded", f"More than {cloud.TAGS_MAX} tags")
        return Launch(
            at=self.now(),
            call_id=reply.call_id,
            account=reply.account,
            region=request.region,
            token=p.get("ClientToken", ""),
            token_zone=subnet.zone if subnet_id or zone else "",
            request=fingerprint(p),
            deployment=tags.get(DEPLOYMENT_TAG, ""),
            batch=tags.get(BATCH_TAG, ""),
            config=tags.get(CONFIG_TAG, ""),
            least=_count(p.get("MinCount", "")),
            count=_count(p.get("MaxCount", "")),
            zone=subnet.zone,
            subnet=subnet.subnet,
            instance_type=p.get("InstanceType", "m1.small"),
            lifecycle="spot" if p.get("InstanceMarketOptions.MarketType") == "spot" else "on-demand",
            image=p.get("ImageId", ""),
            stays_when_off=p.get("InstanceInitiatedShutdownBehavior", "stop") != "terminate",
            tags=tags,
        )

    async def _create(
        self, request: Request, launch: Launch, count: int, fate: tuple[Effects, Random]
    ) -> list[InstanceCreated]:
        """Create the instances in moto, which launches MinCount, and knows neither the tags of interfaces nor that the
        first one ends with its instance. Raises Refused."""
        if not self.history.cloud.rules.has_machines:
            return await self._pretend(launch, count, fate)
        scope = scope_of(request)
        parameters = _of_moto(request, launch) | {"MinCount": str(count), "MaxCount": str(count)}
        root = await self.moto.call(scope, "RunInstances", parameters)
        reservation = root.findtext("reservationId", "")
        zone_id = self.zone_ids[launch.zone]
        facts, interfaces = [], []
        for index, item in enumerate(wire.items(root, "instancesSet")):
            instance_id = item.findtext("instanceId", "")
            own = [e.text or "" for e in item.findall("networkInterfaceSet/item/networkInterfaceId")]
            if own and parameters.get("NetworkInterface.1.DeleteOnTermination") != "false":
                self.lives.interfaces[instance_id] = own[0]
            interfaces += own
            self.lives.descriptions[instance_id] = shown.described(item, zone_id)
            place = reservation, index
            facts.append(cloud.created(self.history.cloud, launch, instance_id, place, fate[0], self.now(), fate[1]))
        if interface_tags := request.tags("network-interface"):
            await self.moto.call(scope, "CreateTags", _tagging(interfaces, interface_tags))
        return facts

    async def _pretend(self, launch: Launch, count: int, fate: tuple[Effects, Random]) -> list[InstanceCreated]:
        """Create instances that moto does not have. Raises Refused."""
        seed = Seed(
            launch.account, launch.region, launch.zone, launch.instance_type, launch.image, (), tags=launch.tags
        )
        description = await self._described(seed)
        facts = []
        reservation = f"r-{fate[1].getrandbits(68):017x}"
        for index in range(count):
            instance_id = f"i-{fate[1].getrandbits(68):017x}"
            place = reservation, index
            fact = cloud.created(self.history.cloud, launch, instance_id, place, fate[0], self.now(), fate[1])
            self.lives.descriptions[instance_id] = description.of(instance_id)
            facts.append(msgspec.structs.replace(fact, seeded=True))
        return facts

    async def _described(self, seed: Seed) -> Described:
        """Description of an instance as this one would have, for which moto is asked once."""
        key = seed.region, seed.zone, seed.instance_type, seed.image
        if key not in self._descriptions:
            self._descriptions[key] = await seeding.described(self.moto, seed)
        return self._descriptions[key]

    def _reservation(self, ids: Sequence[str]) -> str:
        known = [self.history.cloud.instances[id_] for id_ in ids if id_ in self.history.cloud.instances]
        pairs = [(self.lives.descriptions[instance.id], instance) for instance in known]
        return wire.answer("RunInstances", shown.launched(pairs, self.now()), new_id())

    # Other calls

    async def _terminate(self, request: Request, reply: Reply) -> tuple[str, Reply]:
        ids = request.numbered("InstanceId")
        if not ids:
            raise Refused("MissingParameter", "The request must contain the parameter InstanceId")
        if len(ids) > cloud.INSTANCES_MAX:
            raise Refused(
                "InvalidParameterValue", f"at most {cloud.INSTANCES_MAX} instances may be terminated by one call"
            )
        now = self.now()
        instances = listing.by_ids(self.history.cloud, reply.account, request.region, ids, now=now)
        before = [(instance, instance.state(now)) for instance in instances]
        for instance in instances:
            self.lives.end(instance.id, "api")
        return (
            wire.answer("TerminateInstances", shown.terminated(before, self.now()), new_id()),
            msgspec.structs.replace(reply, instance_ids=tuple(ids)),
        )

    def _describe(self, request: Request, account: str, effects: Effects, rng: Random) -> str:
        if "NextToken" in request.parameters and rng.random() < effects.torn_listing_ratio:
            raise Refused("Unavailable", "The server is overloaded and can't handle the request.")
        most = TORN_PAGE if effects.torn_listing_ratio else listing.MOST_RESULTS
        page = listing.page(self.history.cloud, account, request, now=self.now(), most=most)
        return wire.answer("DescribeInstances", shown.listed(page, self.lives.descriptions, self.now()), new_id())

    async def _console(self, request: Request, account: str) -> str:
        ids = [request.parameters.get("InstanceId", "")]
        (instance,) = listing.by_ids(self.history.cloud, account, request.region, ids, now=self.now())
        path, boots_at = self.lives.machines.console(instance.id), instance.created.boots_at
        posted = boots_at is not None and boots_at + self.history.cloud.rules.console_seconds <= self.now()
        output = await asyncio.to_thread(
            lambda: path.read_bytes()[-CONSOLE_BYTES:] if posted and path.exists() else b""
        )
        inner = f"<instanceId>{instance.id}</instanceId><timestamp>{_iso(self.now())}</timestamp>"
        return wire.answer("GetConsoleOutput", f"{inner}<output>{base64.b64encode(output).decode()}</output>", new_id())

    def _tag(self, request: Request, account: str) -> None:
        tags = wire.pairs(request.parameters, "Tag")
        named = [self.history.cloud.instances.get(id_) for id_ in request.numbered("ResourceId")]
        mine = [i for i in named if i is not None and i.created.account == account]
        self.history.record(Tagged(at=self.now(), instance_id=instance.id, tags=tags) for instance in mine)

    async def count(self, tag: str) -> dict[str, dict[str, int]]:
        """Resources by the value of a tag, over all accounts and regions that were called: those that moto has, and the
        seeded instances, which it lacks."""
        total: dict[str, dict[str, int]] = {}
        for scope in self.lives.scopes.values():
            for value, counts in (await self.moto.count(scope, tag)).items():
                before = total.setdefault(value, dict.fromkeys(counts, 0))
                total[value] = {kind: before[kind] + number for kind, number in counts.items()}
        for instance in self.history.cloud.instances.values():
            if instance.created.seeded and instance.terminated_at is None:
                found = total.setdefault(instance.tags.get(tag, ""), {"instances": 0, "volumes": 0, "interfaces": 0})
                found["instances"] += 1
        return total


def media_type(request: Request) -> str:
    return "application/x-amz-json-1.1" if request.service in wire.JSON_SERVICES else "text/xml"


def fingerprint(parameters: Mapping[str, str]) -> str:
    """Fingerprint of all parameters of a call."""
    return hashlib.sha256(urlencode(sorted(parameters.items())).encode()).hexdigest()[:16]


def _of_moto(request: Request, launch: Launch) -> dict[str, str]:
    """Parameters of a launch for moto, which knows no ids of zones, and has no instance profiles unless IAM is
    played."""
    unknown = ("Placement.AvailabilityZoneId", "IamInstanceProfile.")
    known = {name: value for name, value in request.parameters.items() if not name.startswith(unknown)}
    return known | ({"Placement.AvailabilityZone": launch.zone} if launch.token_zone else {})


def _count(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _tagging(resources: Sequence[str], tags: Mapping[str, str]) -> dict[str, str]:
    parameters = {f"ResourceId.{n}": resource for n, resource in enumerate(resources, 1)}
    for n, (key, value) in enumerate(tags.items(), 1):
        parameters |= {f"Tag.{n}.Key": key, f"Tag.{n}.Value": value}
    return parameters
