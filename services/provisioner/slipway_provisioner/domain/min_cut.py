"""Least that bounds what flows from groups into the members that each may use: a minimum cut. Pure."""

from collections import deque
from collections.abc import Mapping, Set
from decimal import Decimal

import msgspec

Group = frozenset[str]
"""Members into which a group may flow, in any division."""


class Cut(msgspec.Struct, frozen=True):
    """The groups and members whose capacities together bound the flow. Each group is cut, or all of its members are."""

    groups: Set[Group]
    members: Set[str]


def min_cut(supplies: Mapping[Group, Decimal], capacities: Mapping[str, Decimal]) -> Cut:
    """Minimum cut between groups with a supply each and members with a capacity; without one a member takes anything.

    By shortest augmenting paths (Edmonds and Karp), over groups of limited members only: the others flow freely.
    """
    free = {group for group in supplies if not group <= capacities.keys()}
    supply = {group: units for group, units in supplies.items() if group not in free}
    room = {member: capacities[member] for group in supply for member in group}
    flow = {(group, member): Decimal() for group in supply for member in group}
    while True:
        came_from: dict[Group | str, Group | str | None] = {group: None for group, left in supply.items() if left > 0}
        waiting = deque(came_from)
        end = ""
        while waiting and not end:
            at = waiting.popleft()
            if isinstance(at, str):
                end = at if room[at] > 0 else ""
                following: list[Group | str] = [group for group, member in flow if member == at and flow[group, at] > 0]
            else:
                following = sorted(at)
            for each in following:
                if each not in came_from:
                    came_from[each] = at
                    waiting.append(each)
        if not end:
            return Cut(free | (supply.keys() - came_from.keys()), room.keys() & came_from.keys())
        path: list[Group | str] = [end]
        while (before := came_from[path[-1]]) is not None:
            path.append(before)
        steps = list(zip(path[1:], path, strict=False))
        returned = [flow[to, at] for at, to in steps if isinstance(at, str) and not isinstance(to, str)]
        start = path[-1]
        assert not isinstance(start, str)
        units = min(supply[start], room[end], *returned)
        supply[start] -= units
        room[end] -= units
        for at, to in steps:
            if isinstance(at, str) and not isinstance(to, str):
                flow[to, at] -= units
            elif isinstance(to, str) and not isinstance(at, str):
                flow[at, to] += units
