"""Deadlines of workers: what may be declared of each, and the rules between them. Pure."""

from collections.abc import Mapping
from typing import Final, NamedTuple

Deadlines = Mapping[str, float]
"""Seconds by the name of the deadline. One that is absent, or None, never passes."""

DRAIN_SECONDS_MIN: Final = 3600.0
"""Shortest default of the time in which a worker that drains should end its task."""
DRAIN_SECONDS_MAX: Final = 86_400.0
"""Longest default of it: a worker that reports no end of a task would make the drains of its pool endless."""


class Order(NamedTuple):
    """Two deadlines of which the first must pass before the second, and the reason. `strict`: they must differ."""

    shorter: str
    longer: str
    strict: bool
    otherwise: str


ENDS: Final = ("maximum_age_seconds", "credential_seconds", "lifetime_seconds")
"""Deadlines each of which ends the life of a machine that declares no other."""
ORDERS: Final = (
    *(Order("registration_seconds", end, True, "a machine would leave before it has to register") for end in ENDS),
    *(Order("idle_seconds", end, True, "every machine would be replaced before it is idle for long") for end in ENDS),
    Order("maximum_age_seconds", "credential_seconds", False, "machines would outlive their credentials"),
    Order("maximum_age_seconds", "lifetime_seconds", False, "machines would outlive what the spend limit counts"),
)


def contradiction(deadlines: Deadlines, *, whose: Mapping[str, str] | None = None) -> str:
    """First contradiction between deadlines, with its remedy; empty if there is none.

    `lifetime_seconds` is that of a spend limit. `whose`: the owner of a deadline that is declared elsewhere, by name.
    """
    for order in ORDERS:
        shorter, longer = deadlines.get(order.shorter), deadlines.get(order.longer)
        if shorter is None or longer is None or shorter < longer or (shorter == longer and not order.strict):
            continue
        owner = (whose or {}).get(order.longer, "")
        return (
            f"{order.shorter} {shorter:g} must be {'below' if order.strict else 'at most'} "
            f"{order.longer} {longer:g}{f' of {owner}' if owner else ''}, or {order.otherwise}; "
            f"lower {order.shorter} or raise {order.longer}"
        )
    return ""
