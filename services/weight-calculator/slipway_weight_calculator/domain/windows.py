"""How many starts of a row may be under way, per stage: a level that grows by successes and shrinks by failures. Pure.

Additive increase lets a window double per round trip, as each of its starts adds one; the cut on failure is what bounds
the loss when a place turns bad.
"""

from slipway_weight_calculator.domain.policy import Policy


def grown(window: float, stage: str, policy: Policy) -> float:
    """After a success. The first claim shows that workers of the row find tasks: idle fleets may wait unclaimed."""
    if stage == "launch":
        most, more = policy.launch_window, window + 1.0
    elif stage == "boot":
        most, more = policy.boot_window, window + 1.0
    else:
        most, more = policy.claim_window, 2.0 * window if window < policy.new_claim_window else policy.claim_window
    return more if more < most else most


def shrunk(window: float, stage: str, policy: Policy) -> float:
    """After a failure that was charged."""
    if stage == "launch":
        return max(policy.launch_window_min, window * policy.launch_shrink)
    if stage == "boot":
        return max(policy.boot_window_min, window * policy.boot_shrink)
    return max(policy.claim_window_min, window * policy.claim_shrink)
