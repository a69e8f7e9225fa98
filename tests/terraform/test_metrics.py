"""Metrics of several schedulers in one process."""

import asyncio
import random

import prometheus_client

from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support.plugin_world import Times, World, spec
from tests.support.plugins import soon


def waiting() -> float:
    return prometheus_client.REGISTRY.get_sample_value("slipway_terraform_waiting_callers") or 0.0


async def test_waiting_callers_of_all_schedulers_are_added_up() -> None:
    """Until they are refused."""
    before = waiting()
    schedulers = [SharedScheduler(World(random.Random(1), Times(start_seconds=3600.0))) for _ in range(2)]
    callers = [
        asyncio.create_task(schedulers[place % 2].acquire([spec(f"{place}")], owner="", deadline=soon()))
        for place in range(5)
    ]
    await asyncio.sleep(0)
    assert waiting() == before + 5
    for scheduler in schedulers:
        await scheduler.aclose(0)
    await asyncio.gather(*callers, return_exceptions=True)
    assert waiting() == before
