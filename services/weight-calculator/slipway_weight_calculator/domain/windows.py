"""Windows: limits on the starts of a row in flight per stage. Pure; the only place that decides how they grow.

**Boots: by evidence.** A window that adds 1 per success and is multiplied by `boot_shrink` per failure is in balance
where both effects are equal: 1 − p = p · W · (1 − `boot_shrink`), with p the probability that a boot fails. So the
product p · W, the failures to expect from a full window, is (1 − p) / (1 − `boot_shrink`), at most 3.3, whatever p is:
that is the waste which such a window permits once it has settled. It settles slowly, by one per boot, both where an
image is good and where it is bad. Here the window has that size at once, for the p that the evidence implies:

    W = (1 − p) / p / (1 − boot_shrink)        within boot_window_min … boot_window

p is the predictive probability of a failure after `good` and `bad` boots, under a mixture of two hypotheses. A *bad*
row, of prior probability `bad_prior`, registers a boot with probability `bad_success`: images are seldom half broken,
and a bad one shows that by its first failures. For a *fine* row the probability of success has a Beta distribution, of
mean `prior` and mass `prior_mass`, as it has for weights. Successes rule out the bad hypothesis soon: one success is
50 times as likely on a fine row.

With the default coefficients a row without evidence has p = 0.31 and W = 7.4. After 1, 2, 5 and 30 successes W is 78,
129, 230 and the maximum; after a failure that no success accompanies it is the minimum; 30 % of failures among the
newest 30 boots give 8, and 80 % the minimum.

**Launches and claims: by steps.** A launch is answered within seconds, so that additive increase doubles a window per
round trip, and a claim window only limits idle workers.
"""

from functools import lru_cache
from math import exp, lgamma, log, log1p
from typing import Final

from slipway_weight_calculator.domain.policy import Policy

EXPONENT_MAX: Final = 700.0  # exp() of more overflows; such odds are certainty


def counted(good: float, bad: float, policy: Policy, *, failed: bool = False) -> tuple[float, float]:
    """The successes and failures of a boot window after one more; beyond the cap both shrink in proportion.

    So `window_mass_cap` outcomes are remembered, whenever they happened, and below the cap their order is irrelevant.
    """
    good, bad = (good, bad + 1.0) if failed else (good + 1.0, bad)
    total, cap = good + bad, policy.window_mass_cap
    return (good, bad) if total <= cap else (good * cap / total, bad * cap / total)


def size(good: float, bad: float, policy: Policy) -> float:
    """Boot window after these successes and failures.

    Without a failure it is at least that of a new row, which allows what a bad image may cost before its first answer.
    """
    p = failure_probability(good, bad, policy.bad_prior, policy.bad_success, policy.prior, policy.prior_mass)
    window = (1.0 - p) / p / (1.0 - policy.boot_shrink)
    least = policy.boot_window_min if bad else max(policy.boot_window_min, policy.new_boot_window)
    return min(max(window, least), policy.boot_window)


@lru_cache(maxsize=10_000)
def failure_probability(
    good: float, bad: float, bad_prior: float, bad_success: float, prior: float, prior_mass: float
) -> float:
    """Predictive probability that the next boot fails."""
    fine_failures, total = prior_mass * (1.0 - prior) + bad, prior_mass + good + bad
    likelihood_bad = good * log(bad_success) + bad * log1p(-bad_success)
    likelihood_fine = _log_beta(total - fine_failures, fine_failures) - _log_beta(
        prior_mass * prior, prior_mass * (1.0 - prior)
    )
    odds = (1.0 - bad_prior) / bad_prior * exp(min(likelihood_fine - likelihood_bad, EXPONENT_MAX))
    return ((1.0 - bad_success) + odds * fine_failures / total) / (1.0 + odds)


def _log_beta(one: float, other: float) -> float:
    return lgamma(one) + lgamma(other) - lgamma(one + other)


def recovered(good: float, bad: float, kept: float) -> tuple[float, float]:
    """The successes and failures of a boot window after the success that ended a trip.

    What was known before is worth the share `kept`: the trip has shown that the past says little about the present.
    The newest success counts in full.
    """
    newest = min(good, 1.0)
    return newest + (good - newest) * kept, bad * kept


def grown(window: float, stage: str, policy: Policy) -> float:
    """Launch or claim window after a success.

    A claim shows that workers find tasks, so many idle workers may wait for them.
    """
    if stage == "launch":
        most, more = policy.launch_window, window + 1.0
    else:
        most, more = policy.claim_window, 2.0 * window if window < policy.new_claim_window else policy.claim_window
    return more if more < most else most


def shrunk(window: float, stage: str, policy: Policy) -> float:
    """Launch or claim window after a charged failure."""
    if stage == "launch":
        return max(policy.launch_window_min, window * policy.launch_shrink)
    return max(policy.claim_window_min, window * policy.claim_shrink)
