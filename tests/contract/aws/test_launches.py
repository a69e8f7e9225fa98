"""Launch calls to EC2: one send each, repeats that are equal byte for byte, partial grants, refusals, lost replies."""

from typing import Any

import msgspec
import pytest

from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_provisioner.providers.aws.adapter import Ec2
from slipway_provisioner.providers.pacing import LocalBuckets, Share
from slipway_provisioner.providers.port import CreateRequest, OutcomeUnknown, ProviderSettings, Refused
from tests.contract.aws.conftest import Cloud, request, result
from tests.support.ec2_server import LOST, Reply, described, error, html, instance, launched


def committed(cloud: Cloud, asked: CreateRequest, **account: Any) -> CreateRequest:
    """The request as the database returns it: with the committed call, and keys in another order."""
    call = cloud.provider.call(cloud.account(**account), asked.config)
    body = msgspec.json.decode(msgspec.json.encode({**asked.config, "call": call}, order="sorted"))
    return msgspec.structs.replace(asked, config=dict(reversed(body.items())))


async def test_a_launch(cloud: Cloud) -> None:
    cloud.server.answers(launched("i-1", "i-2"))
    asked = request(2)
    assert await cloud.provider.create(cloud.account(), asked) == ["i-1", "i-2"]
    (call,) = cloud.server.received
    sent = call.parameters
    assert (sent["MinCount"], sent["MaxCount"], sent["ClientToken"]) == ("1", "2", asked.token)
    tags = {sent[f"TagSpecification.1.Tag.{n}.Key"]: sent[f"TagSpecification.1.Tag.{n}.Value"] for n in range(1, 6)}
    assert tags == {
        "slipway-deployment": "deployment-1",
        "slipway-account": "ci/aws",
        "slipway-incarnation": "in",
        "slipway-batch": asked.batch_id,
        "slipway-launch-config": "linux/a@1",
    }


async def test_a_lost_reply_is_repeated_byte_for_byte(cloud: Cloud) -> None:
    """Also by another replica, whose account has other settings meanwhile: EC2 refuses a token with other
    parameters, and launches again under another token."""
    settings: dict[str, Any] = {"lifecycle": "spot", "subnet_id": "subnet-0a", "tags": {"b": "2", "a": "1"}}
    first = request(3, **settings)
    repeat = committed(cloud, first, tags={"team": "ci"})
    first = msgspec.structs.replace(
        first, config={**first.config, "call": cloud.provider.call(cloud.account(tags={"team": "ci"}), first.config)}
    )
    cloud.server.answers(LOST, launched("i-1", "i-2", "i-3", spot=True))
    with pytest.raises(OutcomeUnknown) as unknown:
        await cloud.provider.create(cloud.account(tags={"team": "ci"}), first)
    assert not unknown.value.look_up
    other = Ec2(cloud.provider.settings)
    await other.open()
    try:
        assert await other.create(cloud.account(tags={"team": "else"}), repeat) == ["i-1", "i-2", "i-3"]
    finally:
        await other.close()
    one, two = cloud.server.received
    assert one.body == two.body
    assert b"ClientToken" in one.body


@pytest.mark.parametrize("lifecycle", ["on-demand", "spot"])
async def test_a_partial_grant_is_charged_to_its_capacity(cloud: Cloud, lifecycle: str) -> None:
    """Those that EC2 granted are bound; the others are charged to capacity of the same lifecycle."""
    cloud.server.answers(launched("i-1", "i-2", spot=lifecycle == "spot"))
    asked = request(5, lifecycle=lifecycle)
    assert await cloud.provider.create(cloud.account(), asked) == ["i-1", "i-2"]
    lacking = cloud.provider.failure(cloud.account(), asked.config, "PartialCapacity", Scope.CAPACITY)
    assert (lacking.scope, lacking.scope_key) == (Scope.CAPACITY, f"us-east-1/use1-az4/m5.large/{lifecycle}")


