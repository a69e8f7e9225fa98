"""Comparison of a demo with RFC 191's rule, and with Slipway's cores on the same virtual clock, as text. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from slipway_common.declaration.models import Declaration, LeasePool
from slipway_local.demo.replay.cores import Slipway
from slipway_local.demo.replay.error_rates import Rfc191
from slipway_local.demo.replay.run import play
from slipway_local.demo.replay.waste import Waste, waste
from slipway_simulator.facts import Fact, ScenarioLoaded

HEAD: Final = """\
Waste and wait, compared with RFC 191's rule: weights by the last hour's errors, no windows and no probes. The rule and
Slipway's cores are computed on a virtual clock, in the same cloud with the same faults and tasks. All three obey the
same limits: {limits}.
"""
FOOT: Final = """
  Waits are means until a task's first start, in product time. Launches are counted from the cloud's ledger until
  demand ended, refused ones included; `launched` above counts accepted launches until all of them had settled."""
WASTE_MAX: Final = 0.6  # times the rule's
WAIT_MAX: Final = 1.4  # times the rule's
COMPARABLE_FAILURES: Final = 30  # of the rule's launches; with fewer, chance decides which of the two wastes more


class Comparison(NamedTuple):
    """Text of a comparison, and the claims that it shows to be false."""

    text: str
    false: tuple[str, ...] = ()


def compared(ledger: Sequence[Fact], declared: Declaration, *, until: float) -> Comparison:
    """Waste and wait of the run, of Slipway's cores and of RFC 191's rule in the same cloud."""
    ours = waste(ledger, until=until)
    theirs, cores = (waste(play(ledger, declared, rule, until=until), until=until) for rule in (Rfc191(), Slipway()))
    speed = next((fact.scenario.speed for fact in ledger if isinstance(fact, ScenarioLoaded)), 1.0)
    lines = [
        f"  Slipway          {ours}",
        f"  RFC 191's rule   {theirs}",
        f"  Slipway's cores  {cores}",
        f"  Slipway has {times(ours.share, theirs.share)} the waste of the rule"
        f" and {times(ours.waited_seconds, theirs.waited_seconds)} its wait.",
        f"  {latency(ours, cores, speed)}",
    ]
    text = HEAD.format(limits=limits(declared, speed)) + "\n".join(lines) + FOOT
    return Comparison(text, false_claims(ours, cores, theirs))


def false_claims(run: Waste, cores: Waste, rule: Waste) -> tuple[str, ...]:
    """Claims of less waste at little more wait that are false. The wait is that of the cores, since the latency of real
    processes is the machine's."""
    if rule.failed < COMPARABLE_FAILURES:
        return ()
    claims = {
        f"waste ≤ {WASTE_MAX:g} × the rule's": run.share <= WASTE_MAX * rule.share,
        f"wait of Slipway's cores ≤ {WAIT_MAX:g} × the rule's": cores.waited_seconds <= WAIT_MAX * rule.waited_seconds,
    }
    return tuple(claim for claim, holds in claims.items() if not holds)


def latency(run: Waste, cores: Waste, speed: float) -> str:
    """The part of a run's wait that is due to its processes and not to its decisions."""
    seconds = max(0.0, run.waited_seconds - cores.waited_seconds)
    processes = f"HTTP, Kafka, polls and busy processors; each of their seconds counts as {speed:g} s"
    return f"{seconds:.0f} s of its wait are latency of real processes ({processes})."


def limits(declared: Declaration, speed: float) -> str:
    """The limits that every rule obeys. Times of the declaration were divided by `speed`."""
    return "; ".join([*_lease_limits(declared, speed), *_maxima(declared)])


def _lease_limits(declared: Declaration, speed: float) -> Iterator[str]:
    """Lease limits and pacing, for equal lease pools together."""
    used = {account.lease_pool for account in declared.accounts or ()}
    named: dict[str, list[str]] = {}
    for pool in declared.lease_pools or ():
        if pool.id in used:
            named.setdefault(_terms(pool, speed), []).append(pool.id)
    for terms, names in named.items():
        yield f"in {' and in '.join(names)} {terms}"


def _terms(pool: LeasePool, speed: float) -> str:
    at_a_time = f"{pool.limit} launches at a time"
    if pool.pacing == "off":
        return at_a_time
    if pool.pacing is None or isinstance(pool.pacing, str):
        return f"{at_a_time}, paced"
    return f"{at_a_time}, {pool.pacing.burst} at once and then one per {pool.pacing.interval_seconds * speed:g} s"


def _maxima(declared: Declaration) -> Iterator[str]:
    for pool in declared.worker_pools or ():
        yield f"{pool.max_capacity} workers in {pool.id}"


def times(ours: float, theirs: float) -> str:
    """One value as a multiple of another."""
    return f"{ours / theirs:.2f} ×" if theirs else f"{ours:.2f} against 0 ×"
