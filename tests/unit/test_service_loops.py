"""Loops of a service: those that are woken by events, and those whose work time makes due."""

import asyncio

import pytest

from slipway_common.service import Loop, Service, ServiceSettings
from tests.support.harness import until


@pytest.mark.parametrize("woken", [True, False])
async def test_a_loop_is_woken_only_if_events_make_its_work_due(woken: bool) -> None:
    """Either ends at once when the service stops, whatever its tick."""
    service, steps = Service("provisioner", ServiceSettings(database_url="", kafka="")), list[int]()

    async def step(_: object) -> bool:
        steps.append(len(steps))
        return False

    running = asyncio.create_task(service._run_loop(Loop("loop", step, 600.0, woken=woken), None))
    other = asyncio.create_task(service._run_loop(Loop("other", step, 600.0), None))
    await until(lambda: len(steps) == 2, "both have had a step")
    service.runtime.wake()
    await until(lambda: len(steps) >= 3 + woken, "what is woken has another step")
    assert len(steps) == 3 + woken
    service.runtime.stopping.set()
    service.runtime.wake()
    async with asyncio.timeout(60):
        await asyncio.gather(running, other)
