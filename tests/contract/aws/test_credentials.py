"""Credentials of accounts: from the environment, a file, a web identity and roles; renewed, and never shown."""

import asyncio
import logging
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest
from botocore.model import ServiceModel
from botocore.parsers import EC2QueryParser, ResponseParserError

from slipway_api.events.worker import Scope
from slipway_provisioner.providers.aws.calls import Call
from slipway_provisioner.providers.aws.client import DESCRIPTIONS, LOGGERS, READ_AT_ONCE_BYTES, Clients, Parsers
from slipway_provisioner.providers.port import OutcomeUnknown, Refused
from tests.contract.aws.conftest import KEY, SECRET, Cloud, request, result
from tests.support.ec2_server import LOST, Received, Reply, assumed, described, error, html, launched
from tests.support.imds import fake_imds

ROLE = "arn:aws:iam::123456789012:role/slipway"
OTHER = "arn:aws:iam::210987654321:role/target"


def signer(call: Received) -> str:
    """Key with which a call is signed."""
    return call.headers["authorization"].split("Credential=")[1].split("/")[0]


def profile(key: str, token: str = "") -> str:
    lines = ["[default]", f"aws_access_key_id = {key}", f"aws_secret_access_key = {SECRET}"]
    return "\n".join([*lines, *([f"aws_session_token = {token}"] if token else [])])


