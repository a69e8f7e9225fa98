"""Real processes or machines of a demo, observed independently of the services."""

from typing import Protocol

from slipway_common.declaration.models import Declaration
from slipway_local.check.evidence import Evidence
from slipway_local.servers.supervisor import Supervisor


class Observed(Protocol):
    """Observation of one deployment's machines. The simulator serves their queue."""

    async def start(self, supervisor: Supervisor) -> None:
        """Start what the machines need, and to observe them, while the deployment starts."""
        ...

    def declared(self, declaration: Declaration) -> Declaration:
        """The declaration with the settings of accounts for this machine and this run, which has started."""
        ...

    async def play(self) -> None:
        """Begin the scenario of the machines: from now on faults have their times."""
        ...

    async def leave(self) -> None:
        """Wait, for a limited time, until no task is left and all machines have ended."""
        ...

    async def count(self) -> None:
        """Count what is left, before it is killed."""
        ...

    def merged(self, found: Evidence) -> Evidence:
        """The evidence with the observed machines as the cloud's ledger."""
        ...

    def problems(self, found: Evidence) -> list[str]:
        """Machines that contradict the evidence, or that are left."""
        ...

    def summary(self, found: Evidence) -> str: ...

    def left_over(self) -> str:
        """Closing line on what is left; empty until it is counted."""
        ...
