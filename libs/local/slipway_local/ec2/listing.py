"""Lists of instances as EC2 shows them: filters, pages, what is not found yet and what is no longer shown. Pure."""

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from slipway_local.ec2.cloud import Cloud, Instance
from slipway_local.ec2.wire import Refused, Request

LEAST_RESULTS: Final = 5
MOST_RESULTS: Final = 1000
Value = Callable[[Instance, float], Sequence[str]]
# Values of an instance by filter; an instance matches a filter if one of its values does.
FILTERS: Final[Mapping[str, Value]] = {
    "instance-id": lambda i, now: [i.id],
    "instance-state-name": lambda i, now: [i.state(now)],
    "instance-type": lambda i, now: [i.created.instance_type],
    "instance-lifecycle": lambda i, now: [] if i.created.lifecycle == "on-demand" else [i.created.lifecycle],
    "availability-zone": lambda i, now: [i.created.zone],
    "image-id": lambda i, now: [i.created.image],
    "reservation-id": lambda i, now: [i.created.reservation],
    "client-token": lambda i, now: [i.token],
    "tag-key": lambda i, now: list(i.tags),
    "tag-value": lambda i, now: list(i.tags.values()),
}


class Page(msgspec.Struct, frozen=True):
    instances: Sequence[Instance]
    next_token: str = ""


def found(cloud: Cloud, account: str, region: str, instance_id: str, *, now: float) -> Instance | None:
    """Instance of an id that EC2 knows by now: created long enough ago, and not terminated for too long."""
    instance = cloud.instances.get(instance_id)
    if instance is None or (instance.created.account, instance.created.region) != (account, region):
        return None
    if instance.terminated_at is not None and instance.terminated_at + cloud.rules.expiry_seconds <= now:
        return None
    return instance if instance.created.visible_at <= now else None


def by_ids(cloud: Cloud, account: str, region: str, ids: Sequence[str], *, now: float) -> list[Instance]:
    """Instances of these ids. Raises Refused: one unknown id fails the whole call."""
    for instance_id in ids:
        if not instance_id.startswith("i-") or len(instance_id) < len("i-") + 8:
            raise Refused("InvalidInstanceID.Malformed", f'Invalid id: "{instance_id}"')
    known = {id_: found(cloud, account, region, id_, now=now) for id_ in ids}
    if missing := [id_ for id_, instance in known.items() if instance is None]:
        many = "s" if len(missing) > 1 else ""
        verb = "do" if many else "does"
        raise Refused("InvalidInstanceID.NotFound", f"The instance ID{many} '{', '.join(missing)}' {verb} not exist")
    return [instance for instance in known.values() if instance is not None]


def page(cloud: Cloud, account: str, request: Request, *, now: float, most: int = MOST_RESULTS) -> Page:
    """The answer to a DescribeInstances call; a page has at most `most` instances. Raises Refused."""
    ids, limit = request.numbered("InstanceId"), request.parameters.get("MaxResults", "")
    filters = request.filters()
    for name in filters:
        if name not in FILTERS and not name.startswith("tag:"):
            raise Refused("InvalidParameterValue", f"The filter '{name}' is invalid")
    if ids and limit:
        raise Refused(
            "InvalidParameterCombination",
            "The parameter instancesSet cannot be used with the parameter maxResults",
        )
    if ids:
        shown = by_ids(cloud, account, request.region, ids, now=now)
    else:
        here = cloud.places.get((account, request.region), {})
        shown = [i for id_ in here if (i := found(cloud, account, request.region, id_, now=now))]
    matching = [instance for instance in shown if matches(instance, filters, now)]
    return _cut(matching, limit, request.parameters.get("NextToken", ""), most)


def matches(instance: Instance, filters: Mapping[str, Sequence[str]], now: float) -> bool:
    return all(
        any(value == pattern or fnmatchcase(value, pattern) for value in values for pattern in patterns)
        for name, patterns in filters.items()
        for values in (_values(instance, name, now),)
    )


def _values(instance: Instance, name: str, now: float) -> Sequence[str]:
    if name.startswith("tag:"):
        value = instance.tags.get(name.removeprefix("tag:"))
        return [] if value is None else [value]
    return FILTERS[name](instance, now)


def _cut(instances: Sequence[Instance], limit: str, token: str, most: int) -> Page:
    """One page. A token is the number of the last instance before it, which may be gone by now."""
    if limit and not (limit.isdecimal() and LEAST_RESULTS <= int(limit) <= MOST_RESULTS):
        raise Refused(
            "InvalidParameterValue",
            f"Value ( {limit} ) for parameter maxResults is invalid. Expecting a value between {LEAST_RESULTS} and "
            f"{MOST_RESULTS}.",
        )
    if token and not token.isdecimal():
        raise Refused("InvalidNextToken", "The specified nextToken is invalid")
    rest = [instance for instance in instances if instance.number > int(token or 0)]
    shown = rest[: min(int(limit), most)] if limit else rest
    return Page(shown, str(shown[-1].number) if len(shown) < len(rest) else "")
