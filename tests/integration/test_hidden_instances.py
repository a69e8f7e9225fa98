"""Instances of EC2 that it does not list yet: hidden is not gone, and an unknown id is no proof of a termination."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from slipway_api.events.lease import LeaseRequested
from slipway_common.base.clock import utc_now
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.cloud import START
from tests.support.ec2_provisioner import body, with_ec2
from tests.support.ec2_server import (
    Ec2Server,
    Received,
    Reply,
    caller,
    described,
    error,
    instance,
    launched,
    reply,
    serving,
    zones,
)
from tests.support.provisioner import Provisioner, after, report


class Hiding:
    """EC2 that launches one instance and knows nothing of it until it is `shown`, in the given state."""

    def __init__(self) -> None:
        self.shown = ""

    def __call__(self, call: Received) -> Reply:
        unknown = error("InvalidInstanceID.NotFound", "The instance ID 'i-1' does not exist")
        match call.action:
            case "RunInstances":
                return launched("i-1")
            case "GetCallerIdentity":
                return caller("sim-a")
            case "DescribeAvailabilityZones":
                return zones(us_east_1a="use1-az4")
            case "DescribeInstances" if call.listed("InstanceId"):
                return described(instance("i-1", self.shown)) if self.shown else unknown
            case "TerminateInstances":
                return reply("TerminateInstances", "<instancesSet/>") if self.shown else unknown
        return described()


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ec2Server]:
    monkeypatch.setenv("CI_AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("CI_AWS_SECRET_ACCESS_KEY", "secret")
    async with serving() as server:
        server.answer = Hiding()
        yield server


@pytest.fixture
async def provisioner(postgres: EmbeddedPostgres) -> AsyncIterator[Provisioner]:
    async with with_ec2(postgres) as provisioner:
        yield provisioner


async def started(provisioner: Provisioner, server: Ec2Server, **settings: Any) -> float:
    """Launch one worker now, by the clock of this host, which the provider reads; returns the seconds of this time."""
    declaration = body(server.url, credential={"name": "ci"})
    declaration["accounts"][0]["settings"] |= settings
    await provisioner.declare(declaration)
    await provisioner.trust()
    now = (utc_now() - START).total_seconds()
    await provisioner.set_clock(now)
    await provisioner.demand(report(1, at=now))
    await provisioner.plan()
    requests = await provisioner.published(LeaseRequested)
    until: dict[str, Any] = {"expires_at": after(now + 180), "hold_until": after(now + 1200)}
    await provisioner.leases(*(provisioner.granted(request, **until) for request in requests))
    await provisioner.launch()
    assert await provisioner.states() == {"starting": 1}
    return now


@pytest.mark.parametrize(("visibility_seconds", "state"), [(3600.0, "starting"), (0.0, "stopped")])
async def test_an_instance_that_is_not_listed_yet_is_not_gone(
    provisioner: Provisioner, server: Ec2Server, visibility_seconds: float, state: str
) -> None:
    """Nothing is marked lost and nothing is launched twice, unless the account says that a launch is listed at once."""
    now = await started(provisioner, server, visibility_seconds=visibility_seconds)
    for seconds in (31, 95, 4000):  # the listing lacks it, so EC2 is asked by its id
        await provisioner.set_clock(now + seconds)
        await provisioner.reap()
        await provisioner.resolve()
    assert await provisioner.states() == {state: 1}
    assert server.actions().count("RunInstances") == 1


async def test_an_unknown_id_is_no_proof_of_a_termination(provisioner: Provisioner, server: Ec2Server) -> None:
    """The worker is stopped only once EC2 shows that its instance has ended, and is terminated until then."""
    now = await started(provisioner, server, visibility_seconds=3600.0)
    await provisioner.set_clock(now + 4000)
    await provisioner.expire()
    for seconds in (4000, 4100):
        await provisioner.set_clock(now + seconds)
        await provisioner.terminate_instances()
        await provisioner.reap()
    assert await provisioner.states() == {"stopping": 1}
    assert server.actions().count("TerminateInstances") == 2
    assert isinstance(server.answer, Hiding)
    server.answer.shown = "terminated"
    await provisioner.set_clock(now + 4200)
    await provisioner.reap()
    assert await provisioner.states() == {"stopped": 1}
