"""Provider of simulated instances against mocked replies: certain and unknown outcomes, scopes of errors."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import httpx2
import msgspec
import pytest

from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_provisioner.domain.cloud import Account, Instance, InstanceState, Protected
from slipway_provisioner.providers.port import (
    CreateRequest,
    OutcomeUnknown,
    ProviderSettings,
    Refused,
    TerminationRefused,
)
from slipway_provisioner.providers.simulated import Simulated

ACCOUNT = Account(
    id="sim-a",
    deployment="d",
    provider="simulated",
    region="sim-1",
    identity="sim-a",
    lease_pool_id="sim-a",
    settings={"url": "http://cloud", "errors": {"OutOfCoffee": "credential"}},
)
REQUEST = CreateRequest(
    batch_id="b",
    incarnation="in",
    token="t",
    count=2,
    user_data="#!/bin/sh",
    config={"id": "c", "zone": "zone-a", "instance_type": "m5.large", "image": "linux-1", "settings": {}},
)


def cloud(answer: Callable[[httpx2.Request], httpx2.Response]) -> Simulated:
    adapter = Simulated(ProviderSettings(timeout_seconds=1))
    adapter.client = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
    return adapter


async def test_tags() -> None:
    """A machine is known by its deployment, the incarnation of the database, its batch and its launch config."""
    posted: list[dict[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        posted.append(msgspec.json.decode(request.content))
        return httpx2.Response(200, json={"instances": [{"id": "i-1"}]})

    await cloud(answer).create(ACCOUNT, REQUEST)
    assert [body["user_data"] for body in posted] == ["#!/bin/sh"]
    assert [body["tags"] for body in posted] == [
        {
            "slipway-deployment": "d",
            "slipway-incarnation": "in",
            "slipway-batch": "b",
            "slipway-launch-config": "c",
        }
    ]


async def test_a_lost_reply_is_found_by_its_tag() -> None:
    """The call took effect but its reply was lost: the listing by the batch's tag shows its instances."""
    created: list[dict[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            created.append({"id": "i-1", "state": "pending", "batch": "b", "config": "c", "created_at": 0})
            raise httpx2.ReadError("connection reset", request=request)
        query = dict(request.url.params)
        assert query["deployment"] == "d"
        return httpx2.Response(200, json={"instances": created if query.get("batch", "b") == "b" else []})

    adapter = cloud(answer)
    with pytest.raises(OutcomeUnknown):
        await adapter.create(ACCOUNT, REQUEST)
    found = [
        Instance(
            id="i-1",
            batch_id="b",
            launch_config_id="c",
            created_at=datetime.fromtimestamp(0, UTC),
            state=InstanceState.PENDING,
        )
    ]
    assert await adapter.instances(ACCOUNT, batch_id="b") == found
    assert await adapter.instances(ACCOUNT, batch_id="another") == []
    assert await adapter.instances(ACCOUNT) == found
    created[0]["state"] = "running"
    assert [instance.running for instance in await adapter.instances(ACCOUNT)] == [True]


#         status, code            scope, scope key                                   throttled
REFUSALS = [
    (409, "InsufficientCapacity", (Scope.CAPACITY, "sim-a/sim-1/zone-a/m5.large/on-demand"), False),
    (409, "QuotaExceeded", (Scope.QUOTA, "sim-a/sim-1/m5"), False),
    (429, "RequestLimitExceeded", (Scope.LIMITER, "sim-a"), True),
    (400, "ImageNotFound", (Scope.IMAGE, "linux-1"), False),
    (400, "InvalidRequest", (Scope.CONFIG, "c"), False),
    (401, "AuthFailure", (Scope.CREDENTIAL, "sim-a"), False),
    (400, "OutOfCoffee", (Scope.CREDENTIAL, "sim-a"), False),  # declared in the account's settings
]


@pytest.mark.parametrize(("status", "code", "blame", "throttled"), REFUSALS)
async def test_refusals_blame_what_their_code_says(
    status: int, code: str, blame: tuple[Scope, str], throttled: bool
) -> None:
    body = {"code": code, "message": "no", "retry_after_seconds": 7}
    with pytest.raises(Refused) as refused:
        await cloud(lambda _: httpx2.Response(status, json=body)).create(ACCOUNT, REQUEST)
    assert refused.value.outcome == Outcome(Stage.LAUNCH, Result.FAILED, *blame, code)
    assert (refused.value.throttled, refused.value.retry_after_seconds) == (throttled, 7)


async def test_an_unknown_code_is_charged_to_the_config() -> None:
    """A definite failure with a code that is not in the table is marked as unclassified."""
    with pytest.raises(Refused) as refused:
        await cloud(lambda _: httpx2.Response(400, json={"code": "Gremlins"})).create(ACCOUNT, REQUEST)
    expected = Outcome(Stage.LAUNCH, Result.FAILED, Scope.CONFIG, "c", "Gremlins", classified=False)
    assert refused.value.outcome == expected


INCONCLUSIVE = [(500, b'{"code": "InternalError"}'), (503, b'{"code": "Gremlins"}'), (502, b"<html>"), (200, b"")]


@pytest.mark.parametrize(("status", "content"), INCONCLUSIVE)
async def test_what_proves_nothing_stays_unknown(status: int, content: bytes) -> None:
    """An inconclusive reply is neither success nor failure: the call may have had its effect."""
    with pytest.raises(OutcomeUnknown):
        await cloud(lambda _: httpx2.Response(status, content=content)).create(ACCOUNT, REQUEST)


READS: dict[str, Callable[[Simulated], Awaitable[object]]] = {
    "listing": lambda provider: provider.instances(ACCOUNT),
    "instance": lambda provider: provider.exists(ACCOUNT, "i-1", launched_at=None),
    "identity": lambda provider: provider.identity(ACCOUNT),
    "console": lambda provider: provider.console_output(ACCOUNT, "b", "i-1"),
}


@pytest.mark.parametrize("read", READS)
async def test_a_call_that_fails_reads_nothing(read: str) -> None:
    """Otherwise an outage of the provider would mark every worker lost."""
    with pytest.raises(OutcomeUnknown, match="HTTP 500"):
        await READS[read](cloud(lambda _: httpx2.Response(500, json={"instances": [], "state": "terminated"})))


@pytest.mark.parametrize("instances", [None, {}, [{"id": ""}], ["i-1"]])
async def test_a_listing_without_instances_is_no_listing(instances: Any) -> None:
    with pytest.raises(OutcomeUnknown, match="no list of instances"):
        await cloud(lambda _: httpx2.Response(200, json={"instances": instances})).instances(ACCOUNT)


async def test_an_instance_that_is_not_found_is_gone() -> None:
    provider = cloud(lambda _: httpx2.Response(404, json={"code": "InstanceNotFound"}))
    assert not await provider.exists(ACCOUNT, "i-1", launched_at=None)
    assert await provider.console_output(ACCOUNT, "b", "i-1") == ""


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": "https://cloud", "image_namespace": "n", "errors": {"OutOfCoffee": "capacity"}}, ""),
        ({}, "url is None"),
        ({"url": "cloud:80"}, "the simulator's address"),
        ({"url": "http://cloud", "image_namespace": 1}, "image_namespace is no text"),
        ({"url": "http://cloud", "errors": ["OutOfCoffee"]}, "errors is not a mapping"),
    ],
)
def test_settings_of_an_account(settings: dict[str, Any], words: str) -> None:
    problem = Simulated(ProviderSettings(timeout_seconds=1)).problem(settings, "sim-1")
    assert words in problem
    assert bool(problem) == bool(words)


async def test_refused_terminations_name_each_instance() -> None:
    """All of those that are refused, with the command that ends the fault; another failure says nothing about one."""
    answers = {"i-1": (409, "OperationNotPermitted"), "i-2": (409, "OperationNotPermitted"), "i-3": (500, "")}

    def answer(request: httpx2.Request) -> httpx2.Response:
        status, code = answers.get(request.url.path.rpartition("/")[2], (204, ""))
        return httpx2.Response(status, json={"code": code, "message": "no"} if code else None)

    with pytest.raises(TerminationRefused) as refused:
        await cloud(answer).terminate(ACCOUNT, ["i-1", "i-2", "i-3", "i-4"])
    why = Protected("OperationNotPermitted: no", "curl -X DELETE http://cloud/faults/no-termination")
    assert refused.value.instances == {"i-1": why, "i-2": why}
    with pytest.raises(OutcomeUnknown) as unknown:
        await cloud(answer).terminate(ACCOUNT, ["i-3", "i-4"])
    assert not isinstance(unknown.value, TerminationRefused)
