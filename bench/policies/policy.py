"""What a launch policy is to the simulator: it chooses configs for tries, and hears of their outcomes."""

from collections.abc import Sequence


class Policy:
    """Hears everything and heeds nothing. `config` is a place in the run's list, `worker` the number of the try.

    Facts come in the order of their times, and before the next choice: a yes or a no 2 s after the try, a
    registration when the boot is over, a failed boot when the time for it has passed. Times are seconds of the run.
    """

    def choose(self, now: float, tries: int) -> Sequence[int]:
        """Configs to try now, at most `tries` of them."""
        raise NotImplementedError

    def accepted(self, now: float, config: int, worker: int) -> None: ...

    def refused(self, now: float, config: int, worker: int, scope: str) -> None: ...

    def registered(self, now: float, config: int, worker: int, boot_seconds: float) -> None: ...

    def unregistered(self, now: float, config: int, worker: int) -> None: ...

    def ended(self, now: float, config: int, worker: int) -> None: ...
