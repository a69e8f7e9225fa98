"""Answers of the simulated accounts to create calls. Pure: `now` and chance are arguments, state is the ledger folded.

Decides admission (token bucket), idempotency, quota, capacity, created instances and lost replies. Independent of
HTTP, of the kinds of faults (it takes their effects), and of what machines do after their creation.
"""

from collections.abc import Iterator, Mapping
from math import inf, log
from random import Random
from typing import Any

import msgspec

from slipway_simulator.facts import Call, Code, Fact, InstanceCreated, Reply, ScenarioLoaded, Terminated
from slipway_simulator.faults import Effects
from slipway_simulator.limits import Bucket, Throttle, size
from slipway_simulator.scenario import Account, Image, Scenario, Zone

MOST_PER_CALL = 1000


class Instance(msgspec.Struct, frozen=True):
    """A live instance, as the account lists it."""

    instance_id: str
    account: str
    zone: str
    family: str
    deployment: str
    batch: str
    config: str
    created_at: float
    visible_at: float
    boots_at: float | None

    def state(self, now: float) -> str:
        return "pending" if self.boots_at is not None and now < self.boots_at else "running"


class Launch(msgspec.Struct):
    """Request body of an idempotency token, and the instances that were created for it."""

    request: str
    instance_ids: list[str]


class Tally(msgspec.Struct):
    live: int = 0
    launched: int = 0


class Cloud(msgspec.Struct):
    """State of all accounts. Times in `rules` are in the same clock as `now`."""

    rules: Scenario = Scenario()
    started_at: float = 0.0
    instances: dict[str, Instance] = {}
    gone: set[str] = set()
    tokens: dict[tuple[str, str], Launch] = {}
    buckets: dict[str, Bucket] = {}
    tallies: dict[tuple[str, str, str], Tally] = {}
    calls: int = 0
    lost_replies: int = 0
    replies: dict[str, int] = {}

    def fold(self, fact: Fact) -> None:
        match fact:
            case ScenarioLoaded():
                self.rules, self.started_at = fact.scenario.on_the_wall(), fact.at
            case Call():
                self.calls += 1
            case Reply():
                self.lost_replies += fact.lost
                self.replies[fact.code] = self.replies.get(fact.code, 0) + 1
                if fact.bucket is not None:
                    self.buckets[fact.account] = Bucket(fact.bucket, fact.at)
            case InstanceCreated():
                self._created(fact)
            case Terminated():
                if instance := self.instances.pop(fact.instance_id, None):
                    self.gone.add(fact.instance_id)
                    self.tallies[instance.account, instance.zone, instance.family].live -= 1
            case _:
                pass

    def _created(self, fact: InstanceCreated) -> None:
        instance = Instance(
            fact.instance_id,
            fact.account,
            fact.zone,
            family(fact.instance_type),
            fact.deployment,
            fact.batch,
            fact.config,
            fact.at,
            fact.visible_at,
            fact.boots_at,
        )
        self.instances[fact.instance_id] = instance
        tally = self.tallies.setdefault((instance.account, instance.zone, instance.family), Tally())
        tally.live += 1
        tally.launched += 1
        launch = self.tokens.setdefault((fact.account, fact.token), Launch(fact.request, []))
        launch.instance_ids.append(fact.instance_id)

    def count(self, *, account: str | None = None, zone: str | None = None, family: str | None = None) -> Tally:
        """Live instances and launches so far, optionally of one account, zone or family."""
        found = [
            tally
            for (a, z, f), tally in self.tallies.items()
            if account in (None, a) and zone in (None, z) and family in (None, f)
        ]
        return Tally(sum(tally.live for tally in found), sum(tally.launched for tally in found))

    def listed(self, account: str, deployment: str, batch: str | None, *, now: float) -> Iterator[Instance]:
        """Instances in the answer of a list call: live, of this deployment, and visible by now."""
        for instance in self.instances.values():
            matches = (instance.account, instance.deployment) == (account, deployment)
            if matches and batch in (None, instance.batch) and instance.visible_at <= now:
                yield instance


