"""Kinds and targets of signals: one row per kind. Services, CLI and contracts take rules and texts from this table."""

from typing import Final, Literal, NamedTuple

TARGETS: Final = ("worker", "config", "pool", "zone", "account", "image", "capacity")
TTL_SECONDS: Final = 900.0  # of a signal that gives none
TTL_SECONDS_MAX: Final = 86_400.0


class Kind(NamedTuple):
    """One kind of signal.

    `effect` is its line in the command's help. A `request` is for the provisioner; others are health signals.
    `factor` multiplies the health of a config. A `value` replaces the factor if it is a share; if it is a number of
    starts, it is required and caps the launch window. A kind that acts `at_once` has no duration. Any further effect,
    such as the trip by `down`, is in domain/signals.py of the weight-calculator.
    """

    name: str
    effect: str
    request: bool = False
    factor: float = 1.0
    value: Literal["", "share", "starts"] = ""
    at_once: bool = False

    def expected(self, value: float) -> str:
        """Description of the values that this kind accepts; empty if `value` is accepted."""
        if self.value == "starts":
            return "" if 0 <= value < 1e9 else "a number of starts"
        return "" if 0 <= value <= 1 else "between 0 and 1"


KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind("degraded", "health is reduced to --value, from 0 to 1", factor=0.5, value="share"),
        Kind("down", "the target fails: only probes launch", factor=0.0),
        Kind("recovered", "withdraws earlier signals of the source", at_once=True),
        Kind("capacity_hint", "room for --value starts", value="starts"),
        Kind("spot_interruption", "capacity is being reclaimed; --value as for degraded", factor=0.5, value="share"),
        Kind("pause_request", "stop launches for the duration", request=True),
        Kind("resume_request", "end a pause of the source", request=True, at_once=True),
    )
}
# Sets of names, because a signal of another version may have a kind that is not in the table.
REQUESTS: Final = frozenset(kind.name for kind in KINDS.values() if kind.request)
CAPS: Final = frozenset(kind.name for kind in KINDS.values() if kind.value == "starts")
VALUED: Final = frozenset(kind.name for kind in KINDS.values() if kind.value)
AT_ONCE: Final = frozenset(kind.name for kind in KINDS.values() if kind.at_once)
