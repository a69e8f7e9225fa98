"""Interface of a launch policy in the simulator: chooses configs for tries and receives their outcomes."""

from collections.abc import Sequence


class Policy:
    """Base of launch policies; ignores all outcomes. `config` is an index of the run's list, `worker` numbers the try.

    Outcomes arrive in the order of their times and before the next choice: acceptance or refusal 2 s after the try, a
    registration at the end of the boot, a failed boot at the registration time-out. Times are seconds of the run.

    A policy that `names_revisions` chooses places in the run's revisions instead, and gets the outcomes by them.
    """

    names_revisions = False

    def choose(self, now: float, tries: int) -> Sequence[int]:
        """Configs to try now, at most `tries`."""
        raise NotImplementedError

    def accepted(self, now: float, config: int, worker: int) -> None: ...

    def refused(self, now: float, config: int, worker: int, scope: str) -> None: ...

    def registered(self, now: float, config: int, worker: int, boot_seconds: float) -> None: ...

    def unregistered(self, now: float, config: int, worker: int) -> None: ...

    def ended(self, now: float, config: int, worker: int) -> None: ...
