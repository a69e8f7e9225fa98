"""The numbers by which outcomes become weights, windows and gates, and the three named sets of them. Values only."""

from collections.abc import Mapping
from typing import Final

import msgspec


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One set of coefficients. Windows are in starts under way, times in seconds.

    Evidence: `half_life_seconds` forgets by time, `mass_cap` by count: at any launch rate about mass_cap · ln 2 = 8
    outcomes outweigh the past, where decay by time alone would be slow on a busy config. `prior_mass` imaginary
    outcomes stand for what is believed before any: what siblings of the zone, account and pool show, else `prior`.
    Weight: a config keeps at least `floor` of its share, and `sharpness` makes it lose the rest faster than its health.

    Windows: a new config or image revision begins at `new_*_window`; each success adds one up to `*_window`; a failure
    multiplies by `*_shrink`, not below `*_window_min`; a gate that opens begins at `reopened_window`.

    Gates: `trip_capacity` definite refusals of capacity, quota or credential in a row close, or `trip_launch`,
    `trip_boot`, `trip_claim` failures of any kind. Probes come after `probe_initial_seconds`, doubling up to
    `probe_max_seconds`; one per `pool_probe_seconds` while all of a pool is closed; and at once for peers that closed
    within `sibling_seconds` of one that opens. A gate that closes again goes on with the delay that it had, halved per
    `relapse_seconds` since; and until its window has grown to `proven_window` again, one definite refusal closes it,
    of a quota whatever the window.
    A permit of a shared gate that nobody spends for `permit_seconds` goes to another config: longer than records may be
    late, or one that is spent at last would find its successor under way. A spent one of which no more is heard for
    `unheard_seconds`, beyond the time that its boot may take, is lost and comes back without an answer: a call, its
    look-up and the way of a record are shorter. One that nobody is heard to spend for `unspent_seconds` may have been
    spent all the same, and comes back too.

    Boots: one under way for longer than `late_factor` times the `late_quantile` of the last `boot_samples` boots, and
    `late_min_seconds` at least, counts as failed until it ends; `late_seconds` while fewer than `late_samples` are
    known.
    """

    half_life_seconds: float = 600.0
    mass_cap: float = 12.0
    prior: float = 0.95
    prior_mass: float = 2.0
    floor: float = 0.02
    sharpness: float = 3.0
    publish_threshold: float = 0.01  # smaller relative changes of a weight are not worth a record

    new_launch_window: float = 4.0
    launch_window: float = 64.0
    launch_window_min: float = 1.0
    launch_shrink: float = 0.5
    new_boot_window: float = 8.0
    boot_window: float = 1000.0
    boot_window_min: float = 2.0
    boot_shrink: float = 0.7
    new_claim_window: float = 64.0
    claim_window: float = 1000.0
    claim_window_min: float = 2.0
    claim_shrink: float = 0.7
    reopened_window: float = 2.0

    trip_capacity: int = 2
    proven_window: float = 3.0
    trip_launch: int = 5
    trip_boot: int = 5
    trip_claim: int = 5
    probe_initial_seconds: float = 15.0
    probe_max_seconds: float = 600.0
    pool_probe_seconds: float = 30.0
    sibling_seconds: float = 180.0
    relapse_seconds: float = 1800.0
    permit_seconds: float = 180.0
    unheard_seconds: float = 1800.0
    unspent_seconds: float = 86_400.0

    late_factor: float = 2.0
    late_quantile: float = 0.95
    late_seconds: float = 300.0
    late_min_seconds: float = 30.0
    late_samples: int = 20
    boot_samples: int = 32


# Outages of spot capacity last for hours (autocorrelation .57 at 1 h): early probes find little. By public traces of
# nine zones, half the probes cost a hundredth in waiting. A broken rack lasts until somebody comes.
PROFILES: Final[Mapping[str, Policy]] = {
    "on-demand": Policy(),
    "spot": Policy(
        half_life_seconds=3600.0, probe_initial_seconds=120.0, probe_max_seconds=1800.0, relapse_seconds=3600.0
    ),
    "bare-metal": Policy(
        half_life_seconds=3600.0,
        probe_initial_seconds=60.0,
        probe_max_seconds=1800.0,
        late_seconds=1800.0,
        late_min_seconds=300.0,
    ),
}
DEFAULT_PROFILE: Final = "on-demand"


def faster(policy: Policy, speed: float) -> Policy:
    """The same policy with every time divided by `speed`."""
    times = {name: getattr(policy, name) / speed for name in policy.__struct_fields__ if name.endswith("_seconds")}
    return msgspec.structs.replace(policy, **times)
