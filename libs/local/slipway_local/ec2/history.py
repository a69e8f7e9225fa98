"""The run so far: its ledger, and the cloud that results from it."""

from collections.abc import Callable, Iterable
from random import Random

from slipway_local.ec2.cloud import Cloud
from slipway_local.ec2.facts import Cleared, Fact
from slipway_local.ec2.faults import Effects
from slipway_simulator.fact_file import FactFile


class History:
    """Facts of one run, recorded and folded. moto persists nothing, so a run cannot be continued by another process."""

    def __init__(self, ledger: FactFile[Fact], now: Callable[[], float]) -> None:
        self.ledger = ledger
        self.now = now
        self.cloud = Cloud()

    def record(self, facts: Iterable[Fact]) -> None:
        """Append facts to the ledger, then fold them."""
        batch = tuple(facts)
        if batch:
            self.ledger.append(batch)
        for fact in batch:
            if isinstance(fact, Cleared):
                self.cloud = Cloud()
            self.cloud.fold(fact)

    def effects(self) -> Effects:
        return self.cloud.effects(self.now())

    def chance(self, what: str) -> Random:
        """Random numbers for `what`, the same in every run with this seed."""
        return Random(f"{self.cloud.rules.seed}/{what}")  # noqa: S311 (a stand-in has to be repeatable)