#         reply                                                        scope, key, retry after
REFUSALS = [
    (error("InsufficientInstanceCapacity", "no", 500), Scope.CAPACITY, "us-east-1/use1-az4/m5.large/on-demand", None),
    (error("InvalidAMIID.NotFound"), Scope.IMAGE, "ami-1", None),
    (error("AuthFailure", "Not authorized for images: [ami-1]", 401), Scope.IMAGE, "ami-1", None),
    (error("AuthFailure", "could not validate", 401), Scope.CREDENTIAL, "ci/aws", None),
    (error("VcpuLimitExceeded"), Scope.QUOTA, "ci%2Faws/us-east-1/standard", None),
    (error("VolumeLimitExceeded"), Scope.QUOTA, "ci%2Faws/us-east-1/volumes", None),
    (error("InsufficientFreeAddressesInSubnet"), Scope.QUOTA, "ci%2Faws/us-east-1/subnet/subnet-0a", None),
    (
        error("AuthFailure.ServiceLinkedRoleCreationNotPermitted", status=403),
        Scope.CREDENTIAL,
        "ci%2Faws/spot",
        None,
    ),
    (error("InvalidParameterValue"), Scope.CONFIG, "linux/a@1", None),
    (error("RequestLimitExceeded", "slow down", 503, x_amz_retry_after="1500"), Scope.LIMITER, "ci/aws", 1.5),
]


@pytest.mark.parametrize(("answer", "scope", "key", "retry"), REFUSALS)
async def test_a_refusal_is_sent_once_and_charged_by_its_code(
    cloud: Cloud, answer: Reply, scope: Scope, key: str, retry: float | None
) -> None:
    cloud.server.answers(answer)
    with pytest.raises(Refused) as refused:
        await cloud.provider.create(cloud.account(), request(2, subnet_id="subnet-0a"))
    outcome = refused.value.outcome
    assert (outcome.stage, outcome.result, outcome.classified) == (Stage.LAUNCH, Result.FAILED, True)
    assert (outcome.scope, outcome.scope_key) == (scope, key)
    assert (refused.value.throttled, refused.value.retry_after_seconds) == (scope is Scope.LIMITER, retry)
    assert cloud.server.actions() == ["RunInstances"]


UNKNOWN = {
    "internal-error": error("InternalError", status=500),
    "unavailable": error("Unavailable", status=503),
    "unlisted-server-error": error("Gremlins", status=500),
    "html-502": html(502),
    "html-503": html(503),
    "no-reply": LOST,
    "cut-short": Reply("<RunInstancesResponse>" + 200 * "x", cut=50),
    "not-xml": Reply("nonsense"),
    "no-instances": launched(),
}


@pytest.mark.parametrize("answer", UNKNOWN.values(), ids=list(UNKNOWN))
async def test_a_reply_that_proves_nothing_is_sent_once_and_stays_unknown(cloud: Cloud, answer: Reply) -> None:
    cloud.server.answers(answer)
    with pytest.raises(OutcomeUnknown):
        await cloud.provider.create(cloud.account(), request())
    assert cloud.server.actions() == ["RunInstances"]


async def test_an_unlisted_code_is_unclassified_with_a_redacted_sample(cloud: Cloud) -> None:
    cloud.server.answers(error("Gremlins", "they ate AKIAIOSFODNN7EXAMPLE token=abc, sorry"))
    with pytest.raises(Refused) as refused:
        await cloud.provider.create(cloud.account(), request())
    expected = Outcome(
        Stage.LAUNCH,
        Result.FAILED,
        Scope.CONFIG,
        "linux/a@1",
        "Gremlins",
        classified=False,
        sample="they ate … token=…, sorry",
    )
    assert refused.value.outcome == expected


async def test_codes_of_other_calls_are_unclassified(cloud: Cloud) -> None:
    """A refused launch that no row counted would be tried again and again."""
    cloud.server.answers(error("InvalidInstanceID.NotFound"))
    with pytest.raises(Refused) as refused:
        await cloud.provider.create(cloud.account(), request())
    assert (refused.value.outcome.scope, refused.value.outcome.classified) == (Scope.CONFIG, False)


