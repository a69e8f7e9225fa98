"""Listings, look-ups and ends of EC2 instances: an instance that is not visible yet is not gone."""

import base64
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from slipway_api.events.scopes import subnet_key
from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_common.base.clock import utc_now
from slipway_provisioner.domain.cloud import Instance, InstanceState
from slipway_provisioner.providers.aws import calls, remains, replies
from slipway_provisioner.providers.aws.adapter import Ec2
from slipway_provisioner.providers.pacing import LocalBuckets, Share
from slipway_provisioner.providers.port import (
    CONSOLE_BYTES_MAX,
    OutcomeUnknown,
    ProviderSettings,
    Refused,
    TerminationRefused,
)
from tests.contract.aws.conftest import Cloud, request
from tests.support.ec2_server import (
    LOST,
    Received,
    Reply,
    caller,
    described,
    error,
    html,
    instance,
    reply,
    zones,
)

YOUNG = timedelta(seconds=200)
OLD = timedelta(seconds=400)
ZONES = zones(us_east_1a="use1-az4")


def filters(call: Received) -> dict[str, list[str]]:
    """Filters of a call by name."""
    found = {}
    number = 1
    while name := call.parameters.get(f"Filter.{number}.Name"):
        found[name] = call.listed(f"Filter.{number}.Value")
        number += 1
    return found


async def test_a_listing_has_pages(cloud: Cloud) -> None:
    """Also empty ones before the last; terminated instances that it still shows are left out."""
    tags = {"slipway-batch": "b", "slipway-launch-config": "c"}
    cloud.server.answers(
        described(instance("i-1", "pending", tags=tags), instance("i-2", "terminated"), more="one"),
        described(more="two"),
        described(instance("i-3"), instance("i-4", "shutting-down"), instance("i-5", "stopped")),
    )
    pages = [page async for page in cloud.provider.pages(cloud.account(), batch_id="b")]
    found: list[Instance] = [each for page in pages for each in page]
    assert [len(page) for page in pages] == [1, 0, 3]
    assert [each.id for each in found] == ["i-1", "i-3", "i-4", "i-5"]
    assert [each.state for each in found] == [
        InstanceState.PENDING,
        InstanceState.RUNNING,
        InstanceState.STOPPING,
        InstanceState.STOPPING,
    ]
    assert (found[0].batch_id, found[0].launch_config_id, found[1].batch_id) == ("b", "c", "")
    first, *others = cloud.server.received
    assert filters(first) == {
        "tag:slipway-deployment": ["deployment-1"],
        "tag:slipway-account": ["ci/aws"],
        "tag:slipway-batch": ["b"],
        "instance-state-name": ["pending", "running", "stopping", "stopped", "shutting-down"],
    }
    assert first.parameters["MaxResults"] == "200"
    assert [call.parameters["NextToken"] for call in others] == ["one", "two"]


@pytest.mark.parametrize("answer", [error("InvalidNextToken"), error("InternalError", status=500), html(503), LOST])
async def test_a_listing_that_fails_half_way_is_no_listing(cloud: Cloud, answer: Reply) -> None:
    cloud.server.answers(described(instance("i-1"), more="one"), answer)
    with pytest.raises(OutcomeUnknown) as unknown:
        await cloud.provider.instances(cloud.account())
    assert not unknown.value.throttled


async def test_a_throttled_listing_is_an_answer(cloud: Cloud) -> None:
    """So is one for which there are no tokens: the account answers, whatever it is asked."""
    cloud.server.answers(error("RequestLimitExceeded", status=503))
    account, provider = cloud.account(), cloud.provider
    for asked in (
        provider.instances(account),
        provider.exists(account, "i-1", launched_at=None),
        provider.identity(account),
        provider.health(account),
    ):
        with pytest.raises(OutcomeUnknown) as unknown:
            await asked
        assert unknown.value.throttled
    empty = Ec2(ProviderSettings(timeout_seconds=0.1, pacing=LocalBuckets(lambda: 0.0)))
    share = Share(bucket="aws/123456789012/us-east-1/describe", units=1000, size=100, refill_per_second=20)
    await empty.settings.pacing.take([share], within_seconds=100)
    with pytest.raises(OutcomeUnknown) as unknown:
        await empty.instances(msgspec.structs.replace(account, request_timeout_seconds=0.1))
    assert unknown.value.throttled


