"""Minimum cut: the least bound on what groups supply to members that several of them share. Pure."""

from collections import defaultdict, deque
from collections.abc import Mapping, Set
from decimal import Decimal
from itertools import pairwise
from typing import Final

import msgspec

Group = frozenset[str]
"""Members among which a group may divide its supply in any way."""
Node = Group | str
SOURCE: Final[Node] = frozenset()
SINK: Final[Node] = ""
UNLIMITED: Final = Decimal("Infinity")


class Cut(msgspec.Struct, frozen=True):
    """The groups and members whose supplies and capacities bound the flow. Each group is in the cut, or all of its
    members are."""

    groups: Set[Group]
    members: Set[str]


def min_cut(supplies: Mapping[Group, Decimal], capacities: Mapping[str, Decimal]) -> Cut:
    """Find the minimum cut between groups and members. A member without a capacity is unlimited.

    Uses shortest augmenting paths (Edmonds-Karp). A group with an unlimited member is always in the cut.
    """
    unlimited = {group for group in supplies if not group <= capacities.keys()}
    limited = supplies.keys() - unlimited
    residual: dict[Node, dict[Node, Decimal]] = defaultdict(lambda: defaultdict(Decimal))
    for group in limited:
        residual[SOURCE][group] = supplies[group]
        for member in group:
            residual[group][member] = UNLIMITED
            residual[member][SINK] = capacities[member]
    while SINK in (came_from := _reachable(residual)):
        path = [SINK]
        while (before := came_from[path[-1]]) is not None:
            path.append(before)
        edges = list(pairwise(reversed(path)))
        units = min(residual[start][end] for start, end in edges)
        for start, end in edges:
            residual[start][end] -= units
            residual[end][start] += units
    members = {member for group in limited for member in group}
    return Cut(unlimited | (limited - came_from.keys()), members & came_from.keys())


def _reachable(residual: Mapping[Node, Mapping[Node, Decimal]]) -> dict[Node, Node | None]:
    """Nodes that the source can still supply, each with its predecessor on a shortest path."""
    came_from: dict[Node, Node | None] = {SOURCE: None}
    waiting = deque([SOURCE])
    while waiting:
        node = waiting.popleft()
        for following, units in residual[node].items():
            if units > 0 and following not in came_from:
                came_from[following] = node
                waiting.append(following)
    return came_from
