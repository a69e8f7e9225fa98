"""Figures of the benchmark, its claims, and the lines that it prints. Pure."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from bench.decision.cost import Cost
from bench.decision.load import Change
from bench.hop_latency import HopLatency
from bench.spread import percentile
from slipway_api.events.topics import POOL_DEMAND

HOPS_MAX: Final = 6.0
COMMITS_MAX: Final = 8.0
GROWTH_MAX: Final = 1.3
ENDED_SHARE_MIN: Final = 0.99
OWNED_SECONDS_MAX: Final = 15.0
DECIDED_SECONDS_MAX: Final = 2.0
SATURATED_MIN: Final = 300.0


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds from `observed_at` until a change was decided and until its call was received, by percentile."""

    changes: int
    decided_p50: float
    decided_p99: float
    received_p50: float
    received_p99: float


class TakeOver(msgspec.Struct, frozen=True, kw_only=True):
    """Take-over of a killed provisioner's partitions: seconds from the kill until the others owned all of them, and
    from then until the last change on them was decided that had been reported before."""

    partitions: Sequence[str]
    owned_seconds: float
    decided_seconds: float
    waited: int


class Results(msgspec.Struct, frozen=True, kw_only=True):
    """Results of one run; `on` describes the machine and the versions measured. `first`: of the changes while the
    deployment warms up, which `latency` has not. `cpu_ms`: processor time of each process, in milliseconds per
    change."""

    command: str
    on: dict[str, Any]
    cell: str
    per_second: float
    quiet: HopLatency
    under_load: HopLatency
    latency: Latency
    first: Latency
    lost: int
    doubled: int
    cpu_ms: Mapping[str, float]
    take_over: TakeOver | None = None
    cost: Cost | None = None


class Saturated(msgspec.Struct, frozen=True, kw_only=True):
    """Decisions a second of one process while all pools are dirty. `cpu_ms`: processor time of each process, in
    milliseconds per decision."""

    command: str
    on: dict[str, Any]
    cell: str
    decisions: int
    per_second: float
    cpu_ms: Mapping[str, float]


def latency(changes: Sequence[Change]) -> Latency:
    """Latencies of the changes that have ended in a call."""
    ended = [change for change in changes if change.decided_at is not None and change.received_at is not None]
    decided = [(change.decided_at - change.observed_at) * 1000 for change in ended if change.decided_at is not None]
    received = [(change.received_at - change.observed_at) * 1000 for change in ended if change.received_at is not None]
    return Latency(
        changes=len(ended),
        decided_p50=percentile(decided, 50),
        decided_p99=percentile(decided, 99),
        received_p50=percentile(received, 50),
        received_p99=percentile(received, 99),
    )


def take_over(
    changes: Sequence[Change], partitions: Collection[str], *, killed_at: float, owned_seconds: float
) -> TakeOver:
    """Figures of a take-over. Changes wait on its partitions if they were reported between the kill and its end."""
    owned_at = killed_at + owned_seconds
    demand = {int(name.rpartition("/")[2]) for name in partitions if name.startswith(POOL_DEMAND.name)}
    waiting = [each for each in changes if each.partition in demand and killed_at <= each.observed_at < owned_at]
    decided = [(each.decided_at or math.inf) - owned_at for each in waiting]
    return TakeOver(
        partitions=sorted(partitions),
        owned_seconds=owned_seconds,
        decided_seconds=max([0.0, *decided]),
        waited=len(waiting),
    )


def lost(changes: Sequence[Change]) -> int:
    """Changes that never ended in a call."""
    return sum(change.received_at is None for change in changes)


def lines(results: Results) -> list[str]:
    """Figures as text."""
    found, first, quiet, loaded = results.latency, results.first, results.quiet, results.under_load
    text = [
        f"{results.cell}, on {results.on}",
        f"one event hop before the load p50 {quiet.next_p50:g} ms, p99 {quiet.next_p99:g} ms; "
        f"under it p50 {loaded.next_p50:g} ms, p99 {loaded.next_p99:g} ms",
        f"{found.changes} changes at {results.per_second:g}/s: observed → decided p50 {found.decided_p50:g} ms, "
        f"p99 {found.decided_p99:g} ms; → call received p50 {found.received_p50:g} ms, p99 {found.received_p99:g} ms",
        f"  p99 ÷ p99 of a quiet hop = {found.received_p99 / quiet.next_p99:.3g}, "
        f"÷ that of a hop under load = {found.received_p99 / loaded.next_p99:.3g}; "
        f"{results.lost} lost, {results.doubled} doubled",
        f"  while the deployment warms up: {first.changes} changes, call received p50 {first.received_p50:g} ms, "
        f"p99 {first.received_p99:g} ms, {first.received_p99 / quiet.next_p99:.3g} quiet hops",
    ]
    if results.cpu_ms:
        parts = ", ".join(f"{name} {ms:g}" for name, ms in results.cpu_ms.items())
        text.append(f"processor time per change {sum(results.cpu_ms.values()):.3g} ms: {parts}")
    if (taken := results.take_over) is not None:
        text.append(
            f"a provisioner killed: its {len(taken.partitions)} partitions owned after {taken.owned_seconds:.1f} s, "
            f"{taken.waited} changes that waited on them decided {taken.decided_seconds:.2f} s later"
        )
    if (cost := results.cost) is not None:
        text += [
            f"a decision {cost.decision} ms, of the smallest cell {cost.smallest} ms; a plain commit {cost.commit} ms; "
            f"{cost.statements} statements",
            f"  decision ÷ plain commit = {cost.commits}; decision ÷ that of the smallest cell = {cost.growth}",
        ]
    return text


def claims(results: Results, *, growth_max: float = GROWTH_MAX) -> dict[str, bool]:
    """Claims with their figures."""
    found = results.latency
    hops = found.received_p99 / results.quiet.next_p99
    ended = found.changes + results.first.changes
    share = ended / max(1, ended + results.lost)
    claims = {
        f"p99 {hops:.3g} quiet hops ≤ {HOPS_MAX:g}": hops <= HOPS_MAX,
        f"{share:.2%} of the changes ended in a call ≥ {ENDED_SHARE_MIN:.0%}": share >= ENDED_SHARE_MIN,
        f"{results.doubled} doubled": not results.doubled,
    }
    if (taken := results.take_over) is not None:
        claims |= {
            f"{results.lost} lost": not results.lost,
            f"owned after {taken.owned_seconds:.1f} s ≤ {OWNED_SECONDS_MAX:g} s": taken.owned_seconds
            <= OWNED_SECONDS_MAX,
            f"decided {taken.decided_seconds:.2f} s later ≤ {DECIDED_SECONDS_MAX:g} s": taken.decided_seconds
            <= DECIDED_SECONDS_MAX,
        }
    if (cost := results.cost) is not None:
        commits, growth = cost.commits.median, cost.growth.median
        claims |= {
            f"a decision {commits:.3g} plain commits ≤ {COMMITS_MAX:g}": commits <= COMMITS_MAX,
            f"{growth:.3g} × the smallest cell ≤ {growth_max:g} ×": growth <= growth_max,
        }
    return claims
