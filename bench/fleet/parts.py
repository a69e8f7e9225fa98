"""Values that the processes of the benchmark exchange, a line of JSON each."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

REGION: Final = "us-east-1"
ZONE: Final = "us-east-1a"
INSTANCE_TYPE: Final = "m5.large"
IMAGE: Final = "ami-0123456789abcdef0"
KEY, SECRET = "AKIAFLEET", "secret of the fleet"
CALL_SECONDS: Final = 60.0
LISTED_AT_ONCE: Final = 2
PAGE: Final = 200


class Fleet(msgspec.Struct, frozen=True):
    """Fleet of a deployment: account number → batch → instances. `launches_per_second` are spread over all accounts."""

    url: str
    accounts: Mapping[str, Mapping[str, Sequence[str]]]
    launches_per_second: float
    seed: int

    @property
    def instances(self) -> int:
        return sum(len(ids) for batches in self.accounts.values() for ids in batches.values())


class Window(msgspec.Struct, frozen=True):
    """Launches for some seconds, or while a round of the reaper lasts (0)."""

    seconds: float = 0.0


class Played(msgspec.Struct, frozen=True):
    """A window: its length and that of the round, the times of its launches from their grant to their recorded outcome,
    its largest memory in MB, and its CPU time."""

    seconds: float
    launches: Sequence[float]
    peak_mb: float
    cpu_seconds: float
    before_mb: float = 0.0


class Listed(msgspec.Struct, frozen=True):
    """The same listing by a bare client: its length, CPU time and instances."""

    seconds: float
    cpu_seconds: float
    instances: int
