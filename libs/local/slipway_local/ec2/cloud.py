"""Answers of the stand-in to launch calls, and its instances. Pure: `now` and chance are arguments.

Decides idempotency, capacity, quota and the fate of new machines. Admission by token buckets is in buckets.py, lists
are in listing.py. moto checks everything else and has the instances too.
"""

import re
from collections import Counter
from collections.abc import Iterator
from math import inf
from random import Random
from typing import Final

import msgspec

from slipway_local.ec2.facts import (
    EndedBy,
    Fact,
    FaultCleared,
    FaultSet,
    InstanceCreated,
    Launch,
    Notice,
    Noticed,
    Reply,
    ScenarioLoaded,
    ShuttingDown,
    Stopped,
    Tagged,
    Terminated,
)
from slipway_local.ec2.faults import NOTATION, Death, Effects
from slipway_local.ec2.scenario import Image, Scenario
from slipway_local.ec2.wire import Refused
from slipway_simulator.cloud import lognormal
from slipway_simulator.limits import size
from slipway_simulator.notation import Fault

USER_DATA_BYTES_MAX: Final = 16384
TAGS_MAX: Final = 50
INSTANCES_MAX: Final = 1000  # of one launch or terminate call
# Codes after which EC2 has not looked at the token: nothing is kept about the call.
BEFORE_TOKEN: Final = frozenset({"RequestLimitExceeded", "RequestExpired", "ExpiredToken", "AuthFailure"})
# Families with a quota of their own; those of STANDARD share one, except for these.
OWN_FAMILIES: Final = ("dl", "f", "hpc", "inf", "mac", "p", "trn", "u", "x")
GRAPHICS: Final = ("g", "gr", "vt")
STANDARD: Final = "acdhimrtz"
VCPUS: Final = {"nano": 1, "micro": 1, "small": 1, "medium": 1, "large": 2, "xlarge": 4, "metal": 96}
CLOCK_SECONDS_MAX: Final = 300  # difference of the clocks from which calls are refused
NO_SPOT: Final = "There is no Spot capacity available that matches your request."


class Instance(msgspec.Struct):
    """An instance, from its creation until it is no longer shown. `number` orders all instances, `token` is that of
    the launch."""

    created: InstanceCreated
    number: int
    token: str
    tags: dict[str, str]
    ended_by: EndedBy | None = None
    reason: str = ""
    shuts_down_at: float | None = None
    terminated_at: float | None = None
    is_stopped: bool = False
    notices: dict[Notice, Noticed] = {}

    @property
    def id(self) -> str:
        return self.created.instance_id

    @property
    def lives(self) -> bool:
        return self.shuts_down_at is None

    def state(self, now: float) -> str:
        if self.terminated_at is not None:
            return "terminated"
        if self.shuts_down_at is not None:
            return "shutting-down"
        if self.is_stopped:
            return "stopped"
        return "running" if now >= self.created.runs_at and not self.created.dies else "pending"


class Used(msgspec.Struct):
    """A token that was used: the parameters of its calls, and the instances of the one that was accepted."""

    request: str
    instance_ids: tuple[str, ...] = ()


class Granted(msgspec.Struct, frozen=True):
    """So many instances are created."""

    count: int


class Repeated(msgspec.Struct, frozen=True):
    """The call was accepted before, and created these instances."""

    instance_ids: tuple[str, ...]


TokenKey = tuple[str, str, str, str]


