"""The stand-in for EC2, as the SDK sees it, and the truth as moto has it."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import httpx2
import pytest
from botocore.exceptions import ClientError, HTTPClientError

from slipway_local.ec2.facts import Exited, Noticed, Reply, Started, Stopped, Terminated
from slipway_local.ec2.server import EmbeddedEc2
from slipway_provisioner.providers.aws import certificates, signatures
from tests.support.ec2 import Ec2, cleared
from tests.support.harness import until

if TYPE_CHECKING:
    from types_aiobotocore_ec2 import EC2Client

ZONE: Final = "us-east-1a"
TYPE: Final = "m5.large"
TAGS: Final = [{"Key": "slipway-deployment", "Value": "test"}, {"Key": "slipway-batch", "Value": "b1"}]
TAGGED: Final = ("instance", "volume", "network-interface")
STAYS: Final = "#!/bin/sh\nexec sleep 600\n"


@pytest.fixture
async def ec2(ec2_server: EmbeddedEc2) -> AsyncIterator[Ec2]:
    async with cleared(ec2_server) as found:
        yield found


@pytest.fixture
async def client(ec2: Ec2) -> "AsyncIterator[EC2Client]":
    async with ec2.client() as found:
        yield found


def launch(token: str = "t1", **changes: Any) -> dict[str, Any]:
    """Parameters of a launch call."""
    return {
        "ImageId": "ami-1",
        "InstanceType": TYPE,
        "MinCount": 1,
        "MaxCount": 1,
        "ClientToken": token,
        "Placement": {"AvailabilityZone": ZONE},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "TagSpecifications": [{"ResourceType": kind, "Tags": TAGS} for kind in TAGGED],
    } | changes


def ids(answer: Any) -> list[str]:
    return [instance["InstanceId"] for instance in answer["Instances"]]


async def shown(client: "EC2Client", **parameters: Any) -> dict[str, str]:
    """States of the instances in a list, by id."""
    answer = await client.describe_instances(**parameters)
    return {
        instance["InstanceId"]: instance["State"]["Name"]
        for reservation in answer["Reservations"]
        for instance in reservation["Instances"]
    }


async def refused(call: Any) -> tuple[str, int]:
    """Code and HTTP status of a refused call."""
    with pytest.raises(ClientError) as caught:
        await call
    response: Any = caught.value.response
    return response["Error"]["Code"], response["ResponseMetadata"]["HTTPStatusCode"]


async def test_repeat_answers_the_same_instances_and_moto_has_no_others(ec2: Ec2, client: "EC2Client") -> None:
    first = await client.run_instances(**launch(MaxCount=3))
    again = await client.run_instances(**launch(MaxCount=3))
    assert len(ids(first)) == 3
    assert ids(again) == ids(first)
    truth = await ec2.get("/truth")
    assert truth["values"] == {"test": {"instances": 3, "volumes": 3, "interfaces": 3}}
    assert (await ec2.get("/truth?tag=slipway-forgotten"))["values"] == {"": truth["values"]["test"]}


async def test_token_belongs_to_a_zone_and_to_equal_parameters(ec2: Ec2, client: "EC2Client") -> None:
    first = await client.run_instances(**launch())
    assert await refused(client.run_instances(**launch(MaxCount=2))) == ("IdempotentParameterMismatch", 400)
    elsewhere = await client.run_instances(**launch(Placement={"AvailabilityZone": "us-east-1b"}))
    assert ids(elsewhere) != ids(first)
    await client.terminate_instances(InstanceIds=ids(first))
    await ec2.fact(Terminated, ids(first)[0])
    assert await refused(client.run_instances(**launch())) == ("IdempotentInstanceTerminated", 400)


async def test_refused_call_keeps_its_parameters_and_its_token(ec2: Ec2, client: "EC2Client") -> None:
    await ec2.play(faults=f"zone:{ZONE}")
    assert await refused(client.run_instances(**launch())) == ("InsufficientInstanceCapacity", 500)
    await ec2.play()
    assert await refused(client.run_instances(**launch(MaxCount=2))) == ("IdempotentParameterMismatch", 400)
    assert len(ids(await client.run_instances(**launch()))) == 1


async def test_as_many_as_fit_are_launched_between_minimum_and_maximum(ec2: Ec2, client: "EC2Client") -> None:
    await ec2.play(capacity={f"{ZONE}/{TYPE}": 3, f"{ZONE}/{TYPE}/spot": 0})
    assert len(ids(await client.run_instances(**launch(MaxCount=5)))) == 3
    assert await refused(client.run_instances(**launch("t2"))) == ("InsufficientInstanceCapacity", 500)
    spot = launch("t3", InstanceMarketOptions={"MarketType": "spot"})
    assert await refused(client.run_instances(**spot)) == ("InsufficientInstanceCapacity", 500)
    other = await client.run_instances(**launch("t4", InstanceType="c5.large"))
    assert "InstanceLifecycle" not in other["Instances"][0]
    assert other["Instances"][0]["Placement"].get("AvailabilityZoneId") == "use1-az6"


async def test_lost_reply_has_its_effect(ec2: Ec2, client: "EC2Client") -> None:
    await ec2.play(faults="lost-reply:1")
    with pytest.raises(HTTPClientError):
        await client.run_instances(**launch(MaxCount=2))
    await ec2.play()
    found = await shown(client, Filters=[{"Name": "client-token", "Values": ["t1"]}])
    assert len(found) == 2
    assert set(ids(await client.run_instances(**launch(MaxCount=2)))) == set(found)
    (lost,) = [reply for reply in ec2.facts(Reply) if reply.lost and set(reply.instance_ids) == set(found)]
    assert lost.code == "OK"


async def test_launch_calls_are_throttled_as_documented(client: "EC2Client") -> None:
    dry = [client.run_instances(**launch(f"t{n}"), DryRun=True) for n in range(40)]
    codes = [await refused(call) for call in dry]
    assert ("RequestLimitExceeded", 503) in codes
    assert codes[:5] == [("DryRunOperation", 412)] * 5


async def test_instance_is_not_found_before_it_is_visible(ec2: Ec2, client: "EC2Client") -> None:
    await ec2.play(visibility_seconds=3600)
    hidden = ids(await client.run_instances(**launch()))
    assert await shown(client, Filters=[{"Name": "tag:slipway-batch", "Values": ["b1"]}]) == {}
    assert await refused(client.describe_instances(InstanceIds=hidden)) == ("InvalidInstanceID.NotFound", 400)
    assert await refused(client.terminate_instances(InstanceIds=hidden)) == ("InvalidInstanceID.NotFound", 400)
    assert (await ec2.get("/truth"))["values"]["test"]["instances"] == 1


async def test_one_unknown_id_terminates_none(client: "EC2Client") -> None:
    mine = ids(await client.run_instances(**launch()))
    call = client.terminate_instances(InstanceIds=[*mine, "i-0123456789abcdef0"])
    assert await refused(call) == ("InvalidInstanceID.NotFound", 400)
    assert list((await shown(client, InstanceIds=mine)).values()) == ["running"]


async def test_pages_count_instances_and_may_fail_after_the_first(ec2: Ec2, client: "EC2Client") -> None:
    """Also those of few instances, since EC2 may answer with short pages."""
    launched = ids(await client.run_instances(**launch(MaxCount=12)))
    seen: list[str] = []
    pages = client.get_paginator("describe_instances").paginate(PaginationConfig={"PageSize": 5})
    async for page in pages:
        found = [i["InstanceId"] for r in page["Reservations"] for i in r["Instances"]]
        assert len(found) <= 5
        seen += found
    assert seen == launched
    await ec2.play(faults="torn-listing:1")
    first = await client.describe_instances(MaxResults=5)
    torn = client.describe_instances(MaxResults=5, NextToken=first["NextToken"])
    assert await refused(torn) == ("Unavailable", 503)
    short = await client.describe_instances(MaxResults=200)
    assert len([i for r in short["Reservations"] for i in r["Instances"]]) == 8
    assert "NextToken" in short


async def test_other_accounts_and_regions_show_nothing_of_this_one(ec2: Ec2, client: "EC2Client") -> None:
    mine = ids(await client.run_instances(**launch()))
    async with ec2.client(region="eu-west-1") as elsewhere:
        assert await shown(elsewhere) == {}
        assert await refused(elsewhere.describe_instances(InstanceIds=mine)) == ("InvalidInstanceID.NotFound", 400)


async def test_terminated_instance_is_shown_for_a_while_with_its_reason(ec2: Ec2, client: "EC2Client") -> None:
    mine = ids(await client.run_instances(**launch()))
    changes = (await client.terminate_instances(InstanceIds=mine))["TerminatingInstances"]
    assert [(c["PreviousState"]["Name"], c["CurrentState"]["Name"]) for c in changes] == [("running", "shutting-down")]
    await ec2.fact(Terminated, mine[0])
    answer = await client.describe_instances(InstanceIds=mine)
    (instance,) = answer["Reservations"][0]["Instances"]
    assert instance["State"]["Name"] == "terminated"
    assert instance["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert (await ec2.get("/truth"))["values"] == {}
    await ec2.play(expiry_seconds=0)
    assert await refused(client.describe_instances(InstanceIds=mine)) == ("InvalidInstanceID.NotFound", 400)


async def test_machine_that_dies_while_pending_never_runs(ec2: Ec2, client: "EC2Client") -> None:
    await ec2.play(faults="dies:Client.VolumeLimitExceeded")
    (mine,) = ids(await client.run_instances(**launch(UserData=STAYS)))
    ended = await ec2.fact(Terminated, mine)
    assert (ended.by, ended.reason) == ("fault", "Client.VolumeLimitExceeded")
    assert [fact for fact in ec2.facts(Started) if fact.instance_id == mine] == []
    answer = await client.describe_instances(InstanceIds=[mine])
    assert answer["Reservations"][0]["Instances"][0]["StateReason"]["Code"] == "Client.VolumeLimitExceeded"


async def test_expired_credentials_are_refused(ec2: Ec2, client: "EC2Client") -> None:
    await ec2.play(faults="expired-credential")
    assert await refused(client.run_instances(**launch())) == ("RequestExpired", 400)
    assert await refused(client.describe_instances()) == ("RequestExpired", 400)


async def assert_is_signed(ec2: Ec2, imds: httpx2.AsyncClient, session: dict[str, str], instance_id: str) -> None:
    """The identity document is of this instance, and signed with the keys whose certificates the stand-in gives."""
    document, signature, rsa2048 = [
        (await imds.get(f"/dynamic/instance-identity/{name}", headers=session)).text
        for name in ("document", "signature", "rsa2048")
    ]
    assert json.loads(document)["instanceId"] == instance_id
    given = (await ec2.get("/identity-certificates"))["certificates"]
    keys = certificates.keys("us-iso-east-1", tuple(given))
    assert signatures.verified(document.encode(), signature, keys)
    assert signatures.content(rsa2048, keys) == document.encode()


async def test_machine_runs_its_script_with_metadata_of_its_own(ec2: Ec2, client: "EC2Client") -> None:
    (mine,) = ids(await client.run_instances(**launch(UserData=STAYS)))
    await ec2.fact(Started, mine)
    async with httpx2.AsyncClient(base_url=f"{ec2.url}/imds/{mine}/latest", trust_env=False) as imds:
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        assert (await imds.get("/meta-data/instance-id")).status_code == 401
        assert (await imds.put("/api/token", headers=ttl | {"X-Forwarded-For": "1.2.3.4"})).status_code == 403
        session = {"X-aws-ec2-metadata-token": (await imds.put("/api/token", headers=ttl)).text}
        assert (await imds.get("/meta-data/instance-id", headers=session)).text == mine
        zone_id = await imds.get("/meta-data/placement/availability-zone-id", headers=session)
        assert zone_id.text == "use1-az6"
        assert (await imds.get("/user-data", headers=session)).text == STAYS
        assert (await imds.get("/meta-data/spot/instance-action", headers=session)).status_code == 404
        await assert_is_signed(ec2, imds, session, mine)
    await client.terminate_instances(InstanceIds=[mine])
    assert (await ec2.fact(Exited, mine)).exit_code == -15
    await ec2.fact(Terminated, mine)


async def test_machine_that_powers_itself_off_terminates(ec2: Ec2, client: "EC2Client") -> None:
    script = "#!/bin/sh\necho booted\npoweroff\n"
    (mine,) = ids(await client.run_instances(**launch(UserData=script)))
    ended = await ec2.fact(Terminated, mine)
    assert (ended.by, ended.reason) == ("self", "Client.InstanceInitiatedShutdown")
    console = await client.get_console_output(InstanceId=mine)
    assert console["Output"] == "booted\n"
    assert (await ec2.get("/truth"))["values"] == {}


async def test_many_seeded_instances(ec2: Ec2, client: "EC2Client") -> None:
    """They are listed, counted and terminated like launched ones, which moto has beside them."""
    (mine,) = ids(await client.run_instances(**launch()))
    batches = [f"b-{n}" for n in range(1000)]
    place = {"region": "us-east-1", "zone": "us-east-1a", "instance_type": "m5.large", "image": "ami-12345678"}
    tags = {"slipway-deployment": "test"}
    seed = {"account": "123456789012", "batches": batches, "size": 3, "tags": tags} | place
    made = (await ec2.post("/instances", seed))["instance_ids"]
    other = {"account": "210987654321", "batches": ["b-0"], "tags": tags} | place
    await ec2.post("/instances", other)
    assert [len(each) for each in made] == [3] * 1000
    listed: dict[str, str] = {}
    more: dict[str, Any] = {}
    while True:
        page = await client.describe_instances(
            Filters=[{"Name": "tag:slipway-deployment", "Values": ["test"]}], MaxResults=1000, **more
        )
        for reservation in page["Reservations"]:
            for each in reservation["Instances"]:
                tagged = {tag["Key"]: tag["Value"] for tag in each["Tags"]}
                listed[each["InstanceId"]] = tagged.get("slipway-batch", "")
                assert each["State"]["Name"] == "running" or each["InstanceId"] == mine
        if "NextToken" not in page:
            break
        more = {"NextToken": page["NextToken"]}
    seeded = {id_: batch for batch, own in zip(batches, made, strict=True) for id_ in own}
    assert {id_: batch for id_, batch in listed.items() if id_ != mine} == seeded
    assert (await ec2.get("/truth"))["values"]["test"]["instances"] == 3002
    await client.terminate_instances(InstanceIds=made[0])
    assert (await ec2.get("/truth"))["values"]["test"]["instances"] == 2999
    assert {fact.by for fact in ec2.facts(Terminated) if fact.instance_id in made[0]} == {"api"}
    assert "" not in (await ec2.get("/truth"))["values"]


async def test_a_bad_image_prints_an_error(ec2: Ec2, client: "EC2Client") -> None:
    """Besides its user data, as many images do. It stays on, and registers nowhere. Its output is posted late."""
    await ec2.play(faults="bad-image:ami-12345678", console_seconds=2)
    (mine,) = ids(await client.run_instances(**launch(ImageId="ami-12345678", UserData="the user data")))
    assert (await client.get_console_output(InstanceId=mine))["Output"] == ""

    async def printed() -> str:
        try:
            return (await client.get_console_output(InstanceId=mine))["Output"]
        except ClientError as error:  # asked faster than the account's bucket refills
            if error.response["Error"]["Code"] != "RequestLimitExceeded":
                raise
            return ""

    lines = (await until(printed, "its console output is posted")).splitlines()
    assert lines[0] == f"Booting {mine} from ami-12345678"
    assert "the user data" in lines
    assert lines[-1] == f"systemd: slipway-worker.service failed on {mine}"
    assert await shown(client, InstanceIds=[mine]) == {mine: "running"}
    assert [fact for fact in ec2.facts(Started) if fact.instance_id == mine] == []
    await client.terminate_instances(InstanceIds=[mine])
    await ec2.fact(Terminated, mine)
    assert (await until(printed, "its console output is kept")).splitlines() == lines


async def test_machine_stays_stopped_if_its_launch_did_not_ask_for_termination(ec2: Ec2, client: "EC2Client") -> None:
    stop = launch(UserData="#!/bin/sh\npoweroff\n", InstanceInitiatedShutdownBehavior="stop")
    (mine,) = ids(await client.run_instances(**stop))
    await ec2.fact(Stopped, mine)
    assert await shown(client, InstanceIds=[mine]) == {mine: "stopped"}
    assert (await ec2.get("/truth"))["values"]["test"]["volumes"] == 1


async def test_spot_machine_gets_a_notice_and_ends_when_it_is_over(ec2: Ec2, client: "EC2Client") -> None:
    await ec2.play(notice_seconds=1)
    (kept,) = ids(await client.run_instances(**launch("t1", UserData=STAYS)))
    spot = launch("t2", UserData=STAYS, InstanceMarketOptions={"MarketType": "spot"})
    (mine,) = ids(await client.run_instances(**spot))
    await ec2.fact(Started, mine)
    await ec2.post("/faults", {"name": "interruption", "arg": f"{ZONE}/{TYPE}"})
    noticed = await ec2.fact(Noticed, mine)
    ended = await ec2.fact(Terminated, mine)
    assert (ended.by, ended.reason) == ("spot", "Server.SpotInstanceTermination")
    assert ended.at >= noticed.ends_at
    assert list((await shown(client, InstanceIds=[kept])).values()) == ["running"]


async def test_notice_is_in_the_metadata(ec2: Ec2, client: "EC2Client") -> None:
    spot = launch(InstanceMarketOptions={"MarketType": "spot"})
    (mine,) = ids(await client.run_instances(**spot))
    assert await ec2.post("/notices", {"notice": "rebalance", "zone": ZONE}) == {"instance_ids": [mine]}
    assert await ec2.post("/notices", {"instance_ids": [mine]}) == {"instance_ids": [mine]}
    async with httpx2.AsyncClient(base_url=f"{ec2.url}/imds/{mine}/latest", trust_env=False) as imds:
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        session = {"X-aws-ec2-metadata-token": (await imds.put("/api/token", headers=ttl)).text}
        action = await imds.get("/meta-data/spot/instance-action", headers=session)
        assert json.loads(action.text)["action"] == "terminate"
        rebalance = await imds.get("/meta-data/events/recommendations/rebalance", headers=session)
        assert "noticeTime" in json.loads(rebalance.text)


async def test_machines_end_with_the_stand_in(ec2: Ec2, client: "EC2Client") -> None:
    (mine,) = ids(await client.run_instances(**launch(UserData=STAYS)))
    started = await ec2.fact(Started, mine)
    (await ec2.http.delete("/scenario")).raise_for_status()
    async with asyncio.timeout(60):
        while _runs(started.pid):
            await asyncio.sleep(0.05)
    assert await shown(client) == {}


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(") ")[2][:1] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
