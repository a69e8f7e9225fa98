"""Coefficients that turn outcomes into weights, windows and trips, and their three named profiles. Values only."""

from collections.abc import Mapping
from typing import Final

import msgspec

from slipway_api.events.scopes import NEW_SHARED_WINDOWS, NEW_WINDOWS


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One set of coefficients. Windows are numbers of starts in flight, times are in seconds.

    Evidence: `half_life_seconds` forgets by time, `mass_cap` by count: at any launch rate about mass_cap · ln 2 = 8
    outcomes outweigh the past, where decay by time alone would be slow on a busy config. The prior counts as much as
    `prior_mass` outcomes; it comes from siblings in the zone, account and pool, else it is `prior`.
    Weight: a config keeps at least `floor` of its share; with `sharpness` the rest shrinks faster than its health.

    Windows: a new config or image revision starts at `new_*_window`, the boots of a config at `new_config_boot_window`,
    which is larger since those of its image limit a bad image; windows stay between `*_window_min` and `*_window`. Boot
    windows follow from the newest `window_mass_cap` boots by `boot_shrink`, `bad_prior` and `bad_success`, as
    windows.py derives; a row that trips from `proven_boot_window` or more has an outage. Of launches and claims each
    success adds one, a failure multiplies by `*_shrink`, and after a recovery a window starts at `recovered_window`.

    Trips: `trip_capacity` definite refusals of capacity, quota or credential in a row trip a row, or `trip_launch`,
    `trip_boot`, `trip_claim` failures of any kind. The first probe comes after `probe_initial_seconds`; the delay
    doubles up to `probe_max_seconds`. While a whole pool is tripped it gets one probe per `pool_probe_seconds`; peers
    that tripped within `sibling_seconds` of a config that recovers are probed at once. A row that trips again continues
    with its last delay, halved per `relapse_seconds` since; until its window has grown to `proven_window`, one definite
    refusal trips it, and a quota refusal does so whatever the window.

    Permits: a permit for a shared row that stays unspent for `permit_seconds` goes to another config; records are never
    that late, otherwise a permit spent late would find its successor in flight. A spent permit without news for
    `probe_timeout_seconds` beyond the time allowed for its boot is lost and ends without an answer: a provider call,
    its lookup and the delivery of a record take less. An issued permit without news for `permit_expiry_seconds` may
    have been spent unnoticed, and ends without an answer too.

    Boots are compared with the slowest of the last `boot_samples` boots of their image and of their config, or with
    `slowest_min_seconds` if that is longer. One that takes longer than `slow_factor` times that counts in windows as
    failed until it ends, and from `late_factor` times on also in evidence and trips. While no boot of the image is
    known, none counts; with fewer than `late_samples` known ones it takes `late_factor` times to count in windows, and
    none is late; the boot of a probe is then allowed `boot_seconds`. Once `boot_samples` are known, a start that takes
    longer than `overdue_factor` times the usual duration counts in the window of its image, until one launched later
    has registered.
    """

    half_life_seconds: float = 600.0
    mass_cap: float = 12.0
    prior: float = 0.95
    prior_mass: float = 2.0
    floor: float = 0.02
    sharpness: float = 3.0
    publish_threshold: float = 0.01  # smaller relative changes of a weight are not published

    new_launch_window: float = float(NEW_WINDOWS["launch"])
    launch_window: float = float(NEW_SHARED_WINDOWS["quota", "launch"])  # full for a new quota
    launch_window_min: float = 1.0
    launch_shrink: float = 0.5
    new_boot_window: float = float(NEW_SHARED_WINDOWS["image", "boot"])
    new_config_boot_window: float = float(NEW_WINDOWS["boot"])
    boot_window: float = 1000.0
    boot_window_min: float = 2.0
    boot_shrink: float = 0.7
    new_claim_window: float = float(NEW_WINDOWS["claim"])
    claim_window: float = 1000.0
    claim_window_min: float = 2.0
    claim_shrink: float = 0.7
    window_mass_cap: float = 30.0
    bad_prior: float = 0.28
    bad_success: float = 0.02
    proven_boot_window: float = 50.0
    recovered_window: float = 2.0

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
    probe_timeout_seconds: float = 1800.0
    permit_expiry_seconds: float = 86_400.0

    overdue_factor: float = 0.95
    slow_factor: float = 1.3
    late_factor: float = 1.5
    slowest_min_seconds: float = 15.0
    boot_seconds: float = 300.0
    late_samples: int = 5
    boot_samples: int = 32


# Outages of spot capacity last for hours (autocorrelation .57 at 1 h), so early probes rarely succeed. On public traces
# of nine zones, halving the number of probes lengthens waits by 1 %. A broken rack stays broken until it is repaired.
PROFILES: Final[Mapping[str, Policy]] = {
    "on-demand": Policy(),
    "spot": Policy(
        half_life_seconds=3600.0, probe_initial_seconds=120.0, probe_max_seconds=2000.0, relapse_seconds=3600.0
    ),
    "bare-metal": Policy(
        half_life_seconds=3600.0,
        probe_initial_seconds=60.0,
        probe_max_seconds=1800.0,
        slowest_min_seconds=150.0,
        boot_seconds=1800.0,
    ),
}
DEFAULT_PROFILE: Final = "on-demand"


def faster(policy: Policy, speed: float) -> Policy:
    """The same policy with every time divided by `speed`."""
    times = {name: getattr(policy, name) / speed for name in policy.__struct_fields__ if name.endswith("_seconds")}
    return msgspec.structs.replace(policy, **times)