EXISTENCE: list[tuple[Reply, timedelta | None, bool | None]] = [
    (described(instance("i-1", "pending")), YOUNG, True),
    (described(instance("i-1", "shutting-down")), OLD, True),
    (described(instance("i-1", "terminated")), YOUNG, False),
    (error("InvalidInstanceID.NotFound"), YOUNG, None),
    (described(), YOUNG, None),
    (error("InvalidInstanceID.NotFound"), OLD, False),
    (described(), OLD, False),
    (error("InvalidInstanceID.NotFound"), None, False),
    (error("RequestLimitExceeded", status=503), OLD, None),
    (error("UnauthorizedOperation", status=403), OLD, None),
    (LOST, OLD, None),
]


@pytest.mark.parametrize(("answer", "age", "exists"), EXISTENCE)
async def test_an_instance_is_gone_only_if_that_is_certain(
    cloud: Cloud, answer: Reply, age: timedelta | None, exists: bool | None
) -> None:
    """None: the provider does not know. An instance may be hidden for minutes."""
    cloud.server.answers(answer)
    launched_at = utc_now() - age if age is not None else None
    if exists is None:
        with pytest.raises(OutcomeUnknown):
            await cloud.provider.exists(cloud.account(), "i-1", launched_at=launched_at)
        return
    assert await cloud.provider.exists(cloud.account(), "i-1", launched_at=launched_at) is exists


async def test_visibility_is_a_setting_of_the_account(cloud: Cloud) -> None:
    cloud.server.answers(error("InvalidInstanceID.NotFound"))
    account = cloud.account(visibility_seconds=10)
    assert cloud.provider.visibility_seconds(cloud.account()) == 300
    assert cloud.provider.visibility_seconds(account) == 10
    assert not await cloud.provider.exists(account, "i-1", launched_at=utc_now() - YOUNG)


async def test_a_terminated_instance_that_is_not_found_may_exist(cloud: Cloud) -> None:
    """NotFound is no failure of the call, and no proof of the end of a young instance."""
    cloud.server.answers(error("InvalidInstanceID.NotFound", "The instance ID 'i-1' does not exist"))
    await cloud.provider.terminate(cloud.account(), ["i-1"])
    with pytest.raises(OutcomeUnknown):
        await cloud.provider.exists(cloud.account(), "i-1", launched_at=utc_now() - YOUNG)


def knowing(*known: str, named: str | None = None) -> Any:
    """Answer of a cloud that has only these instances, the last of them terminated. A call with another id is refused,
    with a message that names `named` instead of such ids."""

    def answer(call: Received) -> Reply:
        ids = call.listed("InstanceId")
        if unknown := [id_ for id_ in ids if id_ not in known]:
            message = f"The instance IDs '{named or ', '.join(unknown)}' do not exist"
            return error("InvalidInstanceID.NotFound", message)
        return described(*(instance(id_, "terminated" if id_ == known[-1] else "running") for id_ in ids))

    return answer


@pytest.mark.parametrize("named", [None, "-", "i-1", "i-1, i-2, i-3, i-4"])
async def test_an_unknown_id_makes_no_other_instance_gone(cloud: Cloud, named: str | None) -> None:
    """EC2 describes none of a call with an id that it does not know. What its message names is no proof."""
    cloud.server.answer = knowing("i-1", "i-2", "i-4", named=named)
    old, young = utc_now() - OLD, utc_now() - YOUNG
    asked = {"i-1": old, "i-2": young, "i-3": old, "i-4": young, "i-5": young, "i-6": None}
    assert sorted(await cloud.provider.gone(cloud.account(), asked)) == ["i-3", "i-4", "i-6"]


async def test_many_instances_are_looked_up_by_few_calls(cloud: Cloud) -> None:
    ids = [f"i-{n}" for n in range(450)]
    cloud.server.answer = knowing(*ids)
    assert await cloud.provider.gone(cloud.account(), dict.fromkeys(ids)) == ["i-449"]
    assert [len(call.listed("InstanceId")) for call in cloud.server.received] == [200, 200, 50]


