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
48 times as likely on a fine row.

With the default coefficients a row without evidence has p = 0.31 and W = 7.4; until it fails, its window is no smaller
than that of a new image. After 1, 2, 5 and 30 successes W is 78, 129, 230 and the maximum; after one failure and no
success it is the minimum; 30 % of failures among the newest 30 boots give 8, and 80 % the minimum.

**Overdue starts.** As long as an image is fine, about half of its boots are over at the usual duration, and the starts
behind them follow. That n starts take longer and none launched later has registered has a probability of about 2⁻ⁿ at
most, at any rate of launches. So they count as failures, until a later one registers: it ends the doubt about all
starts before it, and where boots only become slower this comes soon.

**Launches and claims: by steps.** A launch is answered within seconds, so that additive increase doubles a window per
round trip, and a claim window only limits idle workers.
"""

from functools import lru_cache
from math import exp, lgamma, log, log1p
from typing import Final

import msgspec
from msgspec.structs import replace

from slipway_weight_calculator.domain.policy import Policy

USUAL_BOOTS: Final = 8  # a new duration weighs as much in the usual one; few, so that it follows a change soon
EXPONENT_MAX: Final = 700.0  # exp() of more overflows; such odds are certainty


class Boots(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Boots that a window follows from: `good` and `bad` ones, at most `window_mass_cap`; time does not change them.

    `slow` boots are in progress, and so are `overdue` ones: the image's starts that take longer than usual while none
    launched later has registered. `outages` is the number of outages that a proven row has had; during another one
    `aside` is the mass of failures that will be forgotten at its end. Boots that were slow when an outage ended are
    `hung`: nothing follows from them any more.
    """

    good: float = 0.0
    bad: float = 0.0
    slow: int = 0
    hung: int = 0
    outages: int = 0
    aside: float | None = None
    overdue: int = 0


UNKNOWN: Final = Boots()


def counted(boots: Boots, policy: Policy, *, failed: bool = False) -> Boots:
    """Boots after one more success or failure. Below the cap the order of outcomes is irrelevant."""
    good, bad = (boots.good, boots.bad + 1.0) if failed else (boots.good + 1.0, boots.bad)
    aside, total, cap = boots.aside, good + bad, policy.window_mass_cap
    if total > cap:
        good, bad = good * cap / total, bad * cap / total
        # It is a part of `bad`: starts that register during an outage displace it too.
        aside = aside * cap / total if aside is not None else None
    return Boots(good, bad, boots.slow, boots.hung, boots.outages, aside, boots.overdue)


def slowed(boots: Boots) -> Boots:
    """Boots after one in progress has become slow."""
    return replace(boots, slow=boots.slow + 1)


def ended(boots: Boots, outages: int) -> Boots:
    """Boots after a slow one has ended, which became slow after this number of `outages`."""
    if outages < boots.outages:
        return replace(boots, hung=max(0, boots.hung - 1))
    return replace(boots, slow=max(0, boots.slow - 1))


def tripped(boots: Boots, failures: int, hanging: int, policy: Policy) -> Boots:
    """Boots after a row has tripped by these failures among others.

    On a proven row they are not due to chance: an outage has begun, and they have one cause, so they count as one. On
    any other row they count in full: one that fails now and then trips by chance, and would forget its failures again
    and again.
    """
    before = replace(boots, bad=max(0.0, boots.bad - failures), slow=max(0, boots.slow - hanging), overdue=0)
    if boots.good < policy.late_samples or size(before, policy) < policy.proven_boot_window:
        return boots
    return replace(boots, aside=boots.bad - before.bad - 1.0)


def untripped(boots: Boots) -> Boots:
    """Boots after the trip that began an outage turned out to be unfounded: nothing will be forgotten."""
    return replace(boots, aside=None)


def recovered(boots: Boots, kept: float) -> Boots:
    """Boots after the success that ended a trip.

    After an outage, its starts that still hang say nothing about the present. After any other trip, what was known
    before is worth the share `kept`, the newest success counts in full, and the failures count as one at least:
    otherwise a row that fails often would be as good as new after each long trip.
    """
    if boots.aside is not None:
        return replace(
            boots,
            bad=boots.bad - boots.aside,
            slow=0,
            hung=boots.hung + boots.slow,
            outages=boots.outages + 1,
            aside=None,
        )
    newest = min(boots.good, 1.0)
    return replace(boots, good=newest + (boots.good - newest) * kept, bad=max(boots.bad * kept, min(boots.bad, 1.0)))


def size(boots: Boots, policy: Policy) -> float:
    """Boot window of a row.

    Slow or overdue boots in progress count as failures where they are more than the remembered ones: those hung too
    before they failed, so that the sum would count the same trouble twice. Without a failure a window is at least that
    of a new image, which allows what a bad one may cost before its first answer. Hung boots occupy no place in it.
    """
    good, bad = boots.good, max(boots.bad, boots.slow, boots.overdue)
    p = failure_probability(good, bad, policy.bad_prior, policy.bad_success, policy.prior, policy.prior_mass)
    window = (1.0 - p) / p / (1.0 - policy.boot_shrink)
    least = policy.boot_window_min if bad else max(policy.boot_window_min, policy.new_boot_window)
    return min(max(window, least) + boots.hung, policy.boot_window)


def is_full(boots: Boots, window: float, policy: Policy) -> bool:
    """True if a window is at its maximum and what is known at its cap: another success adds nothing."""
    at_cap = boots.good + boots.bad > policy.window_mass_cap - 0.5  # such sums are rounded
    return at_cap and window >= policy.boot_window


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