class Cloud(msgspec.Struct):
    """State of all accounts and regions. Times in `rules` are in the same clock as `now`."""

    rules: Scenario = Scenario()
    started_at: float = 0.0
    faults: tuple[Fault, ...] = ()
    instances: dict[str, Instance] = {}
    places: dict[tuple[str, str], dict[str, Instance]] = {}  # the same by account and region
    launches: dict[str, Launch] = {}
    tokens: dict[TokenKey, Used] = {}
    created: int = 0
    calls: int = 0
    lost_replies: int = 0
    replies: dict[str, Counter[str]] = {}

    def fold(self, fact: Fact) -> None:
        match fact:
            case ScenarioLoaded():
                self.rules, self.started_at = fact.scenario.on_the_wall(), fact.at
                self.faults = fact.scenario.faults
            case FaultSet():
                self.faults = (*self.faults, fact.fault)
            case FaultCleared():
                self.faults = tuple(fault for fault in self.faults if fault.name != fact.name)
            case Launch():
                self.launches[fact.call_id] = fact
            case Reply():
                self._replied(fact)
            case InstanceCreated():
                token = "" if fact.seeded else self.launches[fact.call_id].token
                self.created += 1
                new = Instance(fact, self.created, token, dict(fact.tags))
                self.instances[fact.instance_id] = new
                self.places.setdefault((fact.account, fact.region), {})[fact.instance_id] = new
            case _:
                if instance := self.instances.get(getattr(fact, "instance_id", "")):
                    _fold_instance(instance, fact)

    def _replied(self, fact: Reply) -> None:
        self.calls += 1
        self.lost_replies += fact.lost
        self.replies.setdefault(fact.action, Counter())[fact.code] += 1
        launch = self.launches.pop(fact.call_id, None)
        if launch is None or not launch.token or fact.code in BEFORE_TOKEN:
            return
        used = self.tokens.setdefault(token_key(launch), Used(launch.request))
        if fact.code == "OK" and not used.instance_ids:
            self.tokens[token_key(launch)] = Used(launch.request, fact.instance_ids)

    def effects(self, now: float) -> Effects:
        return NOTATION.effects(self.faults, (now - self.started_at) * self.rules.speed)

    def live(self, zone: str, instance_type: str = "", lifecycle: str = "") -> int:
        """Live instances that use the capacity of a zone, of a type there, or of one lifecycle of that."""
        return sum(
            instance.lives
            and instance.created.zone == zone
            and instance_type in ("", instance.created.instance_type)
            and lifecycle in ("", instance.created.lifecycle)
            for instance in self.instances.values()
        )

    def forget(self, now: float) -> list[str]:
        """Remove instances that are no longer shown; returns their ids."""
        until = now - self.rules.expiry_seconds
        gone = [id_ for id_, i in self.instances.items() if i.terminated_at is not None and i.terminated_at <= until]
        for instance_id in gone:
            created = self.instances.pop(instance_id).created
            del self.places[created.account, created.region][instance_id]
        return gone


def _fold_instance(instance: Instance, fact: Fact) -> None:
    match fact:
        case Tagged():
            instance.tags |= fact.tags
        case Noticed():
            instance.notices[fact.notice] = fact
        case ShuttingDown():
            instance.ended_by, instance.reason, instance.shuts_down_at = fact.by, fact.reason, fact.at
        case Stopped():
            instance.is_stopped = True
        case Terminated():
            instance.terminated_at = fact.at
        case _:
            pass


def token_key(launch: Launch) -> TokenKey:
    return launch.account, launch.region, launch.token_zone, launch.token


def decide_launch(cloud: Cloud, launch: Launch, effects: Effects, *, now: float) -> Granted | Repeated:
    """Decide a launch call. Raises Refused."""
    honoured = bool(launch.token) and cloud.rules.honours_tokens and not effects.ignore_token
    if honoured and cloud.rules.tokens_first and (repeated := _repeated(cloud, launch)):
        return repeated
    check(cloud, launch, effects)
    room = _room(cloud, launch, effects, now)
    if honoured and not cloud.rules.tokens_first and (repeated := _repeated(cloud, launch)):
        return repeated
    return Granted(int(min(launch.count, room)))


def _repeated(cloud: Cloud, launch: Launch) -> Repeated | None:
    used = cloud.tokens.get(token_key(launch))
    if used is None:
        return None
    if used.request != launch.request:
        raise Refused(
            "IdempotentParameterMismatch",
            "Arguments on this idempotent request are inconsistent with arguments used in previous request(s).",
        )
    if not used.instance_ids:
        return None  # the earlier call failed, so this one is decided anew
    known = [cloud.instances.get(instance_id) for instance_id in used.instance_ids]
    if all(instance is None or not instance.lives for instance in known):
        raise Refused(
            "IdempotentInstanceTerminated",
            "The instances launched by this request have been terminated.",
        )
    return Repeated(used.instance_ids)