async def test_instances_of_a_call_without_an_answer_are_not_gone(cloud: Cloud) -> None:
    """Those of the other calls are."""
    ids = [f"i-{n}" for n in range(250)]
    cloud.server.answers(
        error("Unavailable", status=503), described(*(instance(id_, "terminated") for id_ in ids[200:]))
    )
    assert await cloud.provider.gone(cloud.account(), dict.fromkeys(ids)) == ids[200:]


async def test_only_what_is_read_of_an_instance_is_parsed(cloud: Cloud) -> None:
    """A whole instance takes three times as long."""
    whole = instance("i-1", tags={"a": "b"}, reason="Client.InternalError", spot=True)
    more = "<imageId>ami-1</imageId><networkInterfaceSet><item><status>in-use</status></item></networkInterfaceSet>"
    more += "<instanceType>m5.large</instanceType>"
    cloud.server.answers(described(whole.removesuffix("</item>") + more + "</item>"))
    reply = await cloud.provider.caller.call(cloud.account(), calls.LIST)
    (found,) = replies.instances(reply)
    assert set(found) == set(replies.MEMBERS)


def terminating(bad: dict[str, str], *, named: bool = True) -> Any:
    """Answer of a cloud where each of `bad` fails the whole call with its code, and names the id if it is `named`."""

    def answer(call: Received) -> Reply:
        ids = call.listed("InstanceId")
        failing = [id_ for id_ in ids if id_ in bad]
        if not failing:
            return reply("TerminateInstances", "<instancesSet/>")
        return error(bad[failing[0]], f"The instance IDs '{', '.join(failing)}' do not exist" if named else "no")

    return answer


@pytest.mark.parametrize("named", [True, False])
async def test_one_bad_id_spares_no_other_instance(cloud: Cloud, named: bool) -> None:
    """EC2 terminates none of a call with an id that it does not know."""
    cloud.server.answer = terminating(
        {"i-3": "InvalidInstanceID.NotFound", "nonsense": "InvalidInstanceID.Malformed"}, named=named
    )
    await cloud.provider.terminate(cloud.account(), ["i-1", "i-2", "i-3", "nonsense", "i-5"])
    ended = {id_ for call in cloud.server.received for id_ in call.listed("InstanceId")}
    good = [set(call.listed("InstanceId")) for call in cloud.server.received]
    succeeded = set().union(*(ids for ids in good if not ids & {"i-3", "nonsense"}))
    assert ended >= succeeded == {"i-1", "i-2", "i-5"}


@pytest.mark.parametrize("named", [True, False])
async def test_a_protected_instance_is_reported(cloud: Cloud, named: bool) -> None:
    """With its remedy, once the others are terminated. EC2 names it, so that few calls find it."""
    cloud.server.answer = terminating({"i-2": "OperationNotPermitted"}, named=named)
    with pytest.raises(TerminationRefused, match="OperationNotPermitted") as refused:
        await cloud.provider.terminate(cloud.account(), ["i-1", "i-2", "i-3", "i-4"])
    (protected,) = refused.value.instances.items()
    assert protected[0] == "i-2"
    assert protected[1].remedy == (
        "aws ec2 modify-instance-attribute --instance-id i-2 --no-disable-api-termination --region us-east-1"
    )
    good = [set(call.listed("InstanceId")) for call in cloud.server.received]
    assert set().union(*(ids for ids in good if "i-2" not in ids)) == {"i-1", "i-3", "i-4"}
    assert len(good) == (2 if named else 5)


async def test_an_instance_in_a_wrong_state_is_reported(cloud: Cloud) -> None:
    cloud.server.answer = terminating({"i-2": "IncorrectInstanceState"})
    with pytest.raises(TerminationRefused) as refused:
        await cloud.provider.terminate(cloud.account(), ["i-1", "i-2"])
    assert refused.value.instances["i-2"].remedy == "aws ec2 describe-instances --instance-ids i-2 --region us-east-1"


async def test_many_instances_are_terminated_by_few_calls(cloud: Cloud) -> None:
    cloud.server.answers(reply("TerminateInstances", "<instancesSet/>"))
    await cloud.provider.terminate(cloud.account(), [f"i-{n}" for n in range(450)])
    assert [len(call.listed("InstanceId")) for call in cloud.server.received] == [200, 200, 50]


