"""Token buckets of the API groups, per account and region, as EC2 documents them. Pure: `now` is an argument."""

from collections.abc import Mapping
from typing import Final

from slipway_local.ec2.faults import Effects
from slipway_local.ec2.scenario import (
    CREATE_TAGS,
    DESCRIBE,
    DESCRIBE_ALL_INSTANCES,
    DESCRIBE_INSTANCES,
    MUTATE,
    RUN,
    RUN_INSTANCES,
    TERMINATE,
    TERMINATE_INSTANCES,
    Scenario,
)
from slipway_local.ec2.wire import Refused, Request
from slipway_simulator.limits import Bucket

READS: Final = ("Describe", "Get", "List")


class Buckets:
    """Levels of all buckets. A call draws on all of its groups or on none."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, str, str], Bucket] = {}

    def admit(self, account: str, request: Request, rules: Scenario, effects: Effects, now: float) -> None:
        """Draw the tokens of a call. Raises Refused if a bucket has too few."""
        left: dict[tuple[str, str, str], float] = {}
        for group, units in drawn(request).items():
            throttle = rules.throttle_fault if effects.throttled and group == RUN else rules.throttle(group)
            key = account, request.region, group
            level, wait_seconds = throttle.draw(self._buckets.get(key), units, now)
            if wait_seconds:
                what = "resource" if "/" in group else "request"
                raise Refused(
                    "RequestLimitExceeded",
                    f"Request limit exceeded: {request.action} exceeded its {what} rate limit for account {account}.",
                )
            left[key] = level
        self._buckets |= {key: Bucket(level, now) for key, level in left.items()}


def drawn(request: Request) -> Mapping[str, float]:
    """Tokens that a call draws, by group."""
    match request.action:
        case "RunInstances":
            count = request.parameters.get("MaxCount", "1")
            return {RUN: 1, RUN_INSTANCES: int(count) if count.isdecimal() else 1}
        case "TerminateInstances":
            return {TERMINATE: 1, TERMINATE_INSTANCES: len(request.numbered("InstanceId"))}
        case "DescribeInstances" | "DescribeInstanceStatus":
            narrowed = request.filters() or request.numbered("InstanceId") or "MaxResults" in request.parameters
            return {DESCRIBE_INSTANCES if narrowed else DESCRIBE_ALL_INSTANCES: 1}
        case "CreateTags":
            return {CREATE_TAGS: 1}
        case action if action.startswith(READS):
            return {DESCRIBE: 1}
        case _:
            return {MUTATE: 1}
