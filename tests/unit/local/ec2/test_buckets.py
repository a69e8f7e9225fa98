"""Token buckets of API groups, with the documented sizes."""

from typing import Any

import pytest

from slipway_local.ec2.buckets import Buckets, drawn
from slipway_local.ec2.faults import Effects
from slipway_local.ec2.scenario import THROTTLES, Scenario
from slipway_local.ec2.wire import Refused, Request
from slipway_simulator.limits import Throttle

NOTHING = Effects()


def request(action: str, region: str = "us-east-1", **parameters: Any) -> Request:
    return Request(action, {k.replace("_", "."): str(v) for k, v in parameters.items()}, "k", region, "ec2")


def admitted(buckets: Buckets, call: Request, times: int, now: float = 0.0, account: str = "1") -> int:
    """Calls that are admitted, of so many at one time."""
    count = 0
    for _ in range(times):
        try:
            buckets.admit(account, call, Scenario(), NOTHING, now)
        except Refused as refused:
            count -= refused.status != 503
        else:
            count += 1
    return count


@pytest.mark.parametrize(
    ("call", "burst", "a_second_later"),
    [
        (request("RunInstances", MaxCount=1), 5, 2),
        (request("RunInstances", MaxCount=1000), 1, 0),
        (request("TerminateInstances", InstanceId_1="i-1"), 100, 5),
        (request("DescribeInstances", MaxResults=5), 100, 20),
        (request("DescribeInstances", Filter_1_Name="tag:a"), 100, 20),
        (request("DescribeInstances"), 50, 10),
        (request("DescribeVolumes"), 100, 20),
        (request("GetConsoleOutput"), 100, 20),
        (request("CreateTags"), 100, 10),
        (request("DeleteVolume"), 50, 5),
    ],
)
def test_documented_sizes(call: Request, burst: int, a_second_later: int) -> None:
    buckets = Buckets()
    assert admitted(buckets, call, 150) == burst
    assert admitted(buckets, call, 150, now=1.0) == a_second_later


def test_refused_call_draws_nothing() -> None:
    buckets = Buckets()
    assert admitted(buckets, request("RunInstances", MaxCount=998), 1) == 1
    assert admitted(buckets, request("RunInstances", MaxCount=3), 10) == 0
    assert admitted(buckets, request("RunInstances", MaxCount=2), 10) == 1


def test_accounts_and_regions_have_buckets_of_their_own() -> None:
    buckets = Buckets()
    for account, region in (("1", "us-east-1"), ("2", "us-east-1"), ("1", "eu-west-1")):
        assert admitted(buckets, request("RunInstances", region), 10, account=account) == 5


def test_fault_throttles_launches_alone() -> None:
    buckets, effects = Buckets(), Effects(throttled=True)
    buckets.admit("1", request("RunInstances"), Scenario(), effects, 0.0)
    with pytest.raises(Refused, match="RequestLimitExceeded"):
        buckets.admit("1", request("RunInstances"), Scenario(), effects, 0.0)
    buckets.admit("1", request("DescribeInstances"), Scenario(), effects, 0.0)


def test_speed_and_scenario_change_the_buckets() -> None:
    rules = Scenario(speed=10, throttles={"RunInstances": Throttle(7, 1)}).on_the_wall()
    assert rules.throttle("RunInstances") == Throttle(7, 10)
    assert rules.throttle("Describe") == Throttle(100, 200)


def test_every_group_has_a_bucket() -> None:
    calls = [
        request("RunInstances"),
        request("TerminateInstances"),
        request("DescribeInstances"),
        request("CreateTags"),
    ]
    groups = {group for call in [*calls, request("DescribeInstances", MaxResults=5)] for group in drawn(call)}
    groups |= {group for action in ("DescribeImages", "DeleteVolume") for group in drawn(request(action))}
    assert groups == THROTTLES.keys()