async def test_a_throttled_end_is_reported(cloud: Cloud) -> None:
    cloud.server.answers(error("RequestLimitExceeded", status=503))
    with pytest.raises(OutcomeUnknown):
        await cloud.provider.terminate(cloud.account(), ["i-1"])
    assert cloud.server.actions() == ["TerminateInstances"]


#         reason of the end                       stage, scope and key
ENDINGS = [
    ("Server.InsufficientInstanceCapacity", (Stage.LAUNCH, Scope.CAPACITY, "us-east-1/use1-az4/m5.large/spot")),
    ("Client.VolumeLimitExceeded", (Stage.LAUNCH, Scope.QUOTA, "ci%2Faws/us-east-1/volumes")),
    ("Client.InternalError", (Stage.BOOT, Scope.IMAGE, "ami-1")),
    ("Server.SpotInstanceTermination", (Stage.BOOT, Scope.NOTHING, "linux/a@1")),
    ("Client.UserInitiatedShutdown", (Stage.BOOT, Scope.NOTHING, "linux/a@1")),
]


@pytest.mark.parametrize(("reason", "blamed"), ENDINGS)
async def test_the_reason_of_a_death_is_charged_to_what_it_concerns(
    cloud: Cloud, reason: str, blamed: tuple[Stage, Scope, str]
) -> None:
    cloud.server.answers(described(instance("i-1", "terminated", reason=reason)))
    config = request(lifecycle="spot").config
    outcome = await cloud.provider.ending(cloud.account(), config, "i-1")
    assert outcome == Outcome(blamed[0], Result.FAILED, blamed[1], blamed[2], reason)


@pytest.mark.parametrize(
    "answer",
    [
        described(instance("i-1", "running")),
        described(instance("i-1", "terminated")),
        error("InvalidInstanceID.NotFound"),
    ],
)
async def test_an_end_without_a_reason(cloud: Cloud, answer: Reply) -> None:
    cloud.server.answers(answer)
    assert await cloud.provider.ending(cloud.account(), request().config, "i-1") is None


async def test_the_quota_of_a_subnet_is_that_of_its_launch_configs(cloud: Cloud) -> None:
    """A refusal for lack of addresses is charged to the key that the launch configs of the subnet have."""
    cloud.server.answers(RunInstances=error("InsufficientFreeAddressesInSubnet"))
    asked, account = request(subnet_id="subnet-0a"), cloud.account()
    with pytest.raises(Refused) as refused:
        await cloud.provider.create(account, asked)
    named = cloud.provider.subnet(account, asked.config)
    assert refused.value.outcome.scope is Scope.QUOTA
    assert refused.value.outcome.scope_key == subnet_key(account.id, account.region, named).id
    assert cloud.provider.subnet(account, request().config) == ""


async def test_zones_have_one_key_in_every_account(cloud: Cloud) -> None:
    """A name of a zone means another zone in another account. The key is empty until the names are known."""
    provider = Ec2(cloud.provider.settings)
    await provider.open()
    cloud.server.answers(GetCallerIdentity=caller("123456789012"), DescribeAvailabilityZones=ZONES)
    by_name, by_id = request(zone="us-east-1a").config, request(zone="use1-az4").config
    try:
        assert provider.capacity_key(cloud.account(), by_name) == ""
        assert await provider.identity(cloud.account()) == "123456789012"
        assert await provider.identity(cloud.account()) == "123456789012"
    finally:
        await provider.close()
    assert provider.capacity_key(cloud.account(), by_name) == "us-east-1/use1-az4/m5.large/on-demand"
    assert provider.capacity_key(cloud.account(), by_id) == "us-east-1/use1-az4/m5.large/on-demand"
    assert cloud.server.actions() == ["GetCallerIdentity", "DescribeAvailabilityZones", "GetCallerIdentity"]


async def test_health_is_a_call_of_ec2(cloud: Cloud) -> None:
    """GetCallerIdentity needs no permission, so that it would prove nothing."""
    cloud.server.answers(ZONES, error("UnauthorizedOperation", status=403), error("InternalError", status=500))
    await cloud.provider.health(cloud.account())
    with pytest.raises(Refused) as refused:
        await cloud.provider.health(cloud.account())
    assert (refused.value.outcome.scope, refused.value.outcome.scope_key) == (Scope.CREDENTIAL, "ci/aws")
    with pytest.raises(OutcomeUnknown):
        await cloud.provider.health(cloud.account())
    assert set(cloud.server.actions()) == {"DescribeAvailabilityZones"}


