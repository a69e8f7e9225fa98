"""Calibration: compare the simulator's figures for known policies with published ones."""

from collections.abc import Iterator

from bench.policies.cells import compute_all, plan
from bench.policies.published import CALIBRATION, TOLERANCE
from bench.policies.scenario import BUILT_IN
from bench.policies.traces import Traces


def calibrate(traces: Traces, seeds: int) -> Iterator[tuple[bool, str]]:
    """Per policy: True if failed launches per success, pooled over offsets and seeds, match, and a line of text."""
    offsets = len(traces.offsets())
    cells = plan([BUILT_IN["real"]], CALIBRATION, seeds * offsets, offsets)
    failed, well = dict.fromkeys(CALIBRATION, 0), dict.fromkeys(CALIBRATION, 0)
    for cell, figures in compute_all(cells, traces):
        failed[cell.policy] += figures.failed
        well[cell.policy] += figures.registered
    for policy, published in CALIBRATION.items():
        ratio = failed[policy] / max(1, well[policy])
        off = ratio / published - 1
        yield abs(off) <= TOLERANCE, f"{policy:<12} failed/ok {ratio:.3f}, published {published:.3f}: {off:+.1%}"