def decide_create(
    cloud: Cloud, call: Call, user_data: Mapping[str, Any], *, effects: Effects, now: float, rng: Random
) -> tuple[Fact, ...]:
    """Facts that result from a create call; the last one is its Reply. The call itself is already recorded."""
    account = cloud.rules.account(call.account)
    if account is None:
        return (_refusal(call, "AuthFailure", f"no account {call.account}", None, now),)
    if call.account in effects.refused_credentials:
        return (_refusal(call, "AuthFailure", "the credential was revoked", None, now),)
    bucket, wait_seconds = _admit(cloud, call.account, account, effects, now)
    if wait_seconds:
        refusal = _refusal(call, "RequestLimitExceeded", "too many create calls", bucket, now)
        return (msgspec.structs.replace(refusal, retry_after_seconds=wait_seconds),)
    launch = cloud.tokens.get((call.account, call.token))
    honoured = cloud.rules.honours_tokens and not effects.ignore_token
    if launch and honoured:
        if launch.request != call.request:
            return (_refusal(call, "InvalidRequest", "the token was used with another body", bucket, now),)
        return (_accepted(call, tuple(launch.instance_ids), effects, bucket, now, rng, repeated=True),)
    if complaint := _complaint(cloud, call):
        return (_refusal(call, *complaint, bucket, now),)
    quota_room = _quota_room(cloud, call, account, effects)
    if quota_room < 1:
        return (_refusal(call, "QuotaExceeded", f"quota of {family(call.instance_type)} is used up", bucket, now),)
    capacity_room = _capacity_room(cloud, call, account, effects, now)
    if capacity_room < 1:
        return (_refusal(call, "InsufficientCapacity", f"no {call.instance_type} in {call.zone}", bucket, now),)
    number = int(min(call.count, quota_room, capacity_room))
    created = tuple(_instance(cloud, call, user_data, index, effects, now, rng) for index in range(number))
    ids = tuple(fact.instance_id for fact in created)
    return (*created, _accepted(call, ids, effects, bucket, now, rng))


def latency_seconds(cloud: Cloud, account_name: str, rng: Random) -> float:
    """Seconds until a create call takes effect and is answered."""
    account = cloud.rules.account(account_name) or Account()
    return lognormal(account.latency_seconds, account.latency_sigma, rng)


def lognormal(median: float, sigma: float, rng: Random) -> float:
    return rng.lognormvariate(log(median), sigma) if median > 0 else 0.0


def family(instance_type: str) -> str:
    """Instance family, to which quotas apply: m5 of m5.large."""
    return instance_type.partition(".")[0]


def _admit(cloud: Cloud, name: str, account: Account, effects: Effects, now: float) -> tuple[float | None, float]:
    """Tokens left after this call, and the seconds to wait if it is not admitted."""
    throttle: Throttle | None = cloud.rules.throttle_fault if effects.throttled else account.throttle
    if throttle is None:
        return None, 0.0
    return throttle.draw(cloud.buckets.get(name), 1.0, now)


def _complaint(cloud: Cloud, call: Call) -> tuple[Code, str] | None:
    if not 1 <= call.count <= MOST_PER_CALL:
        return "InvalidRequest", f"count {call.count} is not between 1 and {MOST_PER_CALL}"
    if cloud.rules.zones and call.zone not in cloud.rules.zones:
        return "InvalidRequest", f"no zone {call.zone}"
    if cloud.rules.images.get(call.image, Image()).bad == "not_found":
        return "ImageNotFound", f"no image {call.image}"
    return None


def _quota_room(cloud: Cloud, call: Call, account: Account, effects: Effects) -> float:
    if call.account in effects.quota_used_up:
        return 0
    kind = family(call.instance_type)
    if kind not in account.quota:
        return inf
    return account.quota[kind] - cloud.count(account=call.account, family=kind).live


def _capacity_room(cloud: Cloud, call: Call, account: Account, effects: Effects, now: float) -> float:
    if call.zone in effects.zones_out:
        return 0
    elapsed = now - cloud.started_at
    own = size(account.capacity.get(call.zone), elapsed) - cloud.count(account=call.account, zone=call.zone).live
    shared = size(cloud.rules.zones.get(call.zone, Zone()).capacity, elapsed) - cloud.count(zone=call.zone).live
    return min(own, shared)


def _instance(
    cloud: Cloud, call: Call, user_data: Mapping[str, Any], index: int, effects: Effects, now: float, rng: Random
) -> InstanceCreated:
    rules = cloud.rules
    image = rules.images.get(call.image, Image())
    median = rules.boot_seconds_median if image.boot_seconds_median is None else image.boot_seconds_median
    boot_seconds = lognormal(median * effects.boot_factor, rules.boot_sigma, rng)
    bad = "never_registers" if call.image in effects.bad_images else image.bad
    return InstanceCreated(
        at=now,
        instance_id=f"i-{len(cloud.instances) + len(cloud.gone) + index + 1:06d}",
        call_id=call.call_id,
        account=call.account,
        token=call.token,
        request=call.request,
        deployment=call.deployment,
        batch=call.batch,
        config=call.config,
        zone=call.zone,
        instance_type=call.instance_type,
        image=call.image,
        visible_at=now + rules.visibility_seconds,
        boots_at=None if bad == "never_registers" else now + boot_seconds,
        claims=bad != "never_claims",
        user_data=dict(user_data),
    )


def _accepted(
    call: Call,
    ids: tuple[str, ...],
    effects: Effects,
    bucket: float | None,
    now: float,
    rng: Random,
    *,
    repeated: bool = False,
) -> Reply:
    return Reply(
        at=now,
        call_id=call.call_id,
        account=call.account,
        code="OK",
        instance_ids=ids,
        lost=rng.random() < effects.lost_reply_ratio,
        repeated=repeated,
        bucket=bucket,
    )


def _refusal(call: Call, code: Code, message: str, bucket: float | None, now: float) -> Reply:
    return Reply(at=now, call_id=call.call_id, account=call.account, code=code, message=message, bucket=bucket)