VOLUMES = reply("DescribeVolumes", "<volumeSet><item><volumeId>vol-1</volumeId></item></volumeSet>")
INTERFACES = reply(
    "DescribeNetworkInterfaces",
    "<networkInterfaceSet><item><networkInterfaceId>eni-1</networkInterfaceId></item></networkInterfaceSet>",
)


async def test_what_instances_leave_behind_is_deleted(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """Volumes and interfaces of this deployment that were unused at two looks, since a launch attaches new ones."""
    provider = Ec2(ProviderSettings(timeout_seconds=60))
    now = 1000.0
    monkeypatch.setattr(remains, "monotonic_seconds", lambda: now)
    await provider.open()
    cloud.server.answers(
        DescribeVolumes=VOLUMES,
        DescribeNetworkInterfaces=INTERFACES,
        DeleteVolume=error("VolumeInUse"),
        DeleteNetworkInterface=reply("DeleteNetworkInterface", "<return>true</return>"),
    )
    try:
        await provider.clean_up(cloud.account())
        now += 500
        await provider.clean_up(cloud.account())
        assert {"DeleteVolume", "DeleteNetworkInterface"} & set(cloud.server.actions()) == set()
        now += 200
        await provider.clean_up(cloud.account())
    finally:
        await provider.close()
    deleted = cloud.server.received[-3:]
    assert [call.action for call in deleted] == ["DeleteVolume", "DescribeNetworkInterfaces", "DeleteNetworkInterface"]
    assert (deleted[0].parameters["VolumeId"], deleted[2].parameters["NetworkInterfaceId"]) == ("vol-1", "eni-1")
    assert filters(cloud.server.received[0]) == {
        "tag:slipway-deployment": ["deployment-1"],
        "tag:slipway-account": ["ci/aws"],
        "status": ["available"],
    }


async def test_a_resource_in_use_meanwhile_is_not_left_behind(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    provider = Ec2(ProviderSettings(timeout_seconds=60))
    now = 1000.0
    monkeypatch.setattr(remains, "monotonic_seconds", lambda: now)
    await provider.open()
    none = reply("DescribeVolumes", "<volumeSet/>")
    cloud.server.answers(
        DescribeVolumes=[VOLUMES, none, VOLUMES],
        DescribeNetworkInterfaces=reply("DescribeNetworkInterfaces", "<networkInterfaceSet/>"),
    )
    try:
        for _ in range(3):
            await provider.clean_up(cloud.account())
            now += 500
    finally:
        await provider.close()
    assert "DeleteVolume" not in cloud.server.actions()


async def test_a_console_for_people(cloud: Cloud) -> None:
    account = cloud.account()
    assert cloud.provider.console(account, "b", "i-1") == (
        "https://us-east-1.console.aws.amazon.com/ec2/home?region=us-east-1#InstanceDetails:instanceId=i-1"
    )
    elsewhere = msgspec.structs.replace(account, settings={"partition": "aws-iso"})
    assert cloud.provider.console(elsewhere, "b", "i-1") == ""


async def test_console_output(cloud: Cloud) -> None:
    """The text that EC2 posted, or nothing while it has none. What cannot be read is no proof that there is none."""
    account, text = cloud.account(), "Booting\n" + "x" * 70_000 + "\nfailed"
    inner = f"<instanceId>i-1</instanceId><output>{base64.b64encode(text.encode()).decode()}</output>"
    cloud.server.answers(
        GetConsoleOutput=[
            reply("GetConsoleOutput", inner),
            reply("GetConsoleOutput", "<instanceId>i-1</instanceId>"),
            error("InvalidInstanceID.NotFound"),
            error("UnauthorizedOperation", status=403),
        ]
    )
    read = [await cloud.provider.console_output(account, "b", "i-1") for _ in range(3)]
    assert read == [text[-CONSOLE_BYTES_MAX:], "", ""]
    assert cloud.server.received[0].parameters["InstanceId"] == "i-1"
    with pytest.raises(OutcomeUnknown, match="UnauthorizedOperation"):
        await cloud.provider.console_output(account, "b", "i-1")
