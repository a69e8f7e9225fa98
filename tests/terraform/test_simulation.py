"""Seeded runs of the scheduler on a virtual clock: crashes, leaks, failing starts, cancelled callers, early ends."""

import pytest

from tests.terraform.simulation import simulate


@pytest.mark.parametrize("first", [1, 60])
def test_rules_hold_in_every_run(first: int) -> None:
    """Invariants 2 to 7 and 10: reservations, no stop in use, both caps, one start, order of arrival, no leak."""
    runs = [simulate(seed) for seed in range(first, first + 12)]
    assert [(run.seed, run.broken) for run in runs if run.broken] == []
    ends = {kind for run in runs for kind in run.ends}
    assert ends >= {"done", "QueueTimeout", "QueueFull", "OutcomeUnknown", "ProviderStartError", "SchedulerClosed"}


def test_a_seed_gives_the_same_run_again() -> None:
    assert simulate(3) == simulate(3)
