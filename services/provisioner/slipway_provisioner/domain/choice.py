"""Which configs get the next launches: shares equal to weights, within each config's room. Pure.

Draws follow the golden-ratio sequence instead of chance: over any stretch the shares keep within O(log n / n) of the
weights, where independent draws stray by O(1 / sqrt n). (Kronecker sequence; the golden ratio is the number worst
approximated by fractions, hence the most even.)
"""

from collections.abc import Sequence
from math import sqrt
from typing import Final

import msgspec

GOLDEN: Final = (sqrt(5) - 1) / 2


class Candidate(msgspec.Struct, frozen=True):
    """A config that may launch: its weight (> 0) and how many starts it has room for."""

    config_id: str
    weight: float
    room: int


def choose(candidates: Sequence[Candidate], units: int, *, drawn: int) -> dict[str, int]:
    """Launches per config id: in total min(units, all room), each at most its room.

    `drawn` is how many launches this pool has drawn before; it continues the sequence across decisions.
    """
    left = {c.config_id: c.room for c in candidates if c.room > 0}
    weights = {c.config_id: c.weight for c in candidates}
    got: dict[str, int] = {}
    for place in range(drawn, drawn + units):
        if not left:
            break
        point = (place * GOLDEN) % 1 * sum(weights[config_id] for config_id in left)
        for config_id in left:  # the last one takes what rounding leaves
            point -= weights[config_id]
            if point < 0:
                break
        got[config_id] = got.get(config_id, 0) + 1
        left[config_id] -= 1
        if not left[config_id]:
            del left[config_id]
    return got
