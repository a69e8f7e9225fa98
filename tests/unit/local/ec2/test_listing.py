"""Lists of instances: filters, pages, and when an instance is found."""

from typing import Any

import pytest

from slipway_local.ec2.cloud import Cloud
from slipway_local.ec2.facts import Tagged
from slipway_local.ec2.listing import MOST_RESULTS, by_ids, page
from slipway_local.ec2.wire import Refused, Request
from tests.unit.local.ec2.test_cloud import ZONE, cloud_of, end, launch, run


def request(**parameters: Any) -> Request:
    return Request(
        "DescribeInstances", {k.replace("_", "."): str(v) for k, v in parameters.items()}, "k", "us-east-1", "ec2"
    )


def shown(cloud: Cloud, now: float = 0.0, **parameters: Any) -> list[str]:
    return [instance.id for instance in page(cloud, "1", request(**parameters), now=now).instances]


def filtered(cloud: Cloud, name: str, *values: str) -> list[str]:
    allowed: dict[str, Any] = {f"Filter_1_Value_{n}": value for n, value in enumerate(values, 1)}
    return shown(cloud, Filter_1_Name=name, **allowed)


def test_filters() -> None:
    cloud = cloud_of()
    a, b = run(cloud, launch(count=2, tags={"slipway-batch": "b1", "x": ""}))
    (c,) = run(cloud, launch("call-2", token="u", lifecycle="spot", zone="us-east-1b", tags={"slipway-batch": "b2"}))
    end(cloud, b, 0.0)
    assert filtered(cloud, "tag:slipway-batch", "b1") == [a, b]
    assert filtered(cloud, "tag:slipway-batch", "b1", "b2") == [a, b, c]
    assert filtered(cloud, "tag:slipway-batch", "b*") == [a, b, c]
    assert filtered(cloud, "tag:x", "") == [a, b]
    assert filtered(cloud, "tag-key", "x") == [a, b]
    assert filtered(cloud, "client-token", "u") == [c]
    assert filtered(cloud, "instance-lifecycle", "spot") == [c]
    assert filtered(cloud, "availability-zone", ZONE) == [a, b]
    assert filtered(cloud, "instance-state-name", "pending", "running") == [a, c]
    both: dict[str, Any] = {"Filter_1_Name": "tag:x", "Filter_1_Value_1": "", "Filter_2_Name": "instance-state-name"}
    assert shown(cloud, **both, Filter_2_Value_1="terminated") == [b]
    cloud.fold(Tagged(at=0.0, instance_id=c, tags={"x": ""}))
    assert filtered(cloud, "tag:x", "") == [a, b, c]


def test_unknown_filter_is_refused() -> None:
    with pytest.raises(Refused, match="InvalidParameterValue"):
        filtered(cloud_of(), "colour", "red")


def test_pages_lose_nothing_when_instances_go_in_between() -> None:
    cloud = cloud_of(expiry_seconds=10)
    ids = run(cloud, launch(count=12))
    first = page(cloud, "1", request(MaxResults=5), now=0.0)
    assert [instance.id for instance in first.instances] == list(ids[:5])
    for gone in ids[:3]:
        end(cloud, gone, 0.0)
    assert cloud.forget(10.0) == list(ids[:3])
    second = page(cloud, "1", request(MaxResults=5, NextToken=first.next_token), now=10.0)
    assert [instance.id for instance in second.instances] == list(ids[5:10])
    third = page(cloud, "1", request(MaxResults=5, NextToken=second.next_token), now=10.0)
    assert ([instance.id for instance in third.instances], third.next_token) == (list(ids[10:]), "")


@pytest.mark.parametrize("limit", ["4", str(MOST_RESULTS + 1), "x", "-1"])
def test_bad_page_sizes_and_tokens_are_refused(limit: str) -> None:
    with pytest.raises(Refused, match="InvalidParameterValue"):
        page(cloud_of(), "1", request(MaxResults=limit), now=0.0)
    with pytest.raises(Refused, match="InvalidNextToken"):
        page(cloud_of(), "1", request(MaxResults=5, NextToken="x"), now=0.0)
    with pytest.raises(Refused, match="InvalidParameterCombination"):
        page(cloud_of(), "1", request(MaxResults=5, InstanceId_1="i-00000001"), now=0.0)


def test_instance_is_found_from_its_visibility_until_its_expiry() -> None:
    cloud = cloud_of(visibility_seconds=30, expiry_seconds=3600)
    (only,) = run(cloud, launch(), now=100.0)
    end(cloud, only, 200.0)
    times = {99.0: False, 129.9: False, 130.0: True, 3799.9: True, 3800.0: False}
    assert {at: shown(cloud, at) == [only] for at in times} == times
    for at, visible in times.items():
        if visible:
            assert by_ids(cloud, "1", "us-east-1", [only], now=at)
        else:
            with pytest.raises(Refused, match=r"InvalidInstanceID\.NotFound"):
                by_ids(cloud, "1", "us-east-1", [only], now=at)


@pytest.mark.parametrize(("account", "region"), [("2", "us-east-1"), ("1", "eu-west-1")])
def test_ids_of_others_are_not_found(account: str, region: str) -> None:
    cloud = cloud_of()
    (mine,) = run(cloud, launch())
    with pytest.raises(Refused, match=r"InvalidInstanceID\.NotFound"):
        by_ids(cloud, account, region, [mine], now=0.0)


def test_malformed_id() -> None:
    with pytest.raises(Refused, match=r"InvalidInstanceID\.Malformed"):
        by_ids(cloud_of(), "1", "us-east-1", ["worker-1"], now=0.0)