async def test_the_environment(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read at each call. A token is sent with it."""
    cloud.server.answers(described())
    await cloud.provider.instances(cloud.account())
    monkeypatch.setenv("CI_AWS_ACCESS_KEY_ID", "AKIANEW")
    monkeypatch.setenv("CI_AWS_SESSION_TOKEN", "session")
    await cloud.provider.instances(cloud.account())
    assert [signer(call) for call in cloud.server.received] == [KEY, "AKIANEW"]
    assert [call.headers.get("x-amz-security-token") for call in cloud.server.received] == [None, "session"]
    assert all("/us-east-1/ec2/" in call.headers["authorization"] for call in cloud.server.received)


async def test_a_file_that_is_replaced(cloud: Cloud, tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(profile("AKIAONE"))
    account = cloud.account(credential={"file": str(file)})
    cloud.server.answers(described())
    await cloud.provider.instances(account)
    new = tmp_path / "new"
    new.write_text(profile("AKIATWO", "session"))
    new.rename(file)
    await cloud.provider.instances(account)
    assert [signer(call) for call in cloud.server.received] == ["AKIAONE", "AKIATWO"]


async def test_a_web_identity(cloud: Cloud, tmp_path: Path) -> None:
    """The token of the file is exchanged for a role once, by a call that is not signed."""
    file = tmp_path / "token"
    file.write_text("the-web-token")
    account = cloud.account(credential={"web_identity": {"role": ROLE, "token_file": str(file)}})
    cloud.server.answers(described(), AssumeRoleWithWebIdentity=assumed("AssumeRoleWithWebIdentity", "ASIAWEB"))
    for _ in range(2):
        await cloud.provider.instances(account)
    assert cloud.server.actions() == ["AssumeRoleWithWebIdentity", "DescribeInstances", "DescribeInstances"]
    exchange, *listings = cloud.server.received
    assert "authorization" not in exchange.headers
    assert exchange.parameters["WebIdentityToken"] == "the-web-token"
    assert (exchange.parameters["RoleArn"], exchange.parameters["RoleSessionName"]) == (ROLE, "slipway-deployment-1")
    assert {signer(call) for call in listings} == {"ASIAWEB"}
    assert listings[0].headers["x-amz-security-token"] == "token-of-ASIAWEB"


async def test_none_is_the_role_of_the_machine(cloud: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is never what the process or its user has been given for the SDK: variables, profiles, a web identity, a
    command."""
    (tmp_path / "credentials").write_text(profile("AKIAPROFILE"))
    (tmp_path / "config").write_text(f"[default]\ncredential_process = touch {tmp_path}/ran\n")
    (tmp_path / "token").write_text("the-web-token")
    for name, value in {
        "ACCESS_KEY_ID": "AKIAVARIABLE",
        "SECRET_ACCESS_KEY": SECRET,
        "SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "CONFIG_FILE": str(tmp_path / "config"),
        "WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
        "ROLE_ARN": ROLE,
        "EC2_METADATA_DISABLED": "true",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    cloud.server.answers(described(), AssumeRole=assumed("AssumeRole", "ASIAROLE"))
    none = cloud.account(credential={})
    for account in (none, cloud.account(credential={"role": OTHER})):
        failed = await result(cloud, account, request())
        assert isinstance(failed, Refused), failed
        assert failed.outcome.scope is Scope.CREDENTIAL
    assert cloud.server.received == []
    assert not (tmp_path / "ran").exists()
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    async with fake_imds() as imds:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", imds.url)
        keys = {
            "AccessKeyId": "ASIAMACHINE",
            "SecretAccessKey": SECRET,
            "Token": "t",
            "Expiration": "2999-01-01T00:00:00Z",
        }
        imds.items |= {
            "iam/security-credentials/": "machine",
            "iam/security-credentials/machine": msgspec.json.encode({"Code": "Success", **keys}).decode(),
        }
        clients = Clients(lambda _: 60.0)
        for _ in range(2):
            await clients.call(none, Call("ec2", "describe_instances"))
        await clients.close()
        assert imds.calls.count("iam/security-credentials/machine") == 1
    assert [signer(call) for call in cloud.server.received] == ["ASIAMACHINE"] * 2


async def test_a_chain_of_roles(cloud: Cloud) -> None:
    """Each role is assumed with the credentials of the one before."""
    source = {"role": ROLE, "source": {"environment": "CI_AWS"}}
    account = cloud.account(credential={"role": OTHER, "external_id": "ours", "source": source})
    cloud.server.answers(described(), AssumeRole=[assumed("AssumeRole", "ASIAONE"), assumed("AssumeRole", "ASIATWO")])
    await cloud.provider.instances(account)
    first, second, listing = cloud.server.received
    assert [signer(call) for call in (first, second, listing)] == [KEY, "ASIAONE", "ASIATWO"]
    assert (first.parameters["RoleArn"], first.parameters.get("ExternalId")) == (ROLE, None)
    assert (second.parameters["RoleArn"], second.parameters["ExternalId"]) == (OTHER, "ours")


async def test_expired_credentials_are_obtained_anew(cloud: Cloud) -> None:
    """The refused call is not sent again by itself; the next one has new credentials."""
    account = cloud.account(credential={"role": ROLE, "source": {"environment": "CI_AWS"}})
    cloud.server.answers(
        AssumeRole=[assumed("AssumeRole", "ASIAOLD"), assumed("AssumeRole", "ASIANEW")],
        RunInstances=[error("RequestExpired"), launched("i-1")],
    )
    with pytest.raises(Refused) as refused:
        await cloud.provider.create(account, request())
    assert refused.value.outcome.scope is Scope.CREDENTIAL
    assert await cloud.provider.create(account, request()) == ["i-1"]
    runs = [call for call in cloud.server.received if call.action == "RunInstances"]
    assert [signer(call) for call in runs] == ["ASIAOLD", "ASIANEW"]


async def test_credentials_are_renewed_before_they_expire(cloud: Cloud) -> None:
    account = cloud.account(credential={"role": ROLE, "source": {"environment": "CI_AWS"}})
    old = assumed("AssumeRole", "ASIAOLD", expires="2001-01-01T00:00:00Z")
    cloud.server.answers(described(), AssumeRole=[old, assumed("AssumeRole", "ASIANEW")])
    with pytest.raises(OutcomeUnknown):
        await cloud.provider.instances(account)  # the reply has expired already, which proves a wrong clock
    await cloud.provider.instances(account)
    assert signer(cloud.server.received[-1]) == "ASIANEW"


#         reply of STS                               scope, or None if the outcome is unknown
FAILURES = [
    (error("AccessDenied", "not authorized to perform: sts:AssumeRole", 403, sts=True), Scope.CREDENTIAL),
    (error("ExpiredTokenException", "expired", 400, sts=True), Scope.CREDENTIAL),
    (error("RegionDisabledException", "disabled", 403, sts=True), Scope.CREDENTIAL),
    (error("Gremlins", "no", 400, sts=True), Scope.CREDENTIAL),
    (error("Throttling", "slow down", 400, sts=True), None),
    (error("InternalFailure", "no", 500, sts=True), None),
    (html(502), None),
    (LOST, None),
]


@pytest.mark.parametrize(("answer", "scope"), FAILURES)
async def test_a_role_that_cannot_be_assumed_launches_nothing(cloud: Cloud, answer: Reply, scope: Scope | None) -> None:
    """Nothing is sent to EC2, and a failure of STS is neither a throttle of EC2 nor a refused credential."""
    account = cloud.account(credential={"role": ROLE, "source": {"environment": "CI_AWS"}})
    cloud.server.answers(answer)
    failed = await result(cloud, account, request())
    if scope is None:
        assert isinstance(failed, OutcomeUnknown), failed
    else:
        assert isinstance(failed, Refused), failed
        assert (failed.outcome.scope, failed.outcome.scope_key) == (scope, "ci/aws")
    assert "RunInstances" not in cloud.server.actions()


async def test_missing_credentials_name_what_is_missing(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").write_text("[other]\nx = y\n")
    monkeypatch.delenv("CI_AWS_SECRET_ACCESS_KEY")
    for reference, words in (
        ({"environment": "CI_AWS"}, "CI_AWS_SECRET_ACCESS_KEY"),
        ({"file": str(tmp_path / "none")}, "No such file"),
        ({"file": str(tmp_path / "empty")}, "section .default."),
        ({"web_identity": {"role": ROLE, "token_file": str(tmp_path / "none")}}, "No such file"),
    ):
        with pytest.raises(Refused, match=words) as refused:
            await cloud.provider.create(cloud.account(credential=reference), request())
        assert refused.value.outcome.scope is Scope.CREDENTIAL
    assert cloud.server.received == []


async def test_no_secret_is_in_errors_and_logs(cloud: Cloud, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Also where the log's level is the lowest: the SDK would log headers and bodies."""
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "token"
    file.write_text("the-web-token")
    texts = []
    for credential in (
        {"environment": "CI_AWS"},
        {"role": ROLE, "source": {"environment": "CI_AWS"}},
        {"web_identity": {"role": ROLE, "token_file": str(file)}},
    ):
        for answer in (error("UnauthorizedOperation", status=403), Reply("<broken"), LOST, html(502)):
            actions = {name: assumed(name, "ASIAROLE") for name in ("AssumeRole", "AssumeRoleWithWebIdentity")}
            cloud.server.answers(answer, **actions)
            with pytest.raises((Refused, OutcomeUnknown)) as failed:
                await cloud.provider.create(cloud.account(credential=credential), request())
            texts += [str(failed.value), repr(failed.value), str(failed.value.__cause__)]
    shown = "\n".join([*texts, caplog.text])
    for secret in (SECRET, "the-web-token", "secret-of-", "token-of-", "the-secret"):
        assert secret not in shown
    assert all(logging.getLogger(name).level >= logging.WARNING for name in LOGGERS)


async def test_clients_are_made_once(cloud: Cloud) -> None:
    """Accounts with the same configuration share one client per service. That of an account whose declaration has
    changed is closed after its last call, unless another account uses it."""
    clients = Clients(lambda _: 60.0)
    account = cloud.account()
    other = msgspec.structs.replace(account, id="ci/other", credential={"environment": "OTHER"})
    tagged = msgspec.structs.replace(account, settings={**account.settings, "tags": {"team": "ci"}})
    cloud.server.answers(described())
    async with clients.connected(account) as first:
        async with clients.connected(other) as theirs:
            assert theirs.connection is first.connection
            assert theirs.credentials is not first.credentials
        async with clients.connected(tagged) as again:
            assert again.connection is first.connection
        changed = msgspec.structs.replace(account, region="eu-west-1")
        async with clients.connected(changed) as second:
            assert second.connection is not first.connection
        async with clients.connected(msgspec.structs.replace(other, region="eu-west-1")) as theirs:
            assert theirs.connection is second.connection
        assert (first.connection.closed, second.connection.closed) == (False, False)
    assert (first.connection.closed, second.connection.closed) == (True, False)
    await clients.close()
    assert second.connection.closed


async def test_a_client_of_many_accounts(cloud: Cloud) -> None:
    """Each account signs with its own credentials, also while the clients of others are made."""
    accounts = [
        msgspec.structs.replace(cloud.account(credential={"environment": f"CI_{n}"}), id=f"ci/{n}") for n in range(4)
    ]
    cloud.server.answers(described())
    with pytest.MonkeyPatch.context() as patch:
        for n in range(4):
            patch.setenv(f"CI_{n}_ACCESS_KEY_ID", f"AKIA{n}")
            patch.setenv(f"CI_{n}_SECRET_ACCESS_KEY", "secret")
        await asyncio.gather(*(cloud.provider.instances(account) for account in accounts))
    used = {call.parameters["Filter.2.Value.1"]: signer(call) for call in cloud.server.received}
    assert used == {f"ci/{n}": f"AKIA{n}" for n in range(4)}


async def test_settings_of_the_network(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint is that of the account, whatever the environment says; retries are off."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "5")
    clients = Clients(lambda _: 60.0)
    settings: dict[str, Any] = {"fips": True, "sts_endpoint_url": ""}
    account = msgspec.structs.replace(cloud.account(**settings), id="ci/fips")
    async with clients.connected(account) as access:
        ec2, sts = access.connection.clients["ec2"], access.connection.clients["sts"]
        assert ec2.meta.endpoint_url == cloud.server.url
        assert sts.meta.endpoint_url == "https://sts-fips.us-east-1.amazonaws.com"
        assert ec2.meta.config.retries["total_max_attempts"] == 1
        assert (ec2.meta.config.read_timeout, ec2.meta.config.connect_timeout) == (60.0, 5.0)
    proxied = msgspec.structs.replace(account, settings={"proxy": "http://proxy:3128", "ca_bundle": "/etc/ca.pem"})
    monkeypatch.delenv("AWS_ENDPOINT_URL_EC2")
    async with clients.connected(proxied) as access:
        ec2 = access.connection.clients["ec2"]
        assert ec2.meta.endpoint_url == "https://ec2.us-east-1.amazonaws.com"
        assert ec2.meta.config.proxies == {"http": "http://proxy:3128", "https": "http://proxy:3128"}
    await clients.close()


async def test_long_replies_are_parsed_in_steps() -> None:
    """A page of 1,000 instances would stop every other call for half a second; what the SDK makes of it is the same."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    shape, body = _described(reservations=40, instances=25)
    response = {"body": body, "headers": {}, "status_code": 200}
    task = asyncio.create_task(other())
    parsed = await Parsers().create_parser("ec2").parse(response, shape)
    task.cancel()
    assert parsed == EC2QueryParser().parse(response, shape)
    assert [len(each["Instances"]) for each in parsed["Reservations"]] == [25] * 40
    assert (parsed["NextToken"], parsed["ResponseMetadata"]["RequestId"]) == ("next", "r")
    assert turns >= 1000 + len(body) // READ_AT_ONCE_BYTES


async def test_a_long_reply_that_is_cut_off_is_no_reply() -> None:
    shape, body = _described(reservations=40, instances=25)
    for end in (len(body) // 2, len(body) - 1):
        with pytest.raises(ResponseParserError, match="invalid XML") as raised:
            await Parsers().create_parser("ec2").parse({"body": body[:end], "headers": {}, "status_code": 200}, shape)
        assert "i-0" not in str(raised.value)


async def test_one_long_reply_is_parsed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of the event loop has one step, however many accounts are listed."""
    stepping: list[Any] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        stepping.append(asyncio.current_task())
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", noted)
    parsers = Parsers()
    shape, body = _described(reservations=40, instances=5)
    response = {"body": body, "headers": {}, "status_code": 200}
    await asyncio.gather(*(parsers.create_parser("ec2").parse(response, shape) for _ in range(4)))
    assert len([task for task, _ in groupby(stepping)]) == 4


def _described(*, reservations: int, instances: int) -> tuple[Any, bytes]:
    """Shape of a reply to DescribeInstances, and a long one with tags, an empty list and a member that is not read."""
    more = "<kernelId>k</kernelId><launchTime>2026-01-01T00:00:00.000Z</launchTime><tagSet><item><key>a</key>"
    more += f"<value>{'v' * 100}</value></item></tagSet><instanceState><name>running</name></instanceState>"
    items = "".join(f"<item><instanceId>i-{number:017x}</instanceId>{more}</item>" for number in range(instances))
    one = f"<item><reservationId>r-1</reservationId><groupSet/><instancesSet>{items}</instancesSet></item>"
    inner = f"<requestId>r</requestId><reservationSet>{one * reservations}</reservationSet><nextToken>next</nextToken>"
    text = f'<DescribeInstancesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">{inner}'
    model = ServiceModel(DESCRIPTIONS.load_service_model("ec2", "service-2"), "ec2")
    return model.operation_model("DescribeInstances").output_shape, f"{text}</DescribeInstancesResponse>".encode()
