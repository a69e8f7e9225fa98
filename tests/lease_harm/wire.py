"""The network between commands and the broker: slow, and counting renewals."""

from collections import Counter
from random import Random
from typing import Final

from tests.drills.proxy import Proxy

LATENCY_SECONDS: Final = 0.08


class Wire(Proxy):
    """Proxy whose answers are late by a random latency, and by `slow_seconds`. `renewals`: their number by lease id."""

    def __init__(self, target: int, rng: Random) -> None:
        super().__init__(target)
        self.slow_seconds = 0.0
        self.renewals: Counter[str] = Counter()
        self.delay = lambda: self.slow_seconds + rng.uniform(0.0, LATENCY_SECONDS)
        self.on_request = self._count

    def _count(self, part: bytes) -> None:
        method, _, path = part.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        parts = path.split(" ")[0].split("/")
        if method == "POST" and len(parts) == 4 and parts[1] == "leases" and parts[3] == "renew":
            self.renewals[parts[2]] += 1