def check(cloud: Cloud, launch: Launch, effects: Effects, *, is_dry: bool = False) -> None:
    """Check the parameters of a launch; of a dry run not what may change until a launch. Raises Refused."""
    if not 1 <= launch.least <= launch.count:
        raise Refused("InvalidParameterValue", "MinCount has to be between 1 and MaxCount")
    if launch.count > INSTANCES_MAX:
        raise Refused("InvalidParameterValue", f"at most {INSTANCES_MAX} instances may be launched by one call")
    if cloud.rules.images.get(launch.image, Image()).bad == "not_found":
        raise Refused("InvalidAMIID.NotFound", f"The image id '[{launch.image}]' does not exist")
    if launch.image in effects.unshared_images:
        raise Refused("AuthFailure", f"Not authorized for images: [{launch.image}]", 400)
    if not is_dry and effects.full_subnets & {launch.subnet, launch.zone}:
        raise Refused(
            "InsufficientFreeAddressesInSubnet",
            f"There are not enough free addresses in subnet '{launch.subnet}' to satisfy the requested number of "
            "instances.",
        )


def _room(cloud: Cloud, launch: Launch, effects: Effects, now: float) -> float:
    """Instances that quota and capacity admit, at least the minimum of the call. Raises Refused."""
    kind, spot = family(launch.instance_type), launch.lifecycle == "spot"
    name = f"{kind}/spot" if spot else kind
    quota = cloud.rules.account(launch.account).quota.get(name, inf)
    if launch.account in effects.quota_used_up:
        quota = 0
    admitted = (
        (quota - vcpus_in_use(cloud, launch.account, launch.region, name)) // vcpus(launch.instance_type)
        if quota < inf
        else inf
    )
    if admitted < launch.least:
        if spot:
            raise Refused("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
        raise Refused(
            "VcpuLimitExceeded",
            f"You have requested more vCPU capacity than your current vCPU limit of {quota:g} allows for the instance "
            "bucket that the specified instance type belongs to.",
        )
    room = min(admitted, _capacity(cloud, launch, effects, now))
    if room < launch.least:
        raise Refused(
            "InsufficientInstanceCapacity",
            NO_SPOT
            if spot
            else f"We currently do not have sufficient {launch.instance_type} capacity in the Availability Zone you "
            f"requested ({launch.zone}).",
        )
    return room


def _capacity(cloud: Cloud, launch: Launch, effects: Effects, now: float) -> float:
    elapsed = now - cloud.started_at
    room = inf
    for key in capacity_keys(launch.zone, launch.instance_type, launch.lifecycle):
        if key in effects.no_capacity:
            return 0
        if key in cloud.rules.capacity:
            room = min(room, size(cloud.rules.capacity[key], elapsed) - cloud.live(*key.split("/")))
    return room


def capacity_keys(zone: str, instance_type: str, lifecycle: str) -> tuple[str, str, str]:
    """Keys of the capacity that a launch uses, in scenarios and faults."""
    return zone, f"{zone}/{instance_type}", f"{zone}/{instance_type}/{lifecycle}"


def vcpus_in_use(cloud: Cloud, account: str, region: str, quota: str) -> int:
    """vCPUs of live instances that count towards a quota, such as `standard` or `standard/spot`."""
    kind, _, lifecycle = quota.partition("/")
    return sum(
        vcpus(instance.created.instance_type)
        for instance in cloud.instances.values()
        if instance.lives
        and (instance.created.account, instance.created.region) == (account, region)
        and instance.created.lifecycle == (lifecycle or "on-demand")
        and family(instance.created.instance_type) == kind
    )


def family(instance_type: str) -> str:
    """Family to whose quota a type belongs: `standard` of m5.large."""
    match = re.match(r"[a-z]+", instance_type)
    letters = match[0] if match else instance_type
    if letters in GRAPHICS:
        return "g-vt"
    return "standard" if letters not in OWN_FAMILIES and letters[:1] in STANDARD else letters


def vcpus(instance_type: str) -> int:
    """vCPUs of a type, by its size."""
    kind = instance_type.partition(".")[2]
    if match := re.fullmatch(r"(\d+)xlarge", kind):
        return 4 * int(match[1])
    return VCPUS.get(kind, 2)


def latency_seconds(cloud: Cloud, action: str, effects: Effects, rng: Random) -> float:
    """Seconds until a call takes effect and is answered. Only launch calls are slow without a fault."""
    own = lognormal(cloud.rules.latency_seconds, cloud.rules.latency_sigma, rng) if action == "RunInstances" else 0.0
    return own + effects.latency_seconds / cloud.rules.speed


def injected(effects: Effects, action: str, rng: Random) -> Refused | None:
    """Refusal by a fault, if one applies to this call."""
    if effects.expired or abs(effects.clock_seconds) >= CLOCK_SECONDS_MAX:
        return Refused("RequestExpired", "Request has expired.")
    for refusal in effects.refusals:
        if refusal.action == action and rng.random() < refusal.ratio:
            return Refused(refusal.code, f"{action} is refused by a fault")
    return None


def created(
    cloud: Cloud, launch: Launch, instance_id: str, place: tuple[str, int], effects: Effects, now: float, rng: Random
) -> InstanceCreated:
    """The fact of a new instance; `place` is its reservation and its index in that."""
    rules = cloud.rules
    boot_seconds = lognormal(rules.boot_seconds_median * effects.boot_factor, rules.boot_sigma, rng)
    runs_at = now + rules.pending_seconds
    bad = rules.images.get(launch.image, Image()).bad == "never_registers"
    return InstanceCreated(
        at=now,
        instance_id=instance_id,
        call_id=launch.call_id,
        account=launch.account,
        region=launch.region,
        reservation=place[0],
        index=place[1],
        deployment=launch.deployment,
        batch=launch.batch,
        config=launch.config,
        zone=launch.zone,
        instance_type=launch.instance_type,
        lifecycle=launch.lifecycle,
        image=launch.image,
        visible_at=now + rules.visibility_seconds + effects.late_seconds / rules.speed,
        runs_at=runs_at,
        boots_at=None if bad else runs_at + boot_seconds,
        dies=_death(effects.deaths, rng),
        stays_when_off=launch.stays_when_off,
        tags=launch.tags,
        breaks=launch.image in effects.bad_images,
    )


def _death(deaths: tuple[Death, ...], rng: Random) -> str:
    return next((death.code for death in deaths if rng.random() < death.ratio), "")


def interrupted(cloud: Cloud, effects: Effects, *, now: float) -> Iterator[Noticed]:
    """Interruption notices that a fault causes now. A machine gets one notice."""
    if not effects.interrupted:
        return
    for instance in cloud.instances.values():
        if not interruptible(instance):
            continue
        keys = capacity_keys(instance.created.zone, instance.created.instance_type, "spot")
        if effects.interrupted.intersection(keys):
            yield notice(cloud, instance, "interruption", now=now)


def interruptible(instance: Instance) -> bool:
    return instance.lives and instance.created.lifecycle == "spot" and "interruption" not in instance.notices


def notice(cloud: Cloud, instance: Instance, kind: Notice, *, now: float) -> Noticed:
    return Noticed(at=now, instance_id=instance.id, notice=kind, ends_at=now + cloud.rules.notice_seconds)


STATE_CODES: Final = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
REASONS: Final[dict[EndedBy, str]] = {
    "self": "Client.InstanceInitiatedShutdown",
    "api": "Client.UserInitiatedShutdown",
    "spot": "Server.SpotInstanceTermination",
    "fault": "Server.InternalError",
}
