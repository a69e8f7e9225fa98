"""What is claimed of runs, and whether it holds. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec


class Verdict(msgspec.Struct, frozen=True):
    holds: bool
    claim: str  # the figure and its bound

    def __str__(self) -> str:
        return self.claim if self.holds else f"FALSE: {self.claim}"


def told(verdicts: Sequence[Verdict]) -> int:
    """Print them in one line, the last; 1 when one is false."""
    print(", ".join(map(str, verdicts)))
    return 0 if all(verdict.holds for verdict in verdicts) else 1


def closest(starts: Iterable[float]) -> float:
    """The shortest time between two starts; of fewer than two, without end."""
    return min((later - earlier for earlier, later in pairwise(sorted(starts))), default=float("inf"))


def jain(amounts: Iterable[float]) -> float:
    """Jain's index of fairness: 1 when all got the same, 1 / n when one got everything."""
    values = list(amounts)
    squares = sum(value**2 for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


def turns(order: Sequence[str], asked_before: Mapping[str, int]) -> dict[str, int | None]:
    """Tenant → with which grant after it asked it was served first, counted from 1; None when it never was.

    `asked_before` says how many grants had been made when it asked.
    """
    return {
        tenant: next(
            (place - before + 1 for place, name in enumerate(order) if place >= before and name == tenant), None
        )
        for tenant, before in asked_before.items()
    }


def shares(order: Iterable[tuple[str, float]], tenants: Iterable[str]) -> dict[str, float]:
    """What each tenant got of all, by cost."""
    got: Counter[str] = Counter()
    for tenant, cost in order:
        got[tenant] += cost  # type: ignore[assignment]
    total = sum(got.values())
    return {tenant: got[tenant] / total if total else 0.0 for tenant in tenants}
