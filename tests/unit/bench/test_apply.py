"""Benchmark of apply: its declarations are valid, and waits are those of the right steps."""

from pathlib import Path

from bench import apply, apply_beside
from slipway_common.declaration.parsing import load, parse


def test_declarations_are_valid_and_differ_in_one_pool() -> None:
    first, changed = (load(apply.text(30, image)).worker_pools or () for image in ("first", "second"))
    assert [len(pool.launch_configs) for pool in first] == [apply.CONFIGS] * 30
    assert [before.id for before, after in zip(first, changed, strict=True) if before != after] == ["team/29"]
    assert len(parse(apply_beside.declaration()).worker_pools or ()) == apply_beside.POOLS


def test_longest_wait_of_a_step() -> None:
    """Of all samples that overlap it, also those that began before it or ended after it."""
    measured = apply.Round("", "", "", Path(), 1)
    measured.spans = {"diff": [(10.0, 11.0), (20.0, 21.0)]}
    samples = [("plan", 9.9, 200.0), ("plan", 10.5, 20.0), ("start", 9.0, 999.0), ("start", 20.9, 300.0)]
    assert measured.longest(samples, "diff") == {"plan": 200.0, "start": 300.0, "ping": 0.0}
