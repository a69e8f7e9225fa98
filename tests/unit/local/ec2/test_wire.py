"""EC2's query protocol and its XML."""

from urllib.parse import urlencode

import pytest

from slipway_local.ec2 import shown, wire
from slipway_local.ec2.wire import Refused, Request

SIGNED = "AWS4-HMAC-SHA256 Credential=AKIA1/20261123/eu-west-1/ec2/aws4_request, SignedHeaders=host, Signature=0"


def read(**parameters: str) -> Request:
    return wire.read(urlencode({k.replace("_", "."): v for k, v in parameters.items()}).encode(), SIGNED)


def test_request_is_read() -> None:
    request = read(
        Action="RunInstances",
        TagSpecification_1_ResourceType="volume",
        TagSpecification_1_Tag_1_Key="a",
        TagSpecification_1_Tag_1_Value="1",
        TagSpecification_2_ResourceType="instance",
        TagSpecification_2_Tag_1_Key="a",
        TagSpecification_2_Tag_1_Value="é&=",
        TagSpecification_2_Tag_2_Key="b",
        TagSpecification_2_Tag_2_Value="",
        InstanceId_10="j",
        InstanceId_2="i",
    )
    assert (request.action, request.access_key, request.region, request.service) == (
        "RunInstances",
        "AKIA1",
        "eu-west-1",
        "ec2",
    )
    assert request.tags("instance") == {"a": "é&=", "b": ""}
    assert request.tags("volume") == {"a": "1"}
    assert request.numbered("InstanceId") == ["i", "j"]


def test_filters_are_read() -> None:
    request = read(Action="A", Filter_1_Name="tag:a", Filter_1_Value_1="x", Filter_1_Value_2="y", Filter_11_Name="b")
    assert request.filters() == {"tag:a": ["x", "y"], "b": []}


@pytest.mark.parametrize(("body", "authorization"), [(b"Action=A", ""), (b"", SIGNED), (b"Action=A", "Basic x")])
def test_unsigned_request_and_request_without_action_are_refused(body: bytes, authorization: str) -> None:
    with pytest.raises(Refused):
        wire.read(body, authorization)


@pytest.mark.parametrize(
    ("code", "status"),
    [("InsufficientInstanceCapacity", 500), ("RequestLimitExceeded", 503), ("UnauthorizedOperation", 403), ("X", 400)],
)
def test_errors_have_the_status_of_their_code(code: str, status: int) -> None:
    refused = Refused(code, "a < b")
    assert refused.status == status
    for service in ("ec2", "sts"):
        read_back = wire.refusal(wire.parse(wire.error(refused, service, "id")), status)
        assert (read_back.code, read_back.message) == (code, "a < b")


def test_description_of_moto_loses_what_the_stand_in_decides() -> None:
    item = wire.parse(
        '<item xmlns="http://ec2.amazonaws.com/doc/2016-11-15"><instanceId>i-1</instanceId><instanceState><code>0</code>'
        "</instanceState><stateReason/><reason/><tagSet/><placement><availabilityZone>a</availabilityZone></placement>"
        "</item>"
    )
    assert shown.described(item, "use1-az6") == (
        "<item><instanceId>i-1</instanceId><placement><availabilityZone>a</availabilityZone>"
        "<availabilityZoneId>use1-az6</availabilityZoneId></placement>"
    )
