"""Windows: limits on the starts of a row in flight per stage, which grow by successes and shrink by failures. Pure.

Additive increase lets a window double per round trip, because each of its starts adds one; the multiplicative decrease
bounds the loss when a location fails.
"""

from slipway_weight_calculator.domain.policy import Policy


def grown(window: float, stage: str, policy: Policy) -> float:
    """Window after a success. A claim shows that workers find tasks, so many idle workers may wait for them."""
    if stage == "launch":
        most, more = policy.launch_window, window + 1.0
    elif stage == "boot":
        most, more = policy.boot_window, window + 1.0
    else:
        most, more = policy.claim_window, 2.0 * window if window < policy.new_claim_window else policy.claim_window
    return more if more < most else most


def shrunk(window: float, stage: str, policy: Policy) -> float:
    """Window after a charged failure."""
    if stage == "launch":
        return max(policy.launch_window_min, window * policy.launch_shrink)
    if stage == "boot":
        return max(policy.boot_window_min, window * policy.boot_shrink)
    return max(policy.claim_window_min, window * policy.claim_shrink)
