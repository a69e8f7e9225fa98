"""The machine that a worker is, and the notices that it passes on."""

import asyncio
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from slipway_client.worker import core
from slipway_client.worker.core import Notice, Register, Worker
from slipway_client.worker.imds import Identity, Imds
from slipway_client.worker.machine import (
    DISABLED,
    ENDPOINT,
    Expected,
    Machine,
    NoIdentity,
    ec2_identity,
    expected,
    noticed,
    this_machine,
)
from slipway_client.worker.settings import Settings
from slipway_common.base.process.identities import INSTANCE_TAG, own_identity
from tests.support.harness import until
from tests.support.imds import INSTANCE_ID, fake_imds

NEW = Worker(settings=Settings())
REGISTERED = core.answered(NEW, Register(), 10.0)
AT = datetime(2026, 8, 1, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    ("environment", "has_sign", "expectation"),
    [
        ({}, False, Expected.POSSIBLY),
        ({}, True, Expected.YES),
        ({ENDPOINT: "http://here"}, False, Expected.YES),
        ({ENDPOINT: ""}, False, Expected.POSSIBLY),
        ({DISABLED: "true"}, True, Expected.NO),
        ({DISABLED: "True", ENDPOINT: "http://here"}, True, Expected.NO),
        ({DISABLED: "false"}, True, Expected.YES),
        ({INSTANCE_TAG: "d/a/b/1/c/i"}, True, Expected.NO),
    ],
)
def test_expected(environment: dict[str, str], has_sign: bool, expectation: Expected) -> None:
    """A process that a provider has started is an instance itself, also on an EC2 instance."""
    assert expected(environment, has_sign=has_sign) is expectation


async def test_an_instance_is_known_by_its_metadata_service() -> None:
    """Its id, not that of the process, is what the provider lists."""
    async with fake_imds() as fake:
        machine = await this_machine({ENDPOINT: fake.url}, Random(1))
        assert machine.identity == Identity(instance_id=INSTANCE_ID, zone="eu-west-1b", zone_id="euw1-az2")
        for elsewhere in ({ENDPOINT: fake.url, DISABLED: "true"}, {ENDPOINT: fake.url, INSTANCE_TAG: "tag"}):
            machine = await this_machine(elsewhere, Random(1))
            assert machine.identity == Identity(instance_id=own_identity())


async def test_an_instance_never_takes_another_identity() -> None:
    """Without its metadata service it has none; another machine is none of EC2."""
    async with fake_imds() as fake:
        fake.off = True
        with pytest.raises(NoIdentity, match=r"answered 403.*AWS_EC2_METADATA_DISABLED=true"):
            await ec2_identity(fake.url, Expected.YES, Random(1), find_seconds=0.0)
        assert await ec2_identity(fake.url, Expected.POSSIBLY, Random(1)) is None
        fake.off = False
        for expectation in (Expected.YES, Expected.POSSIBLY):
            found = await ec2_identity(fake.url, expectation, Random(1))
            assert found is not None
            assert found.instance_id == INSTANCE_ID


async def test_a_late_metadata_service_is_waited_for() -> None:
    async with fake_imds() as fake:
        fake.off = True
        found = asyncio.create_task(ec2_identity(fake.url, Expected.YES, Random(1)))
        await until(lambda: fake.refused, "it has asked")
        fake.off = False
        assert await found is not None


def test_notices_have_the_time_of_both_clocks() -> None:
    """An interruption ends the worker 90 s from now; each kind counts once, and the first reason stands."""
    wall = AT - timedelta(seconds=90)
    worker = noticed(REGISTERED, [Notice("rebalance"), Notice("interruption", AT)], 50.0, wall)
    assert (worker.notices, worker.ends_at) == (("rebalance", "interruption"), 140.0)
    assert worker.leaving == "the provider recommends replacing the machine"
    assert [(report.what, report.kind, report.ends_at) for report in worker.reports] == [
        ("notice", "rebalance", None),
        ("notice", "interruption", AT),
    ]
    assert noticed(worker, [Notice("interruption", AT)], 60.0, wall) is worker


async def test_a_worker_is_watched_from_its_registration_to_its_interruption() -> None:
    """Earlier the notice could not be reported; afterwards there is nothing left to learn. An unavailable service is
    asked again."""
    states, waits, registered = [NEW], asyncio.Event(), asyncio.Event()

    async def wait(until: float | None) -> None:
        assert (until, fake.calls) == (None, [])
        waits.set()
        await registered.wait()

    async with fake_imds() as fake:
        fake.interrupt("2026-08-01T15:00:00Z")
        machine = Machine(Identity(instance_id=INSTANCE_ID), Imds(fake.url), poll_seconds=0.001)
        fake.off = True
        watching = asyncio.create_task(machine.watch(lambda: states[-1], states.append, wait))
        await until(lambda: waits.is_set() or fake.refused, "it waits, or asks too early")
        assert not fake.refused
        states.append(REGISTERED)
        registered.set()
        await until(lambda: fake.refused, "it polls")
        fake.off = False
        await watching
    assert states[-1].notices == ("interruption",)
    assert states[-1].leaving == "the provider will interrupt the machine at 15:00:00 UTC"
    await Machine(Identity(instance_id="process")).watch(lambda: REGISTERED, states.append, wait)
