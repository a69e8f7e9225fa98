"""Thrash: replacements of needed plugins per run, over the recent past."""

import logging
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_terraform.domain.policy import Policy
from slipway_terraform.domain.thrash import HALF_LIFE_SECONDS, RUNS_MIN, Thrash, after
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support import virtual_time
from tests.support.plugin_world import Times, World, spec


@given(replacements=st.integers(0, 100), runs=st.integers(0, 100), seconds=st.floats(0, 1e6))
def test_time_alone_changes_no_ratio_but_makes_it_unknown(replacements: int, runs: int, seconds: float) -> None:
    now = after(Thrash(), replacements=replacements, runs=runs, now=0.0)
    assert now.ratio == (replacements / runs if runs >= RUNS_MIN else 0.0)
    later = after(now, now=seconds)
    assert later.ratio == pytest.approx(now.ratio) or (later.ratio == 0.0 and later.runs < RUNS_MIN)


def test_the_past_counts_less() -> None:
    """After some half-lives of quiet runs an alert ends."""
    thrash = after(Thrash(), replacements=60, runs=100, now=0.0)
    assert thrash.alerts
    for minute in range(1, 16):
        thrash = after(thrash, runs=20, now=minute * HALF_LIFE_SECONDS / 5)
    assert 0 < thrash.ratio < 0.1


def test_a_scheduler_with_too_few_processes_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    """With room for every configuration nothing is replaced and nothing is said."""

    async def serve(configurations: int) -> None:
        rng = random.Random(1)
        scheduler = SharedScheduler(World(rng, Times()), Policy(max_processes=4), rng=rng)
        for number in range(60):
            name = f"c{number % configurations}"
            async with await scheduler.acquire([spec(name)], owner=name, deadline=1e9) as lease, lease.invocation():
                pass
        await scheduler.aclose(0)

    with caplog.at_level(logging.WARNING):
        virtual_time.run(serve(4))
        assert caplog.messages == []
        virtual_time.run(serve(8))
    assert [message.partition(":")[0] for message in caplog.messages] == ["thrash"]
    assert "raise max_processes (now 4)" in caplog.messages[0]
