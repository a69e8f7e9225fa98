"""Verdicts on claims about runs, and the measures of fairness that they use. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec


class Verdict(msgspec.Struct, frozen=True):
    """One claim, and True if it holds."""

    holds: bool
    claim: str  # the figure and its bound

    def __str__(self) -> str:
        return self.claim if self.holds else f"FALSE: {self.claim}"


def report(verdicts: Sequence[Verdict]) -> int:
    """Print all verdicts in one line; return 1 if one is false."""
    print(", ".join(map(str, verdicts)))
    return 0 if all(verdict.holds for verdict in verdicts) else 1


def closest(starts: Iterable[float]) -> float:
    """Shortest time between two starts; infinite for fewer than two."""
    return min((later - earlier for earlier, later in pairwise(sorted(starts))), default=float("inf"))


def jain(amounts: Iterable[float]) -> float:
    """Jain's index of fairness: 1 when all got the same, 1 / n when one got everything."""
    values = list(amounts)
    squares = sum(value**2 for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


def grants_until_served(order: Sequence[str], granted_before: Mapping[str, int]) -> dict[str, int | None]:
    """Number of grants, by tenant, from its request to its first grant inclusive; None if it was never served.

    `granted_before`: grants made before each tenant's request.
    """
    return {
        tenant: next(
            (place - before + 1 for place, name in enumerate(order) if place >= before and name == tenant), None
        )
        for tenant, before in granted_before.items()
    }


def shares(order: Iterable[tuple[str, float]], tenants: Iterable[str]) -> dict[str, float]:
    """Share of each tenant in the total cost of all grants."""
    got: Counter[str] = Counter()
    for tenant, cost in order:
        got[tenant] += cost  # type: ignore[assignment]
    total = sum(got.values())
    return {tenant: got[tenant] / total if total else 0.0 for tenant in tenants}
