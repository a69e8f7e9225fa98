"""Published figures of the simulation that Slipway's rule was designed with: 4 seeds, no intervals."""

from typing import Final

import msgspec

TRACES: Final = "4481ec46813e1e4f"
"""Digest of the traces of the published figures: gecko-t-t-linux-large and nine AWS zones, 45 days at 195 s."""
TOLERANCE: Final = 0.15
RUNS: Final = 4  # seeds of the synthetic scenarios
CALIBRATION: Final = {"uniform": 1.139, "rfc191": 0.300, "taskcluster": 1.206, "ttl": 0.217, "autoscaler": 0.053}
"""Failed launches per success on the real traces, pooled over three offsets."""


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the recommended rule in one scenario."""

    failed: float | None = None
    detect_minutes: float | None = None
    recover_minutes: float | None = None
    share_left: float | None = None
    unfairness: float | None = None
    on_bad_image: float | None = None
    wait_mean: float | None = None
    ratio: float | None = None
    peak: float | None = None


RECOMMENDED: Final = {
    "one-out": Published(failed=103, detect_minutes=1.3, recover_minutes=5.4),
    "three-out": Published(failed=133, detect_minutes=1.1, recover_minutes=1.6),
    "all-out": Published(failed=189, wait_mean=183),
    "quota-cap": Published(failed=219),
    "slow-decay": Published(failed=138, detect_minutes=28, recover_minutes=8),
    "bad-image": Published(failed=169, detect_minutes=5, recover_minutes=13, wait_mean=109),
    "flapping": Published(failed=117),
    "steady-30": Published(failed=209, share_left=0.05),
    "healthy": Published(unfairness=0.031),
    "always-bad": Published(on_bad_image=31),
    "low-rate": Published(ratio=0.079),
    "real": Published(ratio=0.022, peak=88),
}