async def test_settings_of_the_account_classify_a_code(cloud: Cloud) -> None:
    cloud.server.answers(error("Gremlins", status=500))
    with pytest.raises(Refused) as refused:
        await cloud.provider.create(cloud.account(errors={"Gremlins": "image"}), request())
    assert (refused.value.outcome.scope, refused.value.outcome.classified) == (Scope.IMAGE, True)


@pytest.mark.parametrize("code", ["IdempotentParameterMismatch", "IdempotentInstanceTerminated"])
async def test_a_token_that_was_used_is_looked_up(cloud: Cloud, code: str) -> None:
    """Its instances are bound, also those that have ended since. While some are not listed, the outcome stays unknown,
    and a repeat would answer the same."""
    found = described(instance("i-1", "terminated"), instance("i-2"))
    cloud.server.answers(RunInstances=error(code), DescribeInstances=[found, described(instance("i-2")), described()])
    asked = request(2)
    assert await result(cloud, cloud.account(), asked) == ["i-1", "i-2"]
    looked_up = cloud.server.received[-1]
    assert asked.batch_id in looked_up.parameters.values()
    assert "instance-state-name" not in looked_up.parameters.values()
    for _ in range(2):
        with pytest.raises(OutcomeUnknown) as unknown:
            await cloud.provider.create(cloud.account(), asked)
        assert unknown.value.look_up


async def test_settings_of_another_provider_are_refused(cloud: Cloud) -> None:
    """An account may have changed its provider since its launch configs were declared: their launches fail, and no
    others."""
    asked = request(tags="none")
    assert cloud.provider.call(cloud.account(), asked.config) == {}
    assert cloud.provider.subnet(cloud.account(), request(tags="none", subnet_id=7).config) == ""
    assert cloud.provider.subnet(cloud.account(), request(tags="none", subnet_id="subnet-0a").config) == "subnet-0a"
    with pytest.raises(Refused) as refused:
        await cloud.provider.create(cloud.account(), asked)
    outcome = refused.value.outcome
    assert (outcome.scope, outcome.scope_key, outcome.code) == (Scope.CONFIG, "linux/a@1", "InvalidSettings")
    assert not cloud.server.received


async def test_a_refused_repeat_proves_nothing(cloud: Cloud) -> None:
    assert cloud.provider.honours_tokens(cloud.account())
    assert not cloud.provider.checks_tokens_first(cloud.account())


async def test_an_empty_bucket_puts_the_call_back(cloud: Cloud) -> None:
    """Nothing is sent that AWS would throttle; the wait is what is missing."""
    provider = Ec2(ProviderSettings(timeout_seconds=60, pacing=LocalBuckets(lambda: 0.0)))
    await provider.open()
    cloud.server.answers(launched("i-1"))
    try:
        for _ in range(5):
            await provider.create(cloud.account(), request(100))
        with pytest.raises(Refused) as refused:
            await provider.create(cloud.account(), request(1000))
    finally:
        await provider.close()
    assert refused.value.throttled
    assert refused.value.retry_after_seconds == pytest.approx(250)
    assert len(cloud.server.received) == 5


async def test_a_throttle_empties_the_bucket(cloud: Cloud) -> None:
    """Calls of every replica then wait for new tokens, since others use the account too."""
    buckets = LocalBuckets(lambda: 0.0)
    provider = Ec2(ProviderSettings(timeout_seconds=60, pacing=buckets))
    await provider.open()
    cloud.server.answers(error("RequestLimitExceeded", status=503))
    calls = Share(bucket="aws/123456789012/us-east-1/run-calls", units=1, size=5, refill_per_second=2)
    try:
        with pytest.raises(Refused):
            await provider.create(cloud.account(), request())
    finally:
        await provider.close()
    assert await buckets.take([calls], within_seconds=9) == pytest.approx(0.5)
