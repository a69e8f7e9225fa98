"""Distribution of launches over configs in proportion to weights, within their own and shared windows. Pure.

Draws follow the golden-ratio sequence instead of random numbers: over any interval the shares stay within O(log n / n)
of the weights, where independent draws deviate by O(1 / sqrt n). (Kronecker sequence; the golden ratio is the number
worst approximated by fractions, hence the most even.)
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Final

import msgspec

from slipway_provisioner.domain.pool import Share

GOLDEN: Final = (sqrt(5) - 1) / 2


class Candidate(msgspec.Struct, frozen=True):
    """A config that may launch: weight (> 0), room in starts, and the windows it shares with others."""

    config_id: str
    weight: float
    room: int
    shares: Sequence[Share] = ()


def choose(
    candidates: Sequence[Candidate], units: int, *, drawn: int, shared_room: Mapping[Share, int] | None = None
) -> dict[str, int]:
    """Launches per config id, at most `units` in total and at most its room per config.

    `drawn`: launches drawn for this pool so far; continues the sequence across decisions. `shared_room`: starts that
    the configs of a share may make together.
    """
    shared_left = dict(shared_room or {})
    shares = {c.config_id: [share for share in c.shares if share in shared_left] for c in candidates}
    left = {c.config_id: min([c.room, *(shared_left[s] for s in shares[c.config_id])]) for c in candidates}
    left = {config_id: room for config_id, room in left.items() if room > 0}
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
        for share in shares[config_id]:
            shared_left[share] -= 1
        left = {c: room for c, room in left.items() if room and all(shared_left[share] for share in shares[c])}
    return got
